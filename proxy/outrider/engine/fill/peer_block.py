"""The other members of a cluster, as far as a fill needs them. `engine/cluster` implements it, on a higher floor."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from outrider.core.model import Extent, ObjectVersion
from outrider.engine.fill.fill_scheduler import FillSlot
from outrider.engine.fill.sinks import SinkAt
from outrider.ports import Chunks


class PeerBlock(Protocol):
    """One block, as it is asked of other members before the origin. It belongs to one fill, or to one relay."""

    @property
    def is_remote(self) -> bool:
        """The members may ask the origin themselves. False: they are only asked for what lies on their disks, so that
        their answer waits for nobody."""
        ...

    @property
    def receives_in_threads(self) -> bool:
        """See `ports.Origin`."""
        ...

    @property
    def gives(self) -> bool:
        """The bytes that come now come from a peer."""
        ...

    @property
    def digest(self) -> str:
        """The digest that the whole block must have (`BlockWriter.expect`), once its first byte came; empty: the peers
        did not tell."""
        ...

    def stream(self, extent: Extent, slot: FillSlot | None) -> Chunks:
        """The bytes of `extent`, all of the block. `slot`: tells the class of the read; None: a reader waits.

        Raises:
            PeerFailed: no member gives the rest.
        """
        ...

    def checked(self, rest: Chunks, count: int) -> Chunks:
        """`rest`: the `count` bytes, of the origin, that complete what `stream` began. The last of them come only if
        all bytes together have the digest. Raises ContentMismatch: a reader has wrong bytes of a peer."""
        ...

    def receive(self, extent: Extent, sink_at: SinkAt, slot: FillSlot | None) -> AsyncGenerator[int, None]:
        """As `stream`, put into sinks by a thread. Raises what the sinks raise, too."""
        ...

    def refuted(self) -> None:
        """The block that came does not have the digest."""
        ...


class PeerReader(Protocol):
    """Reads blocks from the other members of a cluster."""

    def block(self, version: ObjectVersion, index: int) -> PeerBlock | None:
        """How the block is asked of peers; None: no peer is to be asked for it."""
        ...

    def origin_flowed(self, count: int, waited_s: float) -> None:
        """`count` bytes of a body of the origin came after a wait: a peer that is slower is left out."""
        ...
