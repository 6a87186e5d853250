"""The verification of content: the bytes received are compared with what the bucket itself knows of the object.

1. An object of one block comes by one reply. If that reply states a checksum of the whole object, or an ETag that is
   its MD5, the fill hashes the body as it passes (`BodyCheck`). The last bytes are handed out only if the hash is
   right; of an object up to 64 KiB, no byte is handed out before.
2. The blocks of a large object are hashed by the disk's threads, beside the block's own checksum. The CRCs go into the
   ledger. Once half of the blocks are known, one HEAD asks the bucket for the checksum, in the background. When the
   last block is known, the CRCs are combined and compared.
3. A mismatch drops the blocks that may be wrong, cuts the readers under way, and makes the version unknown: the next
   read fetches it again. After a second mismatch the object is relayed uncached for a while.
4. Where the bucket states nothing, nothing is claimed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cachetools import LRUCache, TTLCache

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.content_ledger import Content, ContentLedger, CrcFinding, Md5Etags, Verdict
from outrider.core.errors import VersionChanged
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion
from outrider.core.origin.oddities import Uncached
from outrider.core.s3.checksums import MD5_BYTES_MAX, ContentProof, Kind, checksum_of, small_proof_of
from outrider.engine.fill.background_checksums import BackgroundChecksums
from outrider.engine.fill.body_check import BodyCheck, Judgement
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.tasks.runtime import Runtime
from outrider.metrics import Metrics

log = logging.getLogger(__name__)

# AWS S3 computes it for each object that comes without a checksum, since December 2024.
_FIRST_KIND = Kind.CRC64NVME
# A mismatch is the second one within this time of the first.
_MISMATCHES_S = 3600.0
# For how long an object that did not match twice is relayed, and not fetched for the cache.
_RELAYED_S = 600.0
_MISMATCHES_MAX = 10_000
_LOGGED_BLOCKS_MAX = 20
# A reader gets the bytes of an object up to this size once all are here and found right. They come within a few
# milliseconds of each other, and it needs them all.
_HELD_BYTES_MAX = 64 * 1024
# The bytes of the object that is a bucket's first to be compared with an ETag: it may turn out to be no MD5.
_HELD_IN_DOUBT_BYTES_MAX = MD5_BYTES_MAX


class ContentMismatch(VersionChanged):
    """The bytes received are not those of the version, by what the bucket knows of it."""


class VerifiedBlocks(Protocol):
    """The block store, as far as the verification needs it."""

    def has(self, block: BlockKey) -> bool: ...

    def is_proved(self, block: BlockKey) -> bool: ...

    def prove(self, blocks: Iterable[BlockKey]) -> None:
        """The blocks are those that the bucket has. Blocks that are not here are passed over."""
        ...

    def expel(self, blocks: Iterable[BlockKey]) -> None:
        """Drop the blocks at once, also pinned ones and those that are being read: no byte of them is sent any more."""
        ...

    async def verify(self, block: BlockKey, *, again: bool = True) -> int: ...


@dataclass(frozen=True, slots=True)
class Listeners:
    """The parts of the engine that are notified of findings.

    `forget`: makes a version unknown, and returns the number of changes of the version cache. `known`: the version of
    which the version cache has. `proved`: blocks of this version id are proved, one or all that are here (None).
    """

    forget: Callable[[ObjectRef], int] = lambda ref: 0
    known: Callable[[ObjectRef], ObjectVersion | None] = lambda ref: None
    proved: Callable[[bytes, int | None], None] = lambda version_id, index: None


@dataclass(frozen=True, slots=True)
class _Mismatch:
    """The bytes of `blocks` together have `digest`, and `proof` says otherwise. `proof` None: they had another one when
    they came before."""

    version: ObjectVersion
    version_id: bytes
    blocks: Sequence[int]
    proof: ContentProof | None
    digest: bytes


class ContentVerification:
    """Called on the engine's thread. One for each proxy; `connect` before the first block comes."""

    def __init__(
        self, layout: BlockLayout, origin_reader: OriginReader, runtime: Runtime, metrics: Metrics, *, on: bool = True
    ) -> None:
        """`on` False: nothing is verified, and no question is asked."""
        self.on = on
        self._layout = layout
        self._origin_reader = origin_reader
        self._runtime = runtime
        self._metrics = metrics
        self._ledger = ContentLedger()
        self._md5_etags = Md5Etags()
        self._kinds: dict[str, Kind] = {}
        self._mismatches: TTLCache[bytes, int] = TTLCache(_MISMATCHES_MAX, _MISMATCHES_S, runtime.clock)
        self._relayed: TTLCache[ObjectRef, None] = TTLCache(_MISMATCHES_MAX, _RELAYED_S, runtime.clock)
        self._condemned: LRUCache[bytes, int] = LRUCache(_MISMATCHES_MAX)
        self.has_mismatched = False
        """Whether any bytes were found wrong so far. Each piece of each body asks."""
        self._computing: set[bytes] = set()
        self._listeners = Listeners()
        self._store: VerifiedBlocks
        self.questions = BackgroundChecksums(origin_reader, runtime, self._answered)

    def connect(self, store: VerifiedBlocks, listeners: Listeners) -> None:
        self._store = store
        self._listeners = listeners

    # -- for readers and fills ----------------------------------------------------------------------------------------

    def relays(self, ref: ObjectRef) -> bool:
        """Whether the object is relayed uncached, because its bytes did not match twice."""
        return self.has_mismatched and ref in self._relayed

    def relayed(self) -> None:
        """Count a read that is relayed for that reason."""
        self._origin_reader.oddities.uncached(Uncached.CONTENT)

    def condemned_at(self, version_id: bytes) -> int:
        """The number of changes of the version cache at which bytes of this version were last found wrong; 0: never. A
        reader that began before has sent some of them, and is to be cut."""
        return int(self._condemned.get(version_id, 0)) if self.has_mismatched else 0

    def check_for(self, meta: BlockMeta) -> BodyCheck | None:
        """The check for a fill that brings the block in order, by one hash. None: it is not the whole object, or the
        replies so far prove nothing about it."""
        proof = self._small_proof(meta)
        if proof is None:
            return None
        in_doubt = proof.kind is Kind.MD5 and not self._md5_etags.are_known(meta.version.ref.bucket)
        held = _HELD_IN_DOUBT_BYTES_MAX if in_doubt else _HELD_BYTES_MAX
        return BodyCheck(meta, proof, self._judged, held_bytes_max=held)

    # -- for the store: see `ports.Contents` --------------------------------------------------------------------------

    def kind_for(self, meta: BlockMeta) -> Kind | None:
        if not self.on or self.relays(meta.version.ref):
            return None
        if (proof := self._small_proof(meta)) is not None:
            return proof.kind
        content = self._ledger.get(meta.key.version_id)
        if content is not None:
            return content.kind
        stated = checksum_of(meta.version.etag, meta.version.headers)
        if stated is not None:
            return stated.kind if stated.kind.is_crc else None
        if meta.version.whole_headers or self.questions.is_silent(meta.version.ref):
            return None
        return self._kinds.get(meta.version.ref.bucket, _FIRST_KIND)

    def hashed(self, meta: BlockMeta, kind: Kind, digest: bytes) -> None:
        key = meta.key
        proof = self._small_proof(meta)
        if proof is not None and proof.kind is kind:
            is_right = self._is_right(meta, proof, digest)
            if is_right:
                self.prove(key)
            elif is_right is False:
                self._condemn(_Mismatch(meta.version, key.version_id, [key.index], proof, digest))
        elif kind.is_crc:
            content = self._ledger.of(meta, key.version_id, kind)
            if content.kind is kind:
                self._found(content, key, digest)
            else:
                # It was on its way when the kind was learned.
                self._compute(content, key.version_id)

    # -- small objects ------------------------------------------------------------------------------------------------

    def _small_proof(self, meta: BlockMeta) -> ContentProof | None:
        if not self.on or meta.version.size > meta.layout.block_bytes:
            return None
        proof = small_proof_of(meta.version)
        if proof is not None and proof.kind is Kind.MD5 and not self._md5_etags.compares(meta.version.ref.bucket):
            return None
        return proof

    def _judged(self, meta: BlockMeta, proof: ContentProof, digest: bytes) -> Judgement:
        """The judgement of a body whose last bytes no reader has yet. Raises ContentMismatch."""
        ref = meta.version.ref
        is_right = self._is_right(meta, proof, digest)
        if is_right is False:
            self._mismatched(_Mismatch(meta.version, meta.key.version_id, [meta.index], proof, digest))
            if not self.relays(ref):
                raise ContentMismatch(f"{ref}: not the bytes that the bucket has")
            self.relayed()
            return Judgement.RELAYED
        return Judgement.RIGHT if is_right else Judgement.OPEN

    def _is_right(self, meta: BlockMeta, proof: ContentProof, digest: bytes) -> bool | None:
        """None: nothing is known, as the ETag is no MD5."""
        if proof.kind is not Kind.MD5:
            return digest == proof.digest
        ref = meta.version.ref
        verdict = self._md5_etags.judge(ref.bucket, meta.key.version_id, proof.digest, digest)
        if verdict is Verdict.NO_MD5:
            log.info("an etag is no md5", extra={"bucket": ref.bucket, "example": str(ref)})
            return None
        return verdict is Verdict.SAME

    # -- large objects ------------------------------------------------------------------------------------------------

    def _found(self, content: Content, key: BlockKey, digest: bytes) -> None:
        finding = content.add(key.index, digest)
        if finding is CrcFinding.PROVED:
            self.prove(key)
        elif finding is CrcFinding.CHANGED:
            if not content.proved:
                # One of the two is wrong, and nothing says which.
                content.drop(key.index)
            self._condemn(_Mismatch(content.version, key.version_id, [key.index], None, digest))
        else:
            if content.stated is None:
                content.stated = self._stated_by(content.version)
            if finding is CrcFinding.WHOLE and content.stated is not None:
                self._compare(content, key.version_id)
            elif 2 * content.missing <= content.blocks:
                self._request(content, key.version_id)

    def _stated_by(self, version: ObjectVersion) -> ContentProof | None:
        """The checksum, as far as replies to other questions stated it."""
        known = self._listeners.known(version.ref)
        if known is not None and known.identity == version.identity:
            return checksum_of(known.etag, known.headers) or checksum_of(version.etag, version.headers)
        return checksum_of(version.etag, version.headers)

    def _compare(self, content: Content, version_id: bytes) -> None:
        stated = content.stated
        if stated is None or not stated.kind.is_crc:
            return
        if stated.kind is not content.kind:
            self._kinds[content.version.ref.bucket] = stated.kind
            content.restart(stated.kind)
            self._compute(content, version_id)
        elif not content.missing and not content.proved:
            digest = content.digest()
            if digest == stated.digest:
                content.proved = True
                self._mismatches.pop(version_id, None)
                self._prove_all(content, version_id)
            else:
                blocks = range(content.blocks)
                content.restart()
                self._condemn(_Mismatch(content.version, version_id, blocks, stated, digest))

    def _compute(self, content: Content, version_id: bytes) -> None:
        """Blocks were hashed by another kind of CRC than the bucket's: they are read once more."""
        if version_id not in self._computing:
            self._computing.add(version_id)
            self._runtime.spawn(self._compute_all(content, version_id), f"hash {content.version.ref}")

    async def _compute_all(self, content: Content, version_id: bytes) -> None:
        tried: set[int] = set()
        try:
            while True:
                here = (index for index in range(content.blocks) if index not in tried and not content.knows(index))
                index = next((index for index in here if self._store.has(BlockKey(version_id, index))), None)
                if index is None:
                    return
                tried.add(index)
                began = self._runtime.clock()
                await self._store.verify(BlockKey(version_id, index))
                # Half of the time is left to others.
                await self._runtime.sleep(self._runtime.clock() - began)
        finally:
            self._computing.discard(version_id)

    # -- the question for the checksum --------------------------------------------------------------------------------

    def _request(self, content: Content, version_id: bytes) -> None:
        if content.is_requested or content.version.whole_headers or self.questions.is_silent(content.version.ref):
            return
        content.is_requested = True
        self.questions.put(version_id, content.version)

    def _answered(self, version_id: bytes, stated: ContentProof | None) -> None:
        content = self._ledger.get(version_id)
        if content is not None:
            content.stated = stated
            self._compare(content, version_id)

    # -- the verdict --------------------------------------------------------------------------------------------------

    def prove(self, block: BlockKey) -> None:
        """The block is in the store, and was found right by its content."""
        self._store.prove((block,))
        self._listeners.proved(block.version_id, block.index)

    def _prove_all(self, content: Content, version_id: bytes) -> None:
        self._store.prove(BlockKey(version_id, index) for index in range(content.blocks))
        self._listeners.proved(version_id, None)

    def _condemn(self, wrong: _Mismatch) -> None:
        """Drop the blocks, which are in the store, and cut their readers."""
        self._mismatched(wrong)
        self._store.expel([BlockKey(wrong.version_id, index) for index in wrong.blocks])
        # The version is requested anew: its headers may have been what was wrong.
        changes, version_id = self._listeners.forget(wrong.version.ref), wrong.version_id
        # At least 1: 0 stands for a version that was never condemned.
        self._condemned[version_id] = max(changes, self.condemned_at(version_id) + 1)

    def _mismatched(self, wrong: _Mismatch) -> None:
        self.has_mismatched = True
        version, proof = wrong.version, wrong.proof
        times = self._mismatches[wrong.version_id] = self._mismatches.get(wrong.version_id, 0) + 1
        self._metrics.origin_mismatches.inc()
        log.error(
            "content does not match the bucket",
            extra={"object": str(version.ref), "etag": version.etag, "blocks": _shown(wrong.blocks),
                   "by": "an earlier fill" if proof is None else proof.kind.value,
                   "stated": "" if proof is None else proof.digest.hex(), "computed": wrong.digest.hex(),
                   "times": times, "then": "fetched again" if times == 1 else "relayed uncached"},
        )  # fmt: skip
        if times > 1:
            self._relayed[version.ref] = None

    # -- over a stop and a start --------------------------------------------------------------------------------------

    def saved(self, layout: BlockLayout, version: ObjectVersion) -> object:
        """The findings about the version's content, fit for JSON; None: there are none."""
        version_id = layout.version_id(version)
        if version.size <= layout.block_bytes:
            return self._store.is_proved(BlockKey(version_id, 0)) or None
        content = self._ledger.get(version_id)
        return None if content is None else content.saved()

    def restore(self, meta: BlockMeta, saved: object) -> None:
        """A block of the version was found on disk at a start. `saved`: the result of `saved` at the last stop."""
        if saved is None or not self.on:
            return
        key = meta.key
        if saved is True:
            if meta.version.size <= meta.layout.block_bytes:
                self.prove(key)
            return
        content = self._ledger.get(key.version_id)
        if content is None:
            content = self._ledger.of(meta, key.version_id, _FIRST_KIND)
            try:
                content.load(saved)
            except (ValueError, TypeError) as error:
                log.warning("saved checksums ignored", extra={"error": repr(error)})
                self._ledger.forget(key.version_id)
                return
            if not content.missing and not content.proved:
                self._request(content, key.version_id)
        if content.proved and content.knows(key.index):
            self.prove(key)


def _shown(blocks: Sequence[int]) -> str:
    """`0-17` for a run of blocks, else the first of them."""
    if len(blocks) > 1 and blocks[-1] - blocks[0] == len(blocks) - 1:
        return f"{blocks[0]}-{blocks[-1]}"
    return ",".join(map(str, blocks[:_LOGGED_BLOCKS_MAX]))
