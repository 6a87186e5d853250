"""Pins: reservations of disk space that must fit side by side, and the versions that must not be evicted.

An object that several pins name is reserved once. A pin names objects, and not versions: when a newer version of a
pinned object comes in, the pin moves to it, and the overwritten version may be evicted.

In a cluster, each member keeps a part of the pinned objects (`Share`): only its blocks are reserved and held here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from outrider.core.errors import NoRoom
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion, VersionIdentity
from outrider.core.text import counted

PinKey = tuple[str, str]
"""The owner of a pin, and the pin's name."""


@dataclass(frozen=True, slots=True)
class SavedPin:
    """A pin as it is stored over a restart. `body`: the list as the client sent it. `at`: when it was pinned, in
    seconds since 1970. `objects`: the pinned objects, each with the identity of its version. `has_ended`: it is over
    since `at`, and the cluster remembers that."""

    owner: str
    client: str
    name: str
    body: str
    at: float
    objects: tuple[tuple[ObjectRef, VersionIdentity], ...]
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """The part of an object that is kept here. `size`: its bytes. `blocks`: bit `i` stands for block `i`; None: all."""

    size: int
    blocks: int | None = None


@dataclass(slots=True)
class _PinnedObject:
    version_id: bytes
    disk_bytes: int
    by: set[PinKey] = field(default_factory=set)


class Pins:
    """Called from one thread. `disk_bytes`: the bytes on disk that an object of a given size takes. `identify`: the
    version id that names a version's blocks."""

    def __init__(self, disk_bytes: Callable[[int], int], identify: Callable[[ObjectVersion], bytes]) -> None:
        self.disk_bytes = disk_bytes
        self._identify = identify
        self.held: dict[ObjectRef, _PinnedObject] = {}
        """The pinned objects."""
        self._pins: dict[PinKey, frozenset[ObjectRef]] = {}
        # The blocks that are held of each version, as in `Share`.
        self._versions: dict[bytes, int | None] = {}
        self.share: Callable[[ObjectRef, int], Share] = lambda ref, size: Share(size)
        """The part of an object of a given size that is kept here; all of it, unless this is replaced."""
        self.reserved_bytes = 0
        """Bytes on disk, for all pins together."""
        self.released = 0
        """How many versions are no longer pinned, since the start."""

    def holds(self, version_id: bytes) -> bool:
        """Whether blocks of this version must not be evicted: those that are kept here."""
        return version_id in self._versions

    def holds_block(self, block: BlockKey) -> bool:
        """Whether this block must not be evicted."""
        blocks = self._versions.get(block.version_id, 0)
        return blocks is None or blocks >> block.index & 1 == 1

    def is_pinned(self, ref: ObjectRef) -> bool:
        return ref in self.held

    def bytes_of(self, pin: PinKey) -> int:
        """The bytes that this pin would reserve if it were the only one."""
        return sum(self.held[ref].disk_bytes for ref in self._pins.get(pin, ()))

    def pin(
        self, pin: PinKey, versions: Iterable[ObjectVersion], room_bytes: int,
        shares: Mapping[ObjectRef, Share] | None = None,
    ) -> None:  # fmt: skip
        """Reserve room for all of `versions`, in place of those that `pin` held before. `room_bytes`: the limit for all
        pins. `shares`: of each object, as `share` returns them; None: they are not known yet.

        Raises:
            NoRoom: the versions do not fit beside the other pins; the message says by how much. Nothing has changed.
        """
        new = {version.ref: version for version in versions}
        if shares is None:
            shares = {ref: self.share(ref, version.size) for ref, version in new.items()}
        need = sum(self.disk_bytes(shares[ref].size) for ref in new if not self._others_hold(ref, pin))
        others = self.reserved_bytes - sum(
            self.held[ref].disk_bytes for ref in self._pins.get(pin, ()) if not self._others_hold(ref, pin)
        )
        if others + need > room_bytes:
            raise NoRoom(
                f"{others + need - room_bytes} bytes are missing: the pin's {counted(len(new), 'object')} would take "
                f"{need} bytes of the cache, other pins hold {others}, and {room_bytes} can be pinned in all."
            )
        self.unpin(pin)
        for ref, version in new.items():
            self._hold(pin, ref, version, shares[ref])
        self._pins[pin] = frozenset(new)

    def unpin(self, pin: PinKey) -> None:
        for ref in self._pins.pop(pin, ()):
            held = self.held[ref]
            held.by.discard(pin)
            if not held.by:
                del self.held[ref]
                self._let_go(held.version_id)
                self.reserved_bytes -= held.disk_bytes

    def divide(self, shares: Mapping[ObjectRef, Share]) -> None:
        """Other parts of these objects are kept here from now on, as far as they are pinned. The limit is the caller's
        affair."""
        for ref, share in shares.items():
            if (held := self.held.get(ref)) is not None:
                self._is_kept(held, held.version_id, share)
        self.released += 1

    def block_cached(self, version: ObjectVersion, version_id: bytes) -> None:
        """A block of `version` has landed, which is the newest known version of its object."""
        held = self.held.get(version.ref)
        if held is not None and held.version_id != version_id:
            self._let_go(held.version_id)
            self._is_kept(held, version_id, self.share(version.ref, version.size))

    def _is_kept(self, held: _PinnedObject, version_id: bytes, share: Share) -> None:
        disk_bytes = self.disk_bytes(share.size)
        self.reserved_bytes += disk_bytes - held.disk_bytes
        self._versions[version_id] = share.blocks
        held.version_id, held.disk_bytes = version_id, disk_bytes

    def _let_go(self, version_id: bytes) -> None:
        self._versions.pop(version_id, None)
        self.released += 1

    def _others_hold(self, ref: ObjectRef, pin: PinKey) -> bool:
        held = self.held.get(ref)
        return held is not None and not held.by <= {pin}

    def _hold(self, pin: PinKey, ref: ObjectRef, version: ObjectVersion, share: Share) -> None:
        held = self.held.get(ref)
        version_id = self._identify(version)
        if held is None:
            held = self.held[ref] = _PinnedObject(version_id, 0)
        elif held.version_id != version_id:
            self._let_go(held.version_id)
        self._is_kept(held, version_id, share)
        held.by.add(pin)
