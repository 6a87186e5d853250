"""Docstrings and comments name the subject of each sentence: rule 1 of "How sentences read" in CONTRIBUTING.md, as far
as a machine can see it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING

import pytest

from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

# A question may begin with these words; a statement may not.
_NAMELESS = re.compile(r"(?:^|[.!:]\s+)(?:What|Who|Whose|Whom|Whoever|Whatever|Of)\b(?![^.!?]*\?)[^.!?]*")
# Only a text with one of these words takes the time of a parser.
_SUSPECT = re.compile(r"\b(?:What|Who|Whose|Whom|Whoever|Whatever|Of|he|him|his)\b")
# A program is "it".
_PERSON = re.compile(r"\b(?:he|him|his)\b")


def riddles(text: str) -> list[str]:
    return [match.group() for pattern in (_NAMELESS, _PERSON) for match in pattern.finditer(text)]


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, and comments with the lines of one block joined: line number and text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, " ".join(node.value.value.split())
    begin, block = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != begin + len(block):
            yield begin, " ".join(block)
            block = []
        if not block:
            begin = token.start[0]
        block.append(token.string.lstrip("# "))
    if block:
        yield begin, " ".join(block)


@pytest.mark.parametrize("folder", ["proxy/outrider", "sdk/outrider_sdk", "examples", "tests"])
def test_each_sentence_names_its_subject(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = [
        f"{path.relative_to(ROOT)}:{line}: {riddle}"
        for path in files
        if _SUSPECT.search(source := path.read_text())
        for line, text in prose(source)
        for riddle in riddles(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("What comes next is fetched.", 1),
        ("The next reads are known: of these two are here. Of the others nothing is known.", 1),
        ("What is known? The size.", 0),
        ("A reader gets his bytes from memory.", 1),
        ("The size of a block, and what lies behind it.", 0),
    ],
)
def test_a_sentence_without_a_subject_is_seen(text: str, count: int) -> None:
    assert len(riddles(text)) == count
