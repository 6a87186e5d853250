"""Versions out of replies: the ETag and the size of an object, as far as the replies prove them.

HEAD is asked first where no byte is wanted. Where HEAD does not suffice, a GET of one byte does. A version needs a
strong ETag and a size that no other reply contradicts; otherwise the object stays uncached, and is not looked up again
for a while.
"""

from __future__ import annotations

import re
from contextlib import closing
from functools import lru_cache
from itertools import count
from typing import NamedTuple

from cachetools import LRUCache, TTLCache

from outrider.core.cache.freshness import is_settled
from outrider.core.errors import OriginBroke, Signal
from outrider.core.model import Extent, Headers, ObjectRef, ObjectVersion, VersionIdentity, is_strong_etag
from outrider.core.origin.oddities import HEAD_INSUFFICIENT, Oddity, Uncached, sentence
from outrider.core.origin.quirks import ReplyFacts, UncachedNames, Witnesses, is_of_nothing
from outrider.core.s3.headers import forbids_storing, replayable, varies_with_clients, without_checksums
from outrider.core.s3.ranges import parse_empty_range
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import NOBODY, Waiters
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.fill.reply_proof import ProvedBody, Unproved, is_odd_success, proved_body
from outrider.engine.read.version_cache import VersionCache
from outrider.ports import Clock, OriginReply, OriginRequest

CHECKSUMS: Headers = (("x-amz-checksum-mode", "ENABLED"),)
_FIRST_BYTE = Extent(0, 1)
# Digits in an ending show which object it is, and not its kind: `train.tfrecord-00000-of-01024`, `data.17`.
_NUMBER = re.compile(r"\d{3,}|^\d+$")
# A body that was cut because the version changed is most likely read again at once. If it is cut once more, and by
# another version, the object changes faster than it can be read block by block.
_CUTS_KEPT_S = 60.0
_CUTS_MAX = 10_000
# As many as for replies that contradict themselves, since most faults pass.
_REFUSAL_TRIES = 5
_KINDS_MAX = 4096


class NotCacheable(Signal):
    """The cache cannot answer this request: forward it. `why` is the reason."""

    def __init__(self, ref: ObjectRef, why: Oddity | Uncached) -> None:
        super().__init__(ref, why)
        self.ref = ref
        self.why = why

    def __str__(self) -> str:
        return sentence(self.why) if isinstance(self.why, Oddity) else self.why.value

    def __copy__(self) -> NotCacheable:
        return NotCacheable(self.ref, self.why)


class VersionAnswer(NamedTuple):
    """`body`: the bytes that the reply brings with it. `settled`: see `freshness.is_settled`."""

    version: ObjectVersion
    body: ProvedBody
    settled: bool


