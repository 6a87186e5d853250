"""The worked examples of CONTRIBUTING.md name files, and names in them, that exist."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
EXAMPLES = ("A new metric", "An oddity of an origin", "A framework's page")
_SECTION = re.compile(r"^### Worked examples$(.*?)^## ", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"^\d+\. `([^`]+)`(?: \((`[^)]+`)\))?", re.MULTILINE)


def steps() -> list[tuple[str, str]]:
    """Each file, and each name that its step gives in brackets; a file without a name has an empty one."""
    section = _SECTION.search(PAGE)
    assert section is not None
    return [
        (file, name) for file, names in _STEP.findall(section[1]) for name in (re.findall(r"`([^`]+)`", names) or [""])
    ]


def names_in(file: str) -> set[str]:
    """The names that a file defines: of a module `NAME` and `Class.name`, of a page its headings, else its targets and
    words."""
    text = (ROOT / file).read_text()
    if file.endswith(".py"):
        return set(_defined(ast.parse(text).body, ""))
    if file.endswith(".md"):
        return set(re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return set(re.findall(r"[\w-]+", text))


def _defined(body: list[ast.stmt], before: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield before + node.name
        if isinstance(node, ast.ClassDef):
            yield from _defined(node.body, f"{before}{node.name}.")
        for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
            if isinstance(target, ast.Name):
                yield before + target.id


def test_each_example_has_its_steps() -> None:
    section = _SECTION.search(PAGE)
    assert section is not None
    parts = re.split(r"^\*\*(.+?)\*\*", section[1], flags=re.MULTILINE)
    assert tuple(parts[1::2]) == EXAMPLES
    assert all(len(_STEP.findall(part)) >= 4 for part in parts[2::2])
    assert len(re.findall(r"^\d+\. ", section[1], re.MULTILINE)) == len(_STEP.findall(section[1])), "a step has a file"


@pytest.mark.parametrize(("file", "name"), steps())
def test_each_step_names_what_exists(file: str, name: str) -> None:
    assert (ROOT / file).is_file()
    assert not name or name in names_in(file)
