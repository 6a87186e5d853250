"""Names in the product: a class name stands for one class, and an odd word that meant five things is gone."""

from __future__ import annotations

import ast
import re
from collections import Counter

from tests.support.pages import ROOT

TREES = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "proxy" / "outrider").rglob("*.py"))}
_ODD = re.compile(r"(?:^|_)(told|tells|heard|asked|came|brought)(?:_|$)")
# A field of the JSON of a plan, which clients read.
OF_THE_WIRE = {"told"}


def test_a_class_name_is_unique() -> None:
    names = Counter(node.name for tree in TREES.values() for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_name_says_whether_it_is_reported_requested_or_received() -> None:
    defined = {
        name
        for tree in TREES.values()
        for node in ast.walk(tree)
        for name in (getattr(node, "name", None), getattr(node, "arg", None), getattr(node, "attr", None),
                     node.id if isinstance(node, ast.Name) else None)
        if isinstance(name, str)
    }  # fmt: skip
    assert {name for name in defined if _ODD.search(name)} == OF_THE_WIRE
