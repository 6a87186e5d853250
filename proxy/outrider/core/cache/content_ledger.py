"""The CRCs of the blocks of large objects, and whether they add up to the checksum that the bucket states.

An object is proved once each of its blocks has been here, not necessarily at the same time: the CRC of a block that was
evicted stays. A block of a proved object that comes anew is proved by its own CRC alone.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from collections import OrderedDict
from enum import Enum
from typing import Any

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import BlockMeta
from outrider.core.model import ObjectVersion
from outrider.core.s3.checksums import ContentProof, Kind, combined

# The blocks of all objects in the ledger, at most. Each takes 9 bytes.
_BLOCKS_MAX = 4_000_000
_VERSIONS_MAX = 200_000


class CrcFinding(Enum):
    """The news that the CRC of a block is."""

    WAITING = "other blocks are not known yet"
    WHOLE = "the CRC of each block is known"
    PROVED = "the block is the one that was proved before"
    CHANGED = "the block had another CRC when it came before"


class Content:
    """The blocks of one version. `stated`: the bucket's checksum; None: it was not asked yet, or has stated none."""

    __slots__ = ("_crcs", "_known", "is_requested", "kind", "layout", "missing", "proved", "stated", "version")

    def __init__(self, layout: BlockLayout, version: ObjectVersion, kind: Kind) -> None:
        self.layout = layout
        self.version = version
        self.stated: ContentProof | None = None
        self.is_requested = False
        """The bucket was asked for its checksum."""
        self.proved = False
        self._clear(kind)

    def _clear(self, kind: Kind) -> None:
        assert kind.is_crc
        count = self.layout.count(self.version.size)
        self.kind = kind
        self._crcs = array("Q", bytes(8 * count))
        self._known = bytearray(count)
        self.missing = count
        self.proved = False

    @property
    def blocks(self) -> int:
        return len(self._crcs)

    def knows(self, index: int) -> bool:
        """Whether the CRC of the block is known."""
        return bool(self._known[index])

    def add(self, index: int, digest: bytes) -> CrcFinding:
        crc = int.from_bytes(digest, "big")
        if self._known[index]:
            if self._crcs[index] != crc:
                return CrcFinding.CHANGED
        else:
            self._known[index] = 1
            self._crcs[index] = crc
            self.missing -= 1
        if self.proved:
            return CrcFinding.PROVED
        return CrcFinding.WAITING if self.missing else CrcFinding.WHOLE

    def drop(self, index: int) -> None:
        """The CRC of the block is not to be relied on."""
        self.missing += self._known[index]
        self._known[index] = 0

    def restart(self, kind: Kind | None = None) -> None:
        """Forget all CRCs. `kind`: the one to be computed from now on; None: the same as before."""
        self._clear(kind or self.kind)

    def digest(self) -> bytes:
        """The CRC of the whole object. All blocks are known."""
        assert not self.missing
        lengths = (self.layout.extent(index, self.version.size).length for index in range(self.blocks))
        return combined(self.kind, zip(self._crcs, lengths, strict=True))

    # -- over a stop and a start --------------------------------------------------------------------------------------

    def saved(self) -> list[Any]:
        """Values fit for JSON, for `load` on the same machine: numbers are in its byte order."""
        known = "" if not self.missing else b64encode(self._known).decode("ascii")
        return [self.kind.value, self.proved, b64encode(self._crcs).decode("ascii"), known]

    def load(self, saved: object) -> None:
        """Raises ValueError, TypeError: it was not saved by `saved`, of this version."""
        if not isinstance(saved, list) or len(saved) != 4:
            raise TypeError("four values")
        kind, proved, crcs, known = saved
        its = Kind(kind)
        if not its.is_crc:
            raise ValueError("not a CRC")
        values, flags = b64decode(crcs, validate=True), b64decode(known, validate=True) or b"\1" * self.blocks
        if len(values) != 8 * self.blocks or len(flags) != self.blocks or max(flags) > 1:
            raise ValueError("other blocks")
        self._clear(its)
        self._crcs = array("Q", values)
        self._known[:] = flags
        self.missing = flags.count(0)
        self.proved = proved is True


class ContentLedger:
    """The contents by version id. Bounded: the one that was used longest ago is forgotten first."""

    def __init__(self, blocks_max: int = _BLOCKS_MAX, versions_max: int = _VERSIONS_MAX) -> None:
        self._blocks_max = blocks_max
        self._versions_max = versions_max
        self._contents: OrderedDict[bytes, Content] = OrderedDict()
        self._blocks = 0

    def __len__(self) -> int:
        return len(self._contents)

    def get(self, version_id: bytes) -> Content | None:
        return self._contents.get(version_id)

    def of(self, meta: BlockMeta, version_id: bytes, kind: Kind) -> Content:
        """The content of the block's version, entered now if it is new. `kind`: for a new one."""
        content = self._contents.get(version_id)
        if content is None:
            content = self._contents[version_id] = Content(meta.layout, meta.version, kind)
            self._blocks += content.blocks
            while len(self._contents) > 1 and self._is_full():
                self._blocks -= self._contents.popitem(last=False)[1].blocks
        self._contents.move_to_end(version_id)
        return content

    def _is_full(self) -> bool:
        return self._blocks > self._blocks_max or len(self._contents) > self._versions_max

    def forget(self, version_id: bytes) -> None:
        content = self._contents.pop(version_id, None)
        if content is not None:
            self._blocks -= content.blocks


class Verdict(Enum):
    """The result of the comparison of a body with an ETag that may be its MD5."""

    SAME = "the ETag is the MD5 of the body"
    OTHER = "the ETag is the MD5 of another body"
    NO_MD5 = "the ETag is no MD5"


# After a bucket turned out to have other ETags, one in so many objects is compared all the same.
_PROBE = 64
_COMPUTED_MAX = 10_000


class Md5Etags:
    """Whether the ETags of a bucket are MD5s. An ETag of 32 hexadecimal digits may be anything: S3 promises an MD5 only
    for some uploads, and other stores promise nothing.

    A bit that turned on the way does not turn twice in the same place. So an object whose bytes were the same at two
    fetches, and have another MD5 than the ETag, shows that the bucket's ETags are something else; unless other objects
    of the bucket had the right MD5.
    """

    def __init__(self) -> None:
        # By version id, the MD5 of a body that did not match.
        self._computed: OrderedDict[bytes, bytes] = OrderedDict()
        self._are: dict[str, bool] = {}
        self._passed: dict[str, int] = {}

    def are_known(self, bucket: str) -> bool:
        """Whether it is known of the bucket's ETags that they are MD5s, or that they are none."""
        return bucket in self._are

    def compares(self, bucket: str) -> bool:
        """Whether the next object of the bucket is to be compared."""
        if self._are.get(bucket, True):
            return True
        self._passed[bucket] = self._passed.get(bucket, 0) + 1
        return self._passed[bucket] % _PROBE == 0

    def judge(self, bucket: str, version_id: bytes, stated: bytes, computed: bytes) -> Verdict:
        if stated == computed:
            self._are[bucket] = True
            self._computed.pop(version_id, None)
            return Verdict.SAME
        if self._are.get(bucket) is False:
            return Verdict.NO_MD5
        before = self._computed.pop(version_id, None)
        self._computed[version_id] = computed
        if len(self._computed) > _COMPUTED_MAX:
            self._computed.popitem(last=False)
        if before == computed and bucket not in self._are:
            self._are[bucket] = False
            return Verdict.NO_MD5
        return Verdict.OTHER
