"""The blocks of some objects that a member has, as it answers to a command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import FailFast, Field, SkipValidation

from outrider.core.cluster.wire_forms import Number, Spread

_Id = Annotated[str, Field(strict=True, pattern="^[0-9a-f]{32}$")]
_Mask = Annotated[str, Field(strict=True, max_length=65536, pattern="^[0-9a-f]+$")]
Blocks = tuple[bytes, int, int]
"""The id of a version, the number of its blocks, and those that are here: bit `i` stands for block `i`."""


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """The answer of a member that is asked which blocks of some objects it has. The question names the objects as an
    order does; both go as a command. `here`: of each object in turn; None: no version is known."""

    here: Annotated[Sequence[Blocks | None], SkipValidation, Spread(_Here)]


@dataclass(frozen=True, slots=True)
class _Here:
    here: Annotated[list[tuple[_Id, Number, _Mask] | None], FailFast()]

    @classmethod
    def of(cls, here: Sequence[Blocks | None]) -> Self:
        return cls([each and (each[0].hex(), each[1], f"{each[2]:x}") for each in here])

    def value(self) -> Sequence[Blocks | None]:
        return tuple(each and (bytes.fromhex(each[0]), each[1], int(each[2], 16)) for each in self.here)


def is_whole(held: Iterable[Blocks | None]) -> bool:
    """Whether members that have these blocks of one object have all blocks of some version together."""
    together: dict[tuple[bytes, int], int] = {}
    for blocks in held:
        if blocks is not None:
            together[blocks[:2]] = together.get(blocks[:2], 0) | blocks[2]
    return any(blocks == (1 << total) - 1 for (_, total), blocks in together.items())
