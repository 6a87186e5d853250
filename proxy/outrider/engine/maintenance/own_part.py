"""The part of a warm-up that one member of a cluster brings: the blocks that it owns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.core.block_layout import BlockLayout
from outrider.core.model import ObjectRef

if TYPE_CHECKING:
    from outrider.core.cluster.view import View


@dataclass(frozen=True, slots=True)
class OwnPart:
    """The part by the ring, and by the members that are there, of one moment."""

    view: View
    layout: BlockLayout

    def has(self, ref: ObjectRef, index: int) -> bool:
        return self.view.is_mine(ref, index)

    def bytes_of(self, ref: ObjectRef, size: int) -> int:
        """The bytes of an object of `size` bytes that are this member's."""
        layout = self.layout
        return sum(
            layout.extent(index, size).length for index in range(layout.count(size)) if self.view.is_mine(ref, index)
        )

    def is_as(self, view: View) -> bool:
        """Whether `view` divides blocks in the same way."""
        return self.view.ring == view.ring and self.view.takers == view.takers
