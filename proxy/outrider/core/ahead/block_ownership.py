"""Which blocks of an object this node owns: all of them, or its part as a member of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.core.ahead.dataset.cached_objects import CachedObject
from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.order.epoch import JobEpoch
from outrider.core.model import ObjectRef

ALL_GUESSES = float("inf")


@dataclass(frozen=True, slots=True)
class ClusterShare:
    """What a member knows of its cluster.

    `mine`: the blocks that this node owns of an object of so many, as bits. `near_bytes`: what the blocks take here
    that others own, which may go for other such blocks. `guessed_max`: so many blocks of guesses may be on their way.
    They wait for all demand of the cluster, and prefetch of known orders must not wait for them.
    """

    mine: Callable[[ObjectRef, int], int]
    near_bytes: Callable[[], int]
    guessed_max: float


class BlockOwnership:
    """Blocks of an object are bits of an int: bit `i` stands for block `i`."""

    def __init__(self) -> None:
        self.cluster: ClusterShare | None = None
        """None: this node is by itself, and owns all blocks."""

    @property
    def guessed_max(self) -> float:
        """So many blocks of guesses may be on their way."""
        return ALL_GUESSES if self.cluster is None else self.cluster.guessed_max

    def bits_of(self, dataset: Dataset, index: int, count: int) -> int:
        """The blocks that this node owns of an object of `count` blocks."""
        every = (1 << count) - 1
        if self.cluster is None:
            return every
        return self.cluster.mine(ObjectRef(dataset.bucket, dataset.names.keys[index]), count) & every

    def owns(self, cached: CachedObject, block: int) -> bool:
        return self.cluster is None or self.bits_of(cached.dataset, cached.index, cached.blocks) >> block & 1 == 1

    def blocks_of(self, ref: ObjectRef, count: int) -> Sequence[int]:
        """The numbers of the blocks that this node owns."""
        if self.cluster is None:
            return range(count)
        bits = self.cluster.mine(ref, count)
        return [block for block in range(count) if bits >> block & 1]

    def is_shared(self, dataset: Dataset, epoch: JobEpoch, free_bytes: int, object_bytes: int) -> bool:
        """Whether only owned blocks are fetched of an object that takes `object_bytes` on disk. Each member of the
        cluster fetches what it owns. Only where a reader of this node has a known order are the blocks of others
        fetched ahead of it, as long as there is room for them: they displace no owned ones."""
        if self.cluster is None:
            return False
        if not (epoch.order_known and dataset.job_table.is_read_here(epoch)):
            return True
        return free_bytes + self.cluster.near_bytes() < object_bytes
