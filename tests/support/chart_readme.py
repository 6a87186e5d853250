"""Makes the table of values in charts/outrider/README.md from values.yaml and its comments: `make chart-readme`."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from tests.support.chart import CHART

README = CHART / "README.md"
_TABLE = re.compile(r"(?<=<!-- values: made by `make chart-readme` -->\n).*?(?=<!-- /values -->)", re.DOTALL)
_KEY = re.compile(r"( *)([A-Za-z0-9_]+):(.*)")


def described() -> dict[str, str]:
    """The comment above each key of values.yaml, by its dotted path; empty where there is none."""
    found: dict[str, str] = {}
    path: list[str] = []
    comment: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        key = _KEY.fullmatch(line)
        if line.strip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
        elif key:
            path = [*path[: len(key[1]) // 2], key[2]]
            found[".".join(path)] = " ".join(comment)
            comment = []
        else:
            comment = []
    return found


def rows() -> list[tuple[str, str, str]]:
    """Path, default as JSON, description: of each value that has a description."""
    values, told = yaml.safe_load((CHART / "values.yaml").read_text()), described()
    found = []
    for path, words in told.items():
        has_rows = any(other.startswith(f"{path}.") and told[other] for other in told)
        if words:
            found.append((path, "" if has_rows else f"`{json.dumps(_at(values, path))}`", words))
    return found


def block(heading: str) -> str:
    """The YAML that follows a line with `heading` in it."""
    [found] = re.findall(rf"`{re.escape(heading)}`:\n\n```yaml.*\n((?:.*\n)*?)```\n", README.read_text())
    return str(found)


def _at(values: Any, path: str) -> Any:
    for key in path.split("."):
        values = values[key]
    return values


def table() -> str:
    lines = ["| value | default | what it is |", "| --- | --- | --- |"]
    lines += [f"| `{path}` | {default} | {words} |" for path, default, words in rows()]
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    made, count = _TABLE.subn(lambda _: table(), text)
    assert count == 1, "README.md has no place for the table"
    return made


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
