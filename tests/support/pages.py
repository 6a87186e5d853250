"""The Markdown of the documentation taken apart: fenced blocks, headings, links."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"( *)(`{3,})(.*)")
_HEADING = re.compile(r"#{1,6} (.+?)(?: #+)?")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_INDENT = "#   "
_PUNCTUATION = set(string.punctuation) - {"-", "_"}


def pages() -> list[Path]:
    """README.md, docs/*.md, and those of SDK, chart and examples."""
    others = ("sdk/README.md", "charts/outrider/README.md", "examples/README.md")
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *(ROOT / name for name in others)]


def example_manifests() -> list[Path]:
    """The manifests of the examples, whose comments have commands to type."""
    return sorted((ROOT / "examples").rglob("*.yaml"))


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    `marks`: from behind the language, `no-run`, `template`, `if=COMMAND`, `run=FRAMEWORK`, `writes=PREFIX`; `line`: of
    its fence.
    """

    page: Path
    line: int
    language: str
    marks: tuple[str, ...]
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.parent.name}/{self.page.name}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The text after `$ ` of a `console` block, or else every line that is no comment; continued lines joined."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def blocks_of(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, or the indented lines in the comments of a manifest."""
    if page.suffix == ".yaml":
        yield from _commented(page)
        return
    opened: tuple[int, str, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.fullmatch(line)
        if opened is None and fence:
            opened, lines = (number, fence[1], fence[2], fence[3]), []
        elif opened is not None and fence and fence[3] == "" and len(fence[2]) >= len(opened[2]):
            at, indent, _, info = opened
            language, *marks = info.split() or [""]
            text = "".join(f"{line.removeprefix(indent)}\n" for line in lines)
            yield Block(page, at, language, tuple(marks), text)
            opened = None
        else:
            lines.append(line)
    assert opened is None, f"{page}:{opened[0] if opened else 0}: this block does not end"


def _commented(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    for at, line in enumerate(lines):
        if line.startswith(_INDENT) and not lines[at - 1].startswith(_INDENT):
            block = list(takewhile(lambda other: other.startswith(_INDENT), lines[at:]))
            text = "".join(f"{other.removeprefix(_INDENT)}\n" for other in block)
            is_toml = text.startswith("[")
            yield Block(page, at, "toml" if is_toml else "sh", () if is_toml else ("if=kubectl",), text)


def _prose(page: Path) -> Iterator[str]:
    inside = False
    for line in page.read_text().splitlines():
        if _FENCE.fullmatch(line):
            inside = not inside
        elif not inside:
            yield line


def anchors_of(page: Path) -> set[str]:
    """The fragments of links to headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    found = set()
    for line in _prose(page):
        if heading := _HEADING.fullmatch(line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            anchor = "".join(letter for letter in text if letter not in _PUNCTUATION).replace(" ", "-")
            found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
            seen[anchor] += 1
    return found


def links_of(page: Path) -> list[str]:
    """The targets of the links of a page, as they are written. A link in code is none."""
    return [link for line in _prose(page) for link in _LINK.findall(re.sub(r"`[^`]*`", "", line))]
