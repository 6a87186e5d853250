"""The map of datasets over the cluster: which member holds which share of each, as the members report it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.planner import Planner
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import SHARES_MAX, DatasetShare, DatasetShares, SharesRequest
from outrider.core.cluster.object_samples import KnownObject, ObjectSample, Union
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.cluster.view import View
from outrider.core.insight.dataset_map import data_bytes
from outrider.core.model import ObjectRef
from outrider.engine.status.held_datasets import samples
from outrider.ports import Clock, PeerTransport

# An answer is repeated for so long: pages that are open ask again and again.
_FRESH_S = 2.0
# To find a block's owner takes 4 us for 8 members. The part of a dataset that is owned is estimated from so many
# blocks, but from some objects at least; of large objects only the first blocks are looked at.
_BLOCKS_SAMPLED, _OBJECTS_SAMPLED_MIN = 2048, 16
_FIRST_BLOCKS = (1 << 512) - 1

Mine = Callable[[ObjectRef, int], int]
"""The blocks that this node owns of an object of so many, as bits; see `Planner.join`."""


async def own_shares(planner: Planner, mine: Mine) -> list[DatasetShare]:
    """The part of each dataset that this node has, the largest first. Each takes some milliseconds after the ring
    has changed."""
    return [
        DatasetShare(
            dataset.bucket, dataset.template, len(dataset.names.keys), data_bytes(dataset), dataset.kept_bytes,
            round(dataset.kept_bytes * _copied_part(dataset, mine)),
            tuple((each.number, each.size) for each in sample.objects), sample.below,
        )
        async for dataset, sample in samples(planner, SHARES_MAX, lambda cached: cached.present)
    ]  # fmt: skip


def _copied_part(dataset: Dataset, mine: Mine) -> float:
    """The part of the blocks on disk that other members own."""
    cached = list(dataset.cached)
    if not cached:
        return 0.0
    objects = max(_OBJECTS_SAMPLED_MIN, _BLOCKS_SAMPLED // max(1, dataset.cached[cached[0]].blocks))
    present = owned = 0
    for index in cached[:: -(-len(cached) // objects)]:
        each = dataset.cached[index]
        blocks = each.present & _FIRST_BLOCKS
        present += blocks.bit_count()
        owned += (blocks & mine(ObjectRef(dataset.bucket, dataset.names.keys[index]), each.blocks)).bit_count()
    return 1 - owned / present if present else 0.0


class ClusterMap:
    """Called on the engine's loop."""

    def __init__(
        self, own: Callable[[], Awaitable[Sequence[DatasetShare]]], view: Callable[[], View], transport: PeerTransport,
        clock: Clock,
    ) -> None:  # fmt: skip
        self._own = own
        self._view = view
        self._transport = transport
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._map: dict[str, Any] | None = None
        self._made_at = 0.0

    async def document(self) -> dict[str, Any]:
        """The datasets, those with the most bytes first, with the part of each member; and which members of this node's
        cache did not answer. It is up to two seconds old."""
        async with self._one_at_a_time:
            if self._map is None or self._clock() - self._made_at >= _FRESH_S:
                self._map = await self._made()
                self._made_at = self._clock()
            return self._map

    async def _made(self) -> dict[str, Any]:
        view = self._view()
        others = [member.name for member in view.ring.members if member.name != view.me.name]
        silent = {name: "away" for name in others if name not in view.alive}
        alive = [view.alive[name] for name in others if name in view.alive]
        shares: dict[str, Sequence[DatasetShare]] = {view.me.name: await self._own()}
        for member, answer in zip(alive, await asyncio.gather(*map(self._shares_of, alive)), strict=True):
            if isinstance(answer, PeerFailed):
                silent[member.name] = answer.why
            else:
                shares[member.name] = answer
        return {
            "name": view.me.name,
            "members": sorted(shares),
            "silent": [{"name": name, "why": why} for name, why in sorted(silent.items())],
            "datasets": added_up(shares),
        }

    async def _shares_of(self, member: Member) -> Sequence[DatasetShare] | PeerFailed:
        try:
            question = SharesRequest(self._view().me.name)
            return (await self._transport.request(member, question, DatasetShares)).datasets
        except PeerFailed as error:
            return error


def added_up(shares: Mapping[str, Sequence[DatasetShare]]) -> list[dict[str, Any]]:
    """The datasets by what the members have of each. `held`: the part of the dataset that the cluster has, copies of
    the same block counted once. The size is that of all objects that any member knows."""
    by_name: dict[tuple[str, str], dict[str, DatasetShare]] = {}
    for member, its in sorted(shares.items()):
        for share in its:
            by_name.setdefault((share.bucket, share.name), {})[member] = share
    rows = [_row(bucket, name, its) for (bucket, name), its in by_name.items()]
    return sorted(rows, key=lambda row: (-row["held_bytes"], row["bucket"], row["name"]))


def _row(bucket: str, name: str, its: Mapping[str, DatasetShare]) -> dict[str, Any]:
    known = {
        member: ObjectSample([KnownObject(*each, 0) for each in share.known], share.below)
        for member, share in its.items()
    }
    # A member before 0.3 reports no objects. The one that knows most then has the size.
    best, union = max(its.values(), key=lambda share: (share.objects, share.size)), Union(known)
    size = max(best.size, union.size)
    owned = sum(share.held_bytes - share.near_bytes for share in its.values())
    return {
        "bucket": bucket,
        "name": name,
        "objects": max(best.objects, union.objects),
        "bytes": size,
        "held_bytes": min(owned, size) if size else owned,
        "held": min(1.0, owned / size) if size else 0.0,
        "copies_bytes": sum(share.near_bytes for share in its.values()),
        "members": {
            member: {
                "bytes": share.held_bytes,
                "copies_bytes": share.near_bytes,
                "share": min(1.0, share.held_bytes / size) if size else 0.0,
            }
            for member, share in its.items()
        },
    }
