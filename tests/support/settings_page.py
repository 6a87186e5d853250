"""Prints docs/settings.md from the settings' own definitions: `make docs`."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from outrider.cli.serve import serve
from outrider.settings import Settings, Size

_HEAD = """# Settings

For platform engineers who configure Outrider: each setting with its flag, variable, default and meaning. `make docs`
generates this page from `proxy/outrider/settings`, and a test compares the two.

A setting comes from its flag, from its environment variable, or from the TOML file that `--config FILE`
(`OUTRIDER_CONFIG`) names; the first of these wins. All settings are checked at the start. An unknown setting or a value
that makes no sense ends the start with exit code 2 and a message that names the setting and the allowed values. No
setting is read again later: to change one, restart. Settings of earlier releases that have no effect any more
(`workers`) are ignored, with a warning.

Sizes are bytes, or a number with `KiB`, `MiB`, `GiB`, `TiB` (powers of 1,024) or `kB`, `MB`, `GB`, `TB` (powers of
1,000). Sizes on disk may be a share of the file system, such as `40%`. Names that end in `_s` are seconds. The
flags are those of `serve` and `run`. `run` changes four defaults: `listen` and `admin` are any free port of loopback,
`log_level` is `warning`, `drain_s` is 1.
"""

_FILE = """
## A settings file

```toml
{example}```

## Rules

Rules are lists of tables in the settings file. The first rule that matches counts. They cannot be given as
environment variables.
{rules}
## The clients file

With `auth = "sigv4"` the clients file lists the client keys and their grants. It is read again when it changes. A grant
without a prefix is for the whole bucket; `write` includes `read`. [Security](security.md) says what a grant covers,
[Operations](operations.md#several-tenants) shows how to give out keys.

One entry may have `anonymous = true` in place of the keys. Requests without a signature are then those of this client:
they go to the origin unsigned and past the cache, and the origin decides. Without such an entry they are refused.
[Security](security.md#unsigned-requests-sigv4) says more.

`cache_share` and `line_share` are optional: a percentage, or a number up to 1. Clients of one `name` are one tenant.
Their share of the cache is not evicted for other tenants, and their share of the line to the bucket is theirs while
all want it.
[Operations](operations.md#shares-of-the-cache-and-of-the-line) says more.

```toml
{clients}```
"""

EXAMPLE = """origin = "https://s3.example.com"
cache_dir = "/data/outrider"
cache_size = "500GiB"
min_free = "5%"
freshness = "ttl:60"

[[freshness_rules]]
objects = "train-*/*"     # a glob over bucket/key
freshness = "immutable"

[[prefetch_rules]]
objects = "*/checkpoints/*"
prefetch = "off"

[[list_cache]]
prefixes = "train-*/*"
ttl_s = 600
"""

CLIENTS = """[[client]]
name = "vision"
access_key = "VISIONTEAM"
secret_key = "a long random text"
grants = [
    {bucket = "train-*", prefix = "images/", access = "read"},
    {bucket = "results", prefix = "vision/", access = "write"},
]
cache_share = "30%"
line_share = 0.5
"""


def _tables() -> dict[str, type[BaseModel]]:
    """The settings that are lists of tables in the file, each with the model of its tables."""
    found = {}
    for name, field in Settings.model_fields.items():
        models = [one for one in get_args(field.annotation) if isinstance(one, type) and issubclass(one, BaseModel)]
        if get_origin(field.annotation) is tuple and models:
            found[name] = models[0]
    return found


def page() -> str:
    tables = _tables()
    flags = set(inspect.signature(serve).parameters)
    rows = ["| name | flag | environment | default | meaning |", "| --- | --- | --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        flag = f"`--{name.replace('_', '-')}`" if name in flags else ""
        variable = "" if name in tables else f"`OUTRIDER_{name.upper()}`"
        meaning = " ".join(part for part in (field.description or "", _allowed(name, field)) if part)
        rows.append(f"| `{name}` | {flag} | {variable} | {_default(name, field)} | {_cell(meaning)} |")
    example, clients, rules = EXAMPLE, CLIENTS, _rules()
    return f"{_HEAD}\n{_lines(rows)}{_FILE.format(example=example, clients=clients, rules=rules)}"


def _rules() -> str:
    parts = []
    for name, model in _tables().items():
        fields = ", ".join(f"`{key}` ({_type(key, field)})" for key, field in model.model_fields.items())
        parts.append(f"- `[[{name}]]`: {fields}. {' '.join((model.__doc__ or '').split())}")
    return f"\n{_lines(parts)}"


def _type(name: str, field: FieldInfo) -> str:
    values = _choices(field.annotation)
    if values:
        return ", ".join(values)
    if name == "freshness":
        return "immutable, ttl:SECONDS or always"
    return "seconds" if name.endswith("_s") else "a glob"


def _default(name: str, field: FieldInfo) -> str:
    if name == "cache_dir":
        return "`$XDG_CACHE_HOME/outrider`, else `~/.cache/outrider`"
    value = field.default
    if isinstance(value, Size):
        return f"`{value.share:.0%}`" if value.share else f"`{_size(value.amount_bytes)}`"
    if value in (None, (), PydanticUndefined) or isinstance(value, BaseModel):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and _is_bytes(name):
        return f"`{_size(value)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _size(amount: int) -> str:
    for unit, power in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("MB", 10**6)):
        if amount and amount % power == 0:
            return f"{amount // power}{unit}"
    return str(amount)


def _allowed(name: str, field: FieldInfo) -> str:
    """The rest that the type says: the choices, the bounds, that it is a secret."""
    parts = []
    if values := _choices(field.annotation):
        parts.append("One of " + ", ".join(f"`{value}`" for value in values) + ".")
    if field.annotation is bool:
        parts.append("`true` or `false`.")
    bounds = [_bound(name, one) for one in field.metadata]
    if told := ", ".join(bound for bound in bounds if bound):
        parts.append(f"{told[0].upper()}{told[1:]}.")
    if SecretStr in get_args(field.annotation):
        parts.append("No flag: a command line can be read by all on the machine.")
    return " ".join(parts)


def _bound(name: str, one: object) -> str:
    """One bound of a number in words; empty: nothing that need be said."""
    for kind, attribute, word in (
        (annotated_types.Ge, "ge", "at least"),
        (annotated_types.Gt, "gt", "above"),
        (annotated_types.Le, "le", "at most"),
        (annotated_types.MultipleOf, "multiple_of", "a multiple of"),
    ):
        if isinstance(one, kind):
            value: Any = getattr(one, attribute)
            return f"{word} {_size(value) if _is_bytes(name) else f'{value:,}'}" if value or word == "above" else ""
    return ""


def _is_bytes(name: str) -> bool:
    return name.endswith("_bytes") or name in ("block_size", "scrub_bandwidth", "prefetch_bandwidth")


def _choices(annotation: object) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    if get_origin(annotation) in (Union, UnionType):
        return [value for part in get_args(annotation) for value in _choices(part)]
    return []


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _lines(rows: list[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

if __name__ == "__main__":
    print(page(), end="")
