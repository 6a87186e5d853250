"""The pages of docs/ that are made from the code: `make docs` writes them, and tests compare the two.

`python -m tests.support.generated_pages metrics` prints docs/metrics.md, `... settings` docs/settings.md, and
`... simulated` writes the output of `outrider simulate` into the pages that show it.
"""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import annotated_types
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from outrider.cli.serve import serve
from outrider.engine.operator.metrics import OperatorMetrics
from outrider.metrics import Metrics, PeerMetrics
from outrider.metrics.usage_metrics import TenantMetrics, UsageMetrics
from outrider.settings import Settings, Size
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


_METRICS_HEAD = """# Metrics

For platform engineers who watch Outrider with Prometheus: each metric of `/metrics` on the admin port, with its unit
and labels. `make docs` writes this page from the code, and a test compares the two. The chart has
[rules](../charts/outrider/files/rules.yaml) (recording and alerts) and a [Grafana
dashboard](../charts/outrider/files/dashboard.json).

Labels are bounded. No label is an object's key.

- `dataset` is a bucket and a key template, such as `data/train-{}.tar`. The first twenty datasets of which a gigabyte
  was read have a label of their own; all others together are `other`.
- `op` is `get`, `head`, `forward` and a method, or `bad`. `cache` is the value of `x-cache`. A `status` of `0` is a
  request that had no answer.
- `peer` is the name of another member of the cluster, for the first 64 names; all others together are `other`.
- `tenant` is the name of clients in the clients file; `-` stands for reads of no known tenant.
- Each counter has a companion `_created`, a gauge of the time when it began.

Two metrics show whether training waits for the proxy. `outrider_dataset_wait_seconds_total` is the time for which
readers waited: from a request's head to its last byte, except the time for which the client's socket was full.
`outrider_dataset_away_seconds_total` is the rest: the socket was full, or the connection asked for nothing (of one
such pause, a minute counts at most). The stall of the dashboard and of `outrider stats` is the part of both that the
first one has.

| metric | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
"""
_UNITS = {"bytes": "bytes", "seconds": "seconds", "blocks": "blocks", "requests": "requests"}


def all_metrics() -> dict[str, MetricWrapperBase]:
    """All metrics by their names in PromQL; a histogram by the name before `_bucket`, `_count` and `_sum`."""
    metrics = Metrics()
    found = {}
    for holder in (metrics, metrics.usage_metrics, metrics.peers, metrics.tenants):
        assert isinstance(holder, Metrics | UsageMetrics | PeerMetrics | TenantMetrics)
        for metric in vars(holder).values():
            if isinstance(metric, MetricWrapperBase):
                (family,) = metric.describe()
                found[family.name + ("_total" if family.type == "counter" else "")] = metric
    return found


def sample_names() -> set[str]:
    """All names that a query may use, those of `outrider operator` among them."""
    families = [next(iter(metric.describe())) for metric in all_metrics().values()]
    names = set()
    for family in (*families, *OperatorMetrics().registry.collect()):
        endings = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("_total",)}.get(family.type, ("",))
        names |= {family.name + ending for ending in endings}
    return names


def metrics_page() -> str:
    return _METRICS_HEAD + "".join(f"{row}\n" for row in _metric_rows())


def _metric_rows() -> Iterator[str]:
    for name, metric in sorted(all_metrics().items()):
        (family,) = metric.describe()
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        stem = name.removesuffix("_total")
        unit = "ratio" if "ratio" in stem else _UNITS.get(stem.rpartition("_")[2], "")
        yield f"| `{name}` | {family.type} | {unit} | {labels} | {family.documentation} |"


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


def settings_page() -> str:
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
    if limits := ", ".join(bound for bound in bounds if bound):
        parts.append(f"{limits[0].upper()}{limits[1:]}.")
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


SETTINGS_PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


SIMULATED_PAGES = (ROOT / "docs" / "sizing.md", ROOT / "docs" / "cluster.md")
_BLOCK = re.compile(r"```console\n\$ outrider (simulate .*)\n(?:.*\n)*?```\n")


def _as_printed(found: re.Match[str]) -> str:
    words = [sys.executable, "-m", "outrider", *shlex.split(found[1])]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    lines = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return f"```console\n$ outrider {found[1]}\n{lines}```\n"


if __name__ == "__main__":
    if sys.argv[1] == "simulated":
        for page in SIMULATED_PAGES:
            page.write_text(_BLOCK.sub(_as_printed, page.read_text()))
    else:
        print({"metrics": metrics_page, "settings": settings_page}[sys.argv[1]](), end="")
