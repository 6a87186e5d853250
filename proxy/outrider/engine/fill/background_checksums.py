"""Questions for the checksums of large objects: HEADs that nobody waits for, a few at once."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import closing

from cachetools import TTLCache

from outrider.core.errors import S3Error, Signal
from outrider.core.model import Headers, ObjectRef, ObjectVersion, last_modified
from outrider.core.s3.checksums import ContentProof, checksum_of
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.tasks.runtime import Runtime
from outrider.ports import OriginRequest

log = logging.getLogger(__name__)

_CHECKSUMS: Headers = (("x-amz-checksum-mode", "ENABLED"),)
# After this number of HEADs in a row that stated no checksum, a folder is left alone for so long.
_SILENT_HEADS = 3
_SILENT_S = 600.0
_FOLDERS_MAX = 4096
_HEADS_AT_ONCE = 4
# Questions that wait for their turn. Objects beyond this number stay unverified until their blocks come anew.
_HEADS_MAX = 10_000
_HEAD_TRIES = 3
_HEAD_AGAIN_S = 60.0


class BackgroundChecksums:
    """Bounded."""

    def __init__(
        self, origin_reader: OriginReader, runtime: Runtime, answered: Callable[[bytes, ContentProof | None], None]
    ) -> None:
        """`answered` is called with the id of a version and what the bucket knows of its content; None: nothing."""
        self._origin_reader = origin_reader
        self._runtime = runtime
        self._answered = answered
        self._silent: TTLCache[tuple[str, str], int] = TTLCache(_FOLDERS_MAX, _SILENT_S, runtime.clock)
        # By version id: the version to ask about, and how often that failed.
        self._waiting: OrderedDict[bytes, tuple[ObjectVersion, int]] = OrderedDict()
        self._under_way = 0
        self.ask: Callable[[ObjectRef], Awaitable[ObjectVersion]] | None = None
        """Asks for a version with its checksums, for all members of a cluster; None: the origin is asked here. Raises
        Signal, S3Error."""

    def is_silent(self, ref: ObjectRef) -> bool:
        """Whether the bucket stated no checksum of the objects beside this one."""
        return int(self._silent.get(ref.folder, 0)) >= _SILENT_HEADS

    def put(self, version_id: bytes, version: ObjectVersion) -> None:
        """Ask, in the background."""
        self._waiting[version_id] = version, 0
        if len(self._waiting) > _HEADS_MAX:
            self._waiting.popitem(last=False)
        if self._under_way < _HEADS_AT_ONCE:
            self._under_way += 1
            self._runtime.spawn(self._ask_all(), "ask for checksums")

    async def _ask_all(self) -> None:
        try:
            while self._waiting:
                await self._ask_next()
        finally:
            self._under_way -= 1

    async def _ask_next(self) -> None:
        version_id, (version, tries) = self._waiting.popitem(last=False)
        try:
            headers = await self._head(version)
        except (Signal, S3Error) as error:
            log.debug("no checksum", extra={"object": str(version.ref), "error": repr(error)})
            if isinstance(error, OriginRefused):
                if error.status != 404:
                    self._was_silent(version.ref)
            elif tries + 1 < _HEAD_TRIES:
                await self._runtime.sleep(_HEAD_AGAIN_S)
                self._waiting[version_id] = version, tries + 1
            return
        stated = None if headers is None else checksum_of(version.etag, headers)
        if stated is not None and stated.kind.is_crc:
            self._silent.pop(version.ref.folder, None)
        elif headers is not None:
            self._was_silent(version.ref)
        self._answered(version_id, stated)

    async def _head(self, version: ObjectVersion) -> Headers | None:
        """The headers of the version; None: the object is another by now, or they are not stated."""
        if self.ask is not None:
            stated = await self.ask(version.ref)
            return stated.headers if stated.identity == version.identity and stated.whole_headers else None
        request = OriginRequest("HEAD", version.ref.bucket, version.ref.key)
        with closing(await self._origin_reader.reply(request, _CHECKSUMS)) as reply:
            if reply.status != 200:
                raise await OriginRefused.read(reply)
            same = dict(reply.headers).get("etag") == version.etag
            return reply.headers if same and last_modified(reply.headers) == version.identity.modified else None

    def _was_silent(self, ref: ObjectRef) -> None:
        folder = ref.folder
        self._silent[folder] = self._silent.get(folder, 0) + 1
