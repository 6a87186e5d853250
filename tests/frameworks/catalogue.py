"""The frameworks of docs/frameworks.md that are run, by the name in the mark `run=NAME` of their blocks. Code that only
writes is in writes.md beside this module."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.support.pages import ROOT, Block, blocks_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "frameworks.md"
WRITTEN = ROOT / "tests" / "frameworks" / "writes.md"
RUN, WRITES = "run=", "writes="
# The requirements of each framework's own environment. None: it is installed with the tests (pyproject.toml's extras).
REQUIREMENTS: dict[str, tuple[str, ...] | None] = {
    "boto3": None,
    "s3fs": None,
    "pyarrow": None,
    "webdataset": None,
    "rclone": None,
    "s5cmd": None,
    "aws": None,
    "s3torchconnector": ("s3torchconnector[dcp]==1.5.0", "torch==2.13.0", "numpy"),
    "datasets": ("datasets==5.2.0", "s3fs==2026.9.0"),
    "ray": ("ray[data]==2.60.0",),
    "torchdata": ("torchdata==0.11.0", "torch==2.13.0", "s3fs==2026.9.0"),
    "tensorflow": ("tensorflow-io==0.37.1", "tensorflow-cpu==2.16.2"),
    "safetensors": ("safetensors==0.8.0", "numpy", "s3fs==2026.9.0"),
    "runai": ("runai-model-streamer==0.17.0", "runai-model-streamer-s3==0.17.1", "torch==2.13.0", "numpy"),
    "wids": ("wids==0.1.11", "torch==2.13.0", "numpy", "braceexpand", "pillow"),
    "dali": ("nvidia-dali-cuda120==2.4.0", "numpy"),
    "litdata": None,
    "mosaicml-streaming": None,
    "duckdb": ("duckdb==1.5.5", "duckdb-extension-httpfs==1.5.5"),
    "polars": ("polars==2.1.0",),
}

# Run through https.
TLS = frozenset({"litdata"})
# Run with tests/frameworks/torchvision_on_cpu before them on PYTHONPATH.
NEED_TORCHVISION = frozenset({"mosaicml-streaming"})


def blocks(name: str) -> list[Block]:
    """The blocks of a framework, in the order of the two pages."""
    return [block for page in (PAGE, WRITTEN) for block in blocks_of(page) if f"{RUN}{name}" in block.marks]


def value(block: Block, mark: str) -> str | None:
    """The text behind `mark` in the block's marks; None: it has no such mark."""
    return next((found.removeprefix(mark) for found in block.marks if found.startswith(mark)), None)


def printed(block: Block) -> list[str]:
    """The lines that the block says it prints: each a comment behind a `print`, or a line `# prints ...`."""
    return re.findall(r"(?:print\(.*\)  # |# prints )(.+)", block.text)


def sections() -> Iterator[tuple[str, str]]:
    """Heading and text of each framework's section."""
    for part in PAGE.read_text().split("\n### ")[1:]:
        heading, _, text = part.partition("\n")
        yield heading, text.partition("\n## ")[0]


def table() -> dict[str, str]:
    """The rows of the page's first table, by the name in their first column."""
    rows = [line for line in PAGE.read_text().partition("\n## ")[0].splitlines() if line.startswith("| [")]
    return {re.match(r"\| \[([^\]]+)\]", row)[1]: row for row in rows}  # type: ignore[index]
