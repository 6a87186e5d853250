"""The answer of a member that is asked which blocks of some objects it has.

The question names the objects as an order does (see `order_messages`). Both go as a command (see `command_messages`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from outrider.core.cluster.wire_forms import WireError, matched, whole

Blocks = tuple[bytes, int, int]
"""The id of a version, the number of its blocks, and those that are here: bit `i` stands for block `i`."""

_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MASK = re.compile(r"[0-9a-f]{1,65536}", re.ASCII)


def is_whole(told: Iterable[Blocks | None]) -> bool:
    """Whether members that told this of one object have all blocks of some version together."""
    together: dict[tuple[bytes, int], int] = {}
    for blocks in told:
        if blocks is not None:
            together[blocks[:2]] = together.get(blocks[:2], 0) | blocks[2]
    return any(blocks == (1 << total) - 1 for (_, total), blocks in together.items())


def blocks_told(found: Iterable[Blocks | None]) -> dict[str, Any]:
    """`found`: of each object in turn; None: no version is known."""
    return {"here": [None if each is None else [each[0].hex(), each[1], f"{each[2]:x}"] for each in found]}


def parse_blocks(told: dict[str, Any], count: int) -> Sequence[Blocks | None]:
    """`count`: of the objects that were asked about. Raises WireError."""
    here = told.get("here")
    if not isinstance(here, list) or len(here) != count:
        raise WireError("here: not of its form")
    return [None if each is None else _blocks(each) for each in here]


def _blocks(told: object) -> Blocks:
    if not isinstance(told, list) or len(told) != 3:
        raise WireError("here: not of its form")
    return (
        bytes.fromhex(matched(_ID, told[0], "here")), whole({"count": told[1]}, "count"),
        int(matched(_MASK, told[2], "here"), 16),
    )  # fmt: skip
