"""Which members own the blocks of an object."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from outrider.core.block_layout import BlockLayout
from outrider.core.cluster.ownership import Ring
from outrider.core.cluster.view import View
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion

# The owners of more blocks are summed up, and not shown one by one.
_BLOCKS_SHOWN = 256
# The first blocks of a larger object are summed up, and no others: half a second of work with 128 members.
_BLOCKS_COUNTED = 16_384
_OWNERS_SHOWN = 3


async def owners_of(
    layout: BlockLayout, view: Callable[[], View], likely: Callable[[ObjectRef], ObjectVersion | None],
    lookup: Callable[[ObjectRef, int | None], Awaitable[ObjectVersion]], has: Callable[[BlockKey], bool],
    ref: ObjectRef,
) -> dict[str, Any]:  # fmt: skip
    """The owners of each block in the order in which they are to be asked. The bucket is asked for the size of an
    object that is not known.

    `view`: the members of now. `likely`: the version that this node knows; None: none. `lookup`: see
    `VersionLookup.ask`, and raises what that raises. `has`: whether a block is on this node's disk.
    """
    version, now = likely(ref) or await lookup(ref, None), view()
    count = layout.count(version.size)
    counted = min(count, _BLOCKS_COUNTED)
    # In a thread, and not by the ring of reads: its memo holds the blocks that readers are at.
    orders = await asyncio.to_thread(_orders, Ring(now.ring.members), ref, counted)
    shares = {member.name: {"blocks": 0, "bytes": 0} for member in now.ring.members}
    for index, order in enumerate(orders):
        shares[order[0]]["blocks"] += 1
        shares[order[0]]["bytes"] += layout.extent(index, version.size).length
    return {
        "object": str(ref),
        "size": version.size,
        "block_bytes": layout.block_bytes,
        "blocks": count,
        "ring": now.ring.digest,
        "authority": now.ring.authority(ref).name,
        "alive": sorted({now.me.name, *now.alive}),
        "shares": shares,
        "shares_of_blocks": counted,
        "owners": [
            {
                "index": index,
                "owners": order[:_OWNERS_SHOWN],
                "asked": now.taker(ref, index).name,
                "here": has(layout.key(version, index)),
            }
            for index, order in enumerate(orders[:_BLOCKS_SHOWN])
        ],
    }


def _orders(ring: Ring, ref: ObjectRef, count: int) -> list[list[str]]:
    return [[member.name for member in ring.owners(ref, index)[:_OWNERS_SHOWN]] for index in range(count)]
