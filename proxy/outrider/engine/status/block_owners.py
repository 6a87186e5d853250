"""Tells which members own the blocks of an object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from outrider.core.block_layout import BlockLayout
from outrider.core.cluster.ownership import Ring
from outrider.core.cluster.view import View
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion

# The owners of more blocks are summed up, and not told one by one.
_BLOCKS_TOLD = 256
# The first blocks of a larger object are summed up, and no others: half a second of work with 128 members.
_BLOCKS_COUNTED = 16_384
_OWNERS_TOLD = 3


class Versions(Protocol):
    """The version cache."""

    def likely(self, ref: ObjectRef) -> ObjectVersion | None: ...


class VersionLookup(Protocol):
    """The version lookup."""

    async def ask(self, ref: ObjectRef, first_byte: int | None) -> ObjectVersion: ...


class Store(Protocol):
    """The blocks on this node's disk."""

    def has(self, key: BlockKey) -> bool: ...


class BlockOwners:
    """Called on the engine's loop. `view`: the members of now."""

    def __init__(
        self, layout: BlockLayout, view: Callable[[], View], versions: Versions, lookup: VersionLookup, store: Store
    ) -> None:
        self._layout = layout
        self._view = view
        self._versions = versions
        self._lookup = lookup
        self._store = store

    async def told(self, ref: ObjectRef) -> dict[str, Any]:
        """The owners of each block in the order in which they are to be asked. The bucket is asked for the size of an
        object that is not known.

        Raises what `VersionLookup.ask` raises.
        """
        version = self._versions.likely(ref) or await self._lookup.ask(ref, None)
        view, layout = self._view(), self._layout
        count = layout.count(version.size)
        counted = min(count, _BLOCKS_COUNTED)
        # In a thread, and not by the ring of reads: its memo holds the blocks that readers are at.
        orders = await asyncio.to_thread(_orders, Ring(view.ring.members), ref, counted)
        shares = {member.name: {"blocks": 0, "bytes": 0} for member in view.ring.members}
        for index, order in enumerate(orders):
            shares[order[0]]["blocks"] += 1
            shares[order[0]]["bytes"] += layout.extent(index, version.size).length
        return {
            "object": str(ref),
            "size": version.size,
            "block_bytes": layout.block_bytes,
            "blocks": count,
            "ring": view.ring.digest,
            "authority": view.ring.authority(ref).name,
            "alive": sorted({view.me.name, *view.alive}),
            "shares": shares,
            "shares_of_blocks": counted,
            "owners": [
                {
                    "index": index,
                    "owners": order[:_OWNERS_TOLD],
                    "asked": view.acting_owner(ref, index).name,
                    "here": self._store.has(layout.key(version, index)),
                }
                for index, order in enumerate(orders[:_BLOCKS_TOLD])
            ],
        }


def _orders(ring: Ring, ref: ObjectRef, count: int) -> list[list[str]]:
    return [[member.name for member in ring.owners(ref, index)[:_OWNERS_TOLD]] for index in range(count)]
