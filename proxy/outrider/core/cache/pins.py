"""Pins: reservations of disk space that must fit side by side, and the versions that must not be evicted.

An object that several pins name is reserved once. A pin names objects, and not versions: when a newer version of a
pinned object comes in, the pin moves to it, and the overwritten version may be evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from outrider.core.errors import NoRoom
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.text import counted

PinKey = tuple[str, str]
"""The owner of a pin, and the pin's name."""


@dataclass(frozen=True, slots=True)
class SavedPin:
    """A pin as it is stored over a restart. `body`: the list as the client sent it. `at`: when it was pinned, in
    seconds since 1970. `objects`: the pinned objects with their ETags and sizes."""

    owner: str
    client: str
    name: str
    body: str
    at: float
    objects: tuple[tuple[ObjectRef, str, int], ...]


@dataclass(slots=True)
class _Pinned:
    version_id: bytes
    disk_bytes: int
    by: set[PinKey] = field(default_factory=set)


class Pins:
    """Called from one thread. `disk_bytes`: the bytes on disk that an object of a given size takes. `identify`: the
    version id that names a version's blocks."""

    def __init__(self, disk_bytes: Callable[[int], int], identify: Callable[[ObjectVersion], bytes]) -> None:
        self.disk_bytes = disk_bytes
        self._identify = identify
        self._held: dict[ObjectRef, _Pinned] = {}
        self._pins: dict[PinKey, frozenset[ObjectRef]] = {}
        self._versions: set[bytes] = set()
        self.reserved_bytes = 0
        """Bytes on disk, for all pins together."""
        self.released = 0
        """How many versions are no longer pinned, since the start."""

    def holds(self, version_id: bytes) -> bool:
        """Whether blocks of this version must not be evicted."""
        return version_id in self._versions

    def is_pinned(self, ref: ObjectRef) -> bool:
        return ref in self._held

    def bytes_of(self, pin: PinKey) -> int:
        """The bytes that this pin would reserve if it were the only one."""
        return sum(self._held[ref].disk_bytes for ref in self._pins.get(pin, ()))

    def pin(self, pin: PinKey, versions: Iterable[ObjectVersion], room_bytes: int) -> None:
        """Reserve room for all of `versions`, in place of those that `pin` held before. `room_bytes`: the limit for all
        pins.

        Raises:
            NoRoom: the versions do not fit beside the other pins; the message says by how much. Nothing has changed.
        """
        new = {version.ref: version for version in versions}
        need = sum(self.disk_bytes(version.size) for ref, version in new.items() if not self._others_hold(ref, pin))
        others = self.reserved_bytes - sum(
            self._held[ref].disk_bytes for ref in self._pins.get(pin, ()) if not self._others_hold(ref, pin)
        )
        if others + need > room_bytes:
            raise NoRoom(
                f"{others + need - room_bytes} bytes are missing: the pin's {counted(len(new), 'object')} would take "
                f"{need} bytes of the cache, other pins hold {others}, and {room_bytes} can be pinned in all."
            )
        self.unpin(pin)
        for ref, version in new.items():
            self._hold(pin, ref, version)
        self._pins[pin] = frozenset(new)

    def unpin(self, pin: PinKey) -> None:
        for ref in self._pins.pop(pin, ()):
            held = self._held[ref]
            held.by.discard(pin)
            if not held.by:
                del self._held[ref]
                self._let_go(held.version_id)
                self.reserved_bytes -= held.disk_bytes

    def block_came(self, version: ObjectVersion, version_id: bytes) -> None:
        """A block of `version` came in, which is the newest known version of its object."""
        held = self._held.get(version.ref)
        if held is not None and held.version_id != version_id:
            self._let_go(held.version_id)
            self._versions.add(version_id)
            self.reserved_bytes += (disk_bytes := self.disk_bytes(version.size)) - held.disk_bytes
            held.version_id, held.disk_bytes = version_id, disk_bytes

    def _let_go(self, version_id: bytes) -> None:
        self._versions.discard(version_id)
        self.released += 1

    def _others_hold(self, ref: ObjectRef, pin: PinKey) -> bool:
        held = self._held.get(ref)
        return held is not None and not held.by <= {pin}

    def _hold(self, pin: PinKey, ref: ObjectRef, version: ObjectVersion) -> None:
        held = self._held.get(ref)
        if held is None:
            held = self._held[ref] = _Pinned(self._identify(version), self.disk_bytes(version.size))
            self._versions.add(held.version_id)
            self.reserved_bytes += held.disk_bytes
        else:
            self.block_came(version, self._identify(version))
        held.by.add(pin)
