"""The layout of blocks: how an object is cut into blocks of one size, and how each block is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from outrider.core.memo import Memo
from outrider.core.model import BlockKey, Extent, ObjectVersion

# Results of `version_id` that a layout remembers: one read asks some eight times, in different modules.
_IDS_MAX = 256

# One block is read, one is written, and two come ahead of the reader.
BLOCKS_FEW = 4
"""A cache with room for fewer blocks is hardly one."""


def block_count(size: int, block_bytes: int) -> int:
    """How many blocks an object of `size` bytes has; an empty one has none."""
    return -(-size // block_bytes)


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Block `i` of an object is its bytes `[i * block_bytes, (i + 1) * block_bytes)`; the last block is cut at the
    object's end. `origin`: the endpoint that the objects are read from.

    Two versions, or one version under two layouts, never share a block's name. Methods may be called from any thread.
    """

    origin: str
    block_bytes: int
    # By identity of the version: to compare, or to hash, all its fields takes as long as the digest. The version is
    # kept beside its digest, so that its identity is not given to another object meanwhile.
    _ids: Memo[int, tuple[ObjectVersion, bytes]] = field(
        default_factory=lambda: Memo(_IDS_MAX), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.block_bytes <= 0:
            raise ValueError(f"not a block size: {self.block_bytes}")

    # -- names ------------------------------------------------------------------------------------------------------

    def version_id(self, version: ObjectVersion) -> bytes:
        """A 16-byte name for everything that makes the blocks of `version` what they are: origin, bucket, key, identity
        and block size.

        Fields are length-prefixed: no two versions share an input by moving a separator. A date comes last, and only
        where there is one.
        """
        known = self._ids.get(id(version))
        if known is not None and known[0] is version:
            return known[1]
        ref, (etag, size, modified) = version.ref, version.identity
        dated = (modified,) if modified else ()
        fields = bytearray()
        for text in (self.origin, ref.bucket, ref.key, etag, str(size), str(self.block_bytes), *dated):
            raw = text.encode("utf-8", "surrogateescape")
            fields += len(raw).to_bytes(4, "big") + raw
        found = blake2b(fields, digest_size=16).digest()
        self._ids.put(id(version), (version, found))
        return found

    def key(self, version: ObjectVersion, index: int) -> BlockKey:
        return BlockKey(self.version_id(version), index)

    # -- places -----------------------------------------------------------------------------------------------------

    def index_of(self, position: int) -> int:
        """The block that holds the object's byte `position`."""
        return position // self.block_bytes

    def extent(self, index: int, size: int) -> Extent:
        """Where block `index` lies in an object of `size` bytes."""
        start = index * self.block_bytes
        return Extent(start, min(start + self.block_bytes, size))

    def count(self, size: int) -> int:
        """How many blocks an object of `size` bytes has."""
        return block_count(size, self.block_bytes)

    def indexes(self, extent: Extent) -> range:
        """The blocks that hold the bytes of `extent`."""
        if extent.start == extent.stop:
            return range(0)
        return range(extent.start // self.block_bytes, block_count(extent.stop, self.block_bytes))

    def disk_bytes(self, size: int, of_block: Callable[[int], int]) -> int:
        """How many bytes an object of `size` bytes takes on disk. `of_block`: how many one block of a given length
        takes."""
        whole, rest = divmod(size, self.block_bytes)
        return whole * of_block(self.block_bytes) + (of_block(rest) if rest else 0)


# A cache directory states the layout with each block. It names few: those of the origins and block sizes in use so far.
@lru_cache(maxsize=64)
def shared_layout(origin: str, block_bytes: int) -> BlockLayout:
    """The layout, held once for all blocks that were written under it."""
    return BlockLayout(origin, block_bytes)
