"""Check of `outrider doctor` of one bucket: its replies are read as the proxy reads them, and each oddity is a finding.

Some ten small requests, of a byte or none of the objects themselves, and then up to 32 MiB of the largest one, where it
is large: see `line_checks`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing, closing

from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.adapters.process.system import usable_cores
from outrider.cli.doctor.finding import Diagnosis, fail, ok, warn
from outrider.cli.doctor.line_checks import LARGE_BYTES, line_finding
from outrider.cli.opened_origin import enumerator_of, reader_of
from outrider.core.cache.freshness import Freshness
from outrider.core.errors import OriginBroke, S3Error, Signal
from outrider.core.model import Extent, ObjectRef
from outrider.core.origin.error_causes import code_of, message_of
from outrider.core.origin.oddities import Oddity, Uncached, sentence
from outrider.core.s3.list_page import ListedObject
from outrider.engine.fill.origin_body import OriginBody
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.fill.reply_proof import Unproved
from outrider.engine.read.version_answers import CHECKSUMS, NotCacheable, VersionAnswers
from outrider.engine.read.version_cache import VersionCache
from outrider.ports import OriginRequest

_TIMEOUT_S = 30.0
# Two objects are enough to see one ETag for both.
_OBJECTS = 3
_CHECK = "Check the name of the bucket, and the key's rights."
_PAGE = 'See "Odd origins" in docs/s3-compatibility.md.'


async def bucket_findings(origin: HttpOrigin, url: str) -> AsyncIterator[Diagnosis]:
    """The findings about s3://BUCKET/PREFIX. `origin` is open."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            looked_at = _Bucket(origin, bucket)
            for finding in await looked_at.findings(prefix):
                yield finding
            if looked_at.largest is not None and looked_at.largest.size >= LARGE_BYTES:
                ref = ObjectRef(bucket, looked_at.largest.key)
                yield await line_finding(origin, ref, looked_at.largest.size, usable_cores())
    except OriginRefused as error:
        code = code_of(error.body)
        said = ": ".join(filter(None, (f"{error.status} {code}" if code else str(error), message_of(error.body))))
        yield fail("bucket", f"{url}: {said}", _CHECK)
    except (Signal, S3Error, TimeoutError) as error:
        yield fail("bucket", f"{url}: {str(error) or 'timed out'}", _CHECK)


class _Bucket:
    def __init__(self, origin: HttpOrigin, bucket: str) -> None:
        self._bucket = bucket
        self.largest: ListedObject | None = None
        """It is one of the objects that were looked at."""
        self._reader = reader_of(origin)
        versions = VersionCache(origin.endpoint, lambda _: Freshness(0.0), time.monotonic, 100)
        self._answers = VersionAnswers(self._reader, versions, time.monotonic)
        self._enumerator = enumerator_of(self._reader)

    async def findings(self, prefix: str) -> list[Diagnosis]:
        shown = f"s3://{self._bucket}/{prefix}"
        try:
            objects = await self._objects(prefix)
        except OriginBroke as error:
            return [
                warn("bucket", f"{shown}: {error}", f"Prefixes cannot be warmed or pinned. {_PAGE}"),
                *self._odd(()),
            ]
        if not objects:
            return [warn("bucket", f"{shown}: no object there to look at", "Name a prefix that has objects.")]
        self.largest = objects[0]
        uncached: dict[Oddity | Uncached, ObjectRef] = {}
        for listed in objects:
            ref = ObjectRef(self._bucket, listed.key)
            try:
                await self._look_at(ref)
            except (NotCacheable, Unproved) as error:
                uncached.setdefault(error.why, ref)
        found = [
            warn(
                "bucket",
                f"{ref} is relayed and not kept: {sentence(why) if isinstance(why, Oddity) else why.value}",
                _PAGE,
            )
            for why, ref in uncached.items()
        ]
        found += self._odd(uncached)
        return found or [ok("bucket", f"{shown}: answers as AWS S3 does, in {len(objects)} objects")]

    def _odd(self, shown: Collection[Oddity | Uncached]) -> list[Diagnosis]:
        """The oddities that cost nothing, but for those that are shown already."""
        known = {why.label for why in shown}
        odd = [each for each in self._reader.oddities.document() if each["kind"] not in known]
        return [ok("bucket", f"{each['text']}: Outrider allows for that") for each in odd]

    async def _objects(self, prefix: str) -> Sequence[ListedObject]:
        async with aclosing(self._enumerator.pages(self._bucket, prefix)) as pages:
            async for page in pages:
                return sorted((entry for entry in page if entry.size > 1), key=lambda entry: -entry.size)[:_OBJECTS]
        return ()

    async def _look_at(self, ref: ObjectRef) -> None:
        """Ask for the version by a Range and by HEAD, and for a byte with If-Match. Raises NotCacheable, Unproved, and
        what `OriginBody` raises."""
        extent = Extent(0, 2)
        request = OriginRequest("GET", *ref, headers=(("range", "bytes=0-1"),))
        with closing(await self._reader.reply(request, CHECKSUMS)) as reply:
            version = (await self._answers.of_get(ref, reply, extent)).version
        version = (await self._answers.head(ref)).version
        async with aclosing(OriginBody(self._reader, version, Extent(1, 2))) as body:
            while await body.some():
                pass