class VersionAnswers:
    """Raises everywhere: OriginRefused, NotCacheable, and what `OriginReader.reply` raises."""

    def __init__(self, origin_reader: OriginReader, versions: VersionCache, clock: Clock) -> None:
        self._origin_reader = origin_reader
        self._versions = versions
        self._clock = clock
        self._witnesses = Witnesses()
        self._uncached = UncachedNames(clock)
        self._cuts: TTLCache[ObjectRef, frozenset[VersionIdentity]] = TTLCache(_CUTS_MAX, _CUTS_KEPT_S, clock)
        # The size last seen of each kind of object: one shard, or sample, is much like the next.
        self._sizes: LRUCache[tuple[str, str], int] = LRUCache(_KINDS_MAX)
        self.oddities = origin_reader.oddities

    def seen_bytes(self, ref: ObjectRef) -> int | None:
        """The size last seen of an object like this one; None: there was none."""
        for kind in kinds_of(ref):
            if (size := self._sizes.get(kind)) is not None:
                return size
        return None

    def seen(self, version: ObjectVersion) -> None:
        for kind in kinds_of(version.ref):
            self._sizes[kind] = version.size

    # -- objects that stay uncached -----------------------------------------------------------------------------------

    def check(self, ref: ObjectRef) -> None:
        """Raises NotCacheable: the origin need not be asked."""
        if self._uncached.has_any and (why := self._uncached.why(ref, kinds_of(ref)[:1])) is not None:
            raise NotCacheable(ref, why)

    def refuse(self, ref: ObjectRef, why: Oddity | Uncached) -> NotCacheable:
        """The error for an object that stays uncached for a while."""
        self._uncached.note(ref, kinds_of(ref)[:1] if isinstance(why, Oddity) else (), why)
        return NotCacheable(ref, why)

    def uncached(self, error: NotCacheable) -> None:
        """A read is forwarded for this reason."""
        if isinstance(error.why, Oddity):
            self.oddities.note(error.why, error.ref, uncached=True)
        else:
            self.oddities.uncached(error.why)

    def cut(self, version: ObjectVersion) -> None:
        """The body of a reply ended early, because the origin no longer has `version`."""
        ref = version.ref
        versions = self._cuts[ref] = self._cuts.get(ref, frozenset()) | {version.identity}
        if len(versions) > 1:
            self.refuse(ref, Uncached.CHANGING)

    # -- requested alone ----------------------------------------------------------------------------------------------

    async def head(
        self, ref: ObjectRef, waiters: Waiters = NOBODY, *, empty: bool = False, alone: bool = False
    ) -> VersionAnswer:  # fmt: skip
        """The version by a HEAD, or by a GET of one byte where HEAD does not suffice. `waiters`: see
        `OriginReader.reply`. `empty`: a GET found no byte in the object. `alone`: by HEAD or not at all."""
        odd: Oddity | None = None
        found: VersionAnswer | None = None
        if not self._origin_reader.quirks.has(ref.bucket, *HEAD_INSUFFICIENT):
            request = OriginRequest("HEAD", ref.bucket, ref.key)
            with closing(await self._origin_reader.reply(request, CHECKSUMS, hedged=True, waiters=waiters)) as reply:
                odd = await self._odd_head(ref, reply)
                size = reply.content_length
                if odd is None:
                    assert size is not None
                    found = _answer(ref, reply, ProvedBody(0, 0, size), whole=True)
                    if size == 0 and not empty and not is_of_nothing(found.version.etag):
                        odd = Oddity.HEAD_SIZE_ZERO
                    elif (odd := self._judged(found, by_head=True)) is None:
                        return found
        if alone or odd not in (None, *HEAD_INSUFFICIENT):
            why = odd or Oddity.HEAD_WITHOUT_SIZE
            raise NotCacheable(ref, why) if alone else self.refuse(ref, why)
        return await self._by_first_byte(ref, odd, found, waiters)

    async def _odd_head(self, ref: ObjectRef, reply: OriginReply) -> Oddity | None:
        """The lack of the reply to a HEAD; None: it has all."""
        # A 403 is odd only where the object was read before. Otherwise no GET would bring more.
        if reply.status in (405, 501) or (reply.status == 403 and self._versions.stale(ref) is not None):
            return Oddity.HEAD_REFUSED
        if reply.status not in (200, 206):
            raise await self._refusal(ref, reply)
        etag = dict(reply.headers).get("etag")
        if etag is None:
            return Oddity.HEAD_WITHOUT_ETAG
        if (odd := _odd_etag(etag)) is not None:
            return odd
        if varies_with_clients(reply.headers):
            return Oddity.VARIES
        if forbids_storing(reply.headers):
            raise self.refuse(ref, Uncached.NO_STORE)
        return Oddity.HEAD_WITHOUT_SIZE if reply.content_length is None else None

    async def _by_first_byte(
        self, ref: ObjectRef, odd: Oddity | None, by_head: VersionAnswer | None, waiters: Waiters
    ) -> VersionAnswer:  # fmt: skip
        """`odd`: why HEAD did not do; None: that is known of the bucket. `by_head`: its answer all the same."""
        headers: Headers = (("range", "bytes=0-0"),)
        request = OriginRequest("GET", ref.bucket, ref.key, headers=headers)
        with closing(await self._origin_reader.reply(request, hedged=True, waiters=waiters)) as reply:
            if reply.status != 416:
                try:
                    answer = await self.of_get(ref, reply, _FIRST_BYTE)
                except Unproved as error:
                    raise self.refuse(ref, error.why) from error
                if odd is not None and (odd is not Oddity.HEAD_SIZE_ZERO or answer.version.size > 0):
                    self._origin_reader.learned(odd, ref)
                return answer
            empty = parse_empty_range(dict(reply.headers).get("content-range", "bytes */0")) == 0
            if empty and by_head is not None:
                return by_head._replace(version=_sized(by_head.version, 0))
            if empty and is_strong_etag(dict(reply.headers).get("etag")):
                return _answer(ref, reply, ProvedBody(0, 0, 0), whole=False)
        # An empty object, most likely: the others of its kind are looked up.
        why = odd or Oddity.HEAD_WITHOUT_SIZE
        self._uncached.note(ref, (), why)
        raise NotCacheable(ref, why)

    # -- brought along with bytes -------------------------------------------------------------------------------------

    async def get(
        self, ref: ObjectRef, requested: Extent | None, waiters: Waiters, *, likely_bytes: int | None, bulk: bool
    ) -> tuple[OriginReply, float, VersionAnswer | None]:  # fmt: skip
        """The reply to a GET, which the caller closes, when it was requested, and the version that it states; None:
        nothing lies at that offset. `requested`: its Range; None: the whole object. See `OriginRequest` for the
        others."""
        headers: Headers = () if requested is None else (("range", f"bytes={requested.start}-{requested.stop - 1}"),)
        request = OriginRequest("GET", ref.bucket, ref.key, headers=headers, likely_bytes=likely_bytes, bulk=bulk)
        for tries in count(1):
            requested_at = self._clock()
            reply = await self._origin_reader.reply(request, CHECKSUMS, hedged=True, waiters=waiters)
            try:
                answer = None if reply.status == 416 else await self.of_get(ref, reply, requested)
            except Unproved as error:
                reply.close()
                if not error.may_pass(tries, otherwise=1):
                    raise self.refuse(ref, error.why) from error
            except OriginBroke:
                reply.close()
                if reply.status in (200, 206) or tries >= _REFUSAL_TRIES:
                    raise
                # The document of a refusal broke off, without which a client does not see what it says.
            except BaseException:
                reply.close()
                raise
            else:
                return reply, requested_at, answer
        raise AssertionError("unreachable")

    async def of_get(self, ref: ObjectRef, reply: OriginReply, requested: Extent | None) -> VersionAnswer:
        """The version that a reply to a GET states, other than a 416. `requested`: its Range; None: it had none. Raises
        Unproved, too."""
        if reply.status not in (200, 206):
            raise await self._refusal(ref, reply)
        body = proved_body(reply, requested)
        etag = dict(reply.headers).get("etag")
        if (odd := _odd_etag(etag)) is not None:
            raise self.refuse(ref, odd)
        if varies_with_clients(reply.headers):
            raise self.refuse(ref, Oddity.VARIES)
        if forbids_storing(reply.headers):
            raise self.refuse(ref, Uncached.NO_STORE)
        if body.size is None:
            body = await self._body_by_head(ref, reply, body, requested)
        answer = _answer(ref, reply, body, whole=requested is None)
        odd = self._judged(answer, by_head=False)
        if odd in HEAD_INSUFFICIENT:
            self._origin_reader.learned(odd, ref)
        elif odd is not None:
            raise self.refuse(ref, odd)
        self._origin_reader.note_proved(body, ref)
        return answer

    async def _body_by_head(
        self, ref: ObjectRef, reply: OriginReply, body: ProvedBody, requested: Extent | None
    ) -> ProvedBody:
        """The body of a reply that does not state the object's size, once HEAD stated it."""
        assert body.odd is not None
        try:
            found = (await self.head(ref, NOBODY, alone=True)).version
        except (NotCacheable, OriginRefused) as error:
            raise self.refuse(ref, body.odd) from error
        headers, known = dict(reply.headers), dict(found.headers)
        same = all(headers.get(name) == known.get(name) for name in ("etag", "last-modified", "content-encoding"))
        if same and body.length == found.size:
            return ProvedBody(0, body.length, found.size, Oddity.RANGE_IGNORED)
        if same and body.length is None and (requested is None or requested.start == 0):
            return ProvedBody(0, None, found.size, Oddity.LENGTH_UNKNOWN)
        raise self.refuse(ref, body.odd)

    async def _refusal(self, ref: ObjectRef, reply: OriginReply) -> Signal:
        """The error for a status that is neither 200 nor 206."""
        if reply.status == 404:
            self._versions.gone(ref)
        if is_odd_success(reply.status):
            return self.refuse(ref, Oddity.STATUS_ODD)
        return await OriginRefused.read(reply)

    def _judged(self, answer: VersionAnswer, *, by_head: bool) -> Oddity | None:
        version, headers = answer.version, dict(answer.version.headers)
        encoding, modified = headers.get("content-encoding"), headers.get("last-modified")
        found = ReplyFacts(version.etag, version.size, encoding, modified, answer.settled, by_head)
        odd = self._witnesses.judge(version.ref.bucket, version.ref, found)
        if odd is None and self._uncached.has_any:
            self._uncached.cached(kinds_of(version.ref)[:1])
        return odd


