"""The part of a warm-up or a pin that one member of a cluster fetches: its own blocks, and copies of others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.pins import Share
from outrider.core.model import ObjectRef

if TYPE_CHECKING:
    from outrider.core.cluster.view import View


@dataclass(frozen=True, slots=True)
class OwnPart:
    """The part by the ring, and by the members that are there, of one moment. `copies`: see
    `core.maintenance.copies`."""

    view: View
    layout: BlockLayout
    copies: int = 1

    def has(self, ref: ObjectRef, index: int) -> bool:
        return self.view.keeps(ref, index, self.copies)

    @property
    def own(self) -> OwnPart:
        """The part of which no other member has a copy before this one."""
        return self if self.copies == 1 else replace(self, copies=1)

    def share(self, ref: ObjectRef, size: int) -> Share:
        """The part of an object of `size` bytes."""
        layout, count, blocks = self.layout, 0, 0
        for index in range(layout.count(size)):
            if self.has(ref, index):
                count, blocks = count + layout.extent(index, size).length, blocks | 1 << index
        return Share(count, blocks)

    def is_as(self, view: View) -> bool:
        """Whether `view` divides blocks in the same way."""
        return self.view.ring == view.ring and self.view.acting == view.acting


class KeptPart(OwnPart):
    """The part by the ring alone: a member that is away for a moment keeps its blocks."""

    __slots__ = ()

    def has(self, ref: ObjectRef, index: int) -> bool:
        return self.view.ring.owner(ref, index).name == self.view.me.name

    def is_as(self, view: View) -> bool:
        return self.view.ring == view.ring

    def is_that(self, part: OwnPart | None) -> bool:
        """Whether `part` is the same blocks."""
        return part is not None and self.is_as(part.view)
