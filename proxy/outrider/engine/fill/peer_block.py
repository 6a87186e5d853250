"""The other members of a cluster, as far as a fill needs them. `engine/cluster` implements it, on a higher floor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from outrider.core.model import Extent, ObjectVersion
from outrider.engine.fill.fill_scheduler import FillSlot
from outrider.ports import BlockReceiver, Buffer


class IncomingBody(Protocol):
    """The bytes of an extent in order, taken by `some`, or by `receive` where a thread can. Close it (`aclose`), also
    halfway."""

    @property
    def position(self) -> int:
        """The object's byte that comes next."""
        ...

    async def some(self) -> Buffer:
        """The next bytes, which are not empty unless all have come."""
        ...

    async def in_thread(self) -> bool:
        """Return once a reply is here that brings the next bytes: whether a thread can receive them."""
        ...

    async def receive(self, count: int, sink: BlockReceiver, received: Callable[[int], None]) -> None:
        """Have a thread put up to `count` of the next bytes into `sink`; `received` is called with how many more are
        there. Fewer come if the connection breaks: `position` says how many. The sink is ended in any case. Raises what
        the sink raises, too."""
        ...

    async def aclose(self) -> None: ...


class PeerBody(IncomingBody, Protocol):
    """Raises PeerFailed: no member gives the rest."""

    def check(self, piece: Buffer) -> None:
        """These bytes of the origin, the next ones, complete what the peers began. Raises ContentMismatch: they were
        the last ones, and all together do not have the peer's digest. A reader has wrong bytes of a peer."""
        ...


class PeerBlock(Protocol):
    """One block, as it is asked of other members before the origin. It belongs to one fill, or to one relay."""

    @property
    def is_remote(self) -> bool:
        """The members may ask the origin themselves. False: they are only asked for what lies on their disks, so that
        their answer waits for nobody."""
        ...

    @property
    def gives(self) -> bool:
        """The bytes that come now come from a peer."""
        ...

    @property
    def digest(self) -> str:
        """The digest that the whole block must have (`BlockWriter.expect`), once its first byte came; empty: the peers
        did not send it."""
        ...

    def body(self, extent: Extent, slot: FillSlot | None) -> PeerBody:
        """The bytes of `extent`, all of the block. `slot`: names the class of the read; None: a reader waits."""
        ...

    def refuted(self) -> None:
        """The block received does not have the digest."""
        ...


class PeerReader(Protocol):
    """Reads blocks from the other members of a cluster."""

    def block(self, version: ObjectVersion, index: int) -> PeerBlock | None:
        """How the block is asked of peers; None: no peer is to be asked for it."""
        ...

    def origin_flowed(self, count: int, waited_s: float, *, is_first: bool) -> None:
        """`count` bytes of a body of the origin came after a wait: a peer that is slower is left out. `is_first`: they
        are the first ones of the body."""
        ...