def _odd_etag(etag: str | None) -> Oddity | None:
    if etag is None:
        return Oddity.ETAG_MISSING
    if is_strong_etag(etag):
        return None
    return Oddity.ETAG_WEAK if etag.startswith("W/") else Oddity.ETAG_MALFORMED


def _answer(ref: ObjectRef, reply: OriginReply, body: ProvedBody, *, whole: bool) -> VersionAnswer:
    """`whole`: no Range was requested."""
    assert body.size is not None
    headers = dict(reply.headers)
    kept = replayable(reply.headers)
    if body.start != 0 or body.length not in (0, None, body.size):
        kept = without_checksums(kept)
    return VersionAnswer(ObjectVersion(ref, headers["etag"], body.size, kept, whole), body, is_settled(headers))


# A question about one name asks five times.
@lru_cache(maxsize=256)
def kinds_of(ref: ObjectRef) -> tuple[tuple[str, str], tuple[str, str]]:
    """Names for the objects that are like this one. The first is the folder and the ending: an index among shards is
    not like them. The second is the ending alone, for data sets where each sample has a folder of its own."""
    folder, _, name = ref.key.rpartition("/")
    ending = _NUMBER.sub("", name.rpartition(".")[2]) if "." in name else ""
    return (ref.bucket, f"{folder}/*.{ending}"), (ref.bucket, f"*.{ending}")


def _sized(version: ObjectVersion, size: int) -> ObjectVersion:
    return ObjectVersion(version.ref, version.etag, size, version.headers, version.whole_headers)
