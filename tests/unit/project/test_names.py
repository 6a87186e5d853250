"""Names: a class name stands for one class, and odd words of many meanings are gone, also from the tests."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.support.pages import ROOT

TREES = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "proxy" / "outrider").rglob("*.py"))}
# As a whole name or as a part of one, between underscores.
_ODD = re.compile(r"(?<![^\W_])(?:told|tells?|heard|hears?)(?![^\W_])", re.IGNORECASE)
# Tests still have many of these.
_ODD_IN_THE_PRODUCT = re.compile(r"(?:^|_)(asked|came|brought)(?:_|$)")
# A field of the JSON of a plan, which clients read. Tests build such a progress by its name.
OF_THE_WIRE = {"told"}
# `file.tell()`: the position in a file.
OF_PYTHON = {"tell"}


def test_a_class_name_is_unique() -> None:
    names = Counter(node.name for tree in TREES.values() for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def names_in(trees: Iterable[ast.AST]) -> set[str]:
    """All names that are defined or used: of functions, classes, arguments, attributes and variables."""
    return {
        name
        for tree in trees
        for node in ast.walk(tree)
        for name in (getattr(node, "name", None), getattr(node, "arg", None), getattr(node, "attr", None),
                     node.id if isinstance(node, ast.Name) else None)
        if isinstance(name, str)
    }  # fmt: skip


def test_a_name_of_the_product_says_whether_it_is_reported_requested_or_received() -> None:
    names = names_in(TREES.values())
    assert {name for name in names if _ODD.search(name)} == OF_THE_WIRE | OF_PYTHON
    assert {name for name in names if _ODD_IN_THE_PRODUCT.search(name)} == set()


def test_a_name_of_the_tests_says_whether_it_is_announced_reported_or_stated() -> None:
    # Only a text with such a word is parsed: all of them would take seconds.
    texts = (path.read_text() for path in sorted((ROOT / "tests").rglob("*.py")))
    names = names_in(ast.parse(text) for text in texts if _ODD.search(text))
    assert {name for name in names if _ODD.search(name)} == OF_THE_WIRE


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("def test_a_reader_is_told_of_it(): ...", "test_a_reader_is_told_of_it"),
        ("hint.heard_at = 1", "heard_at"),
        ("def f(_tells): ...", "_tells"),
        ("class Length: TOLD = 1", "TOLD"),
        ("told = 1", "told"),
    ],
)
def test_an_odd_name_is_found_wherever_it_is(text: str, name: str) -> None:
    assert _ODD.search(text)
    assert {each for each in names_in([ast.parse(text)]) if _ODD.search(each)} == {name}


def test_words_that_only_contain_an_odd_one_are_left() -> None:
    assert not any(map(_ODD.search, ("untold", "toldings", "sheared", "intellect", "heart_at", "shears")))
