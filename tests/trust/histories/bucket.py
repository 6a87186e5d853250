"""A bucket in this process: a small S3 server that takes writes, keeps the order in which they became true, and has
conditions of its own.

The folder of an object says which ETags it has. In `hash/` they are those of AWS: the MD5, of an object of several
parts a hash and `-2`. In `parts/` all have the latter form. In `opaque/` an ETag is a name that an overwrite keeps
where its date is another one, so that ETag and size alone do not distinguish one version from the next.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from email.utils import formatdate
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from tests.support.bucket import REGION
from tests.support.odd_origin import OddOrigin
from tests.support.oddities import Reply, Stored, refusal
from tests.trust.histories.record import CELL_BYTES, Version, is_part, numbers_in

if TYPE_CHECKING:
    import random
    import socket
    from collections.abc import Mapping

    from tests.support.oddities import Oddities, Seen

NAME = "histories"
FOLDERS = ("hash", "opaque", "parts")
IS_OWN = b"The origin is odd."
"""In each refusal of the bucket itself."""
_XML = ("Content-Type", "application/xml")


class Conditions(StrEnum):
    """A fault that a request of a member meets at the bucket."""

    BUSY = "503"
    RESET = "reset"  # before it is carried out
    LOST = "answer lost"  # after it was carried out
    BROKEN = "body broken"  # half of the body, then a reset
    SLOW = "slow"


class Bucket(OddOrigin):
    """`conditions`: the fault that strikes each request with `probability`. `deletes`: the number of the DELETE that is
    under way for a key, since a DELETE has no body that would name it; others are no part of the history."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self.conditions: Conditions | None = None
        self.probability = 0.0
        self.deletes: dict[str, int] = {}
        self.versions: dict[str, list[Version]] = {}
        self._names = count(1)
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._listener: socket.socket | None = None

    def environment(self) -> dict[str, str]:
        """For members: any keys will do."""
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        return {**keys, "AWS_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"}

    # -- the state ----------------------------------------------------------------------------------------------------

    def apply(self, key: str, body: bytes, *, parts: int = 1) -> Stored:
        """A write becomes true."""
        modified = int(time.time())
        stored = Stored(body, modified, etag=self._etag(key, body, modified, parts))
        self.objects[NAME, key] = stored
        number = next(iter(numbers_in(body[:CELL_BYTES], 0)), 0)
        self._note(
            key, number, len(body), stored.etag or "", formatdate(modified, usegmt=True),
            is_damaged=not is_part(body, number, 0),
        )  # fmt: skip
        return stored

    def delete(self, bucket: str, key: str) -> None:
        self.objects.pop((bucket, key), None)
        if (number := self.deletes.get(key)) is not None:
            self._note(key, number, None)

    def _note(
        self, key: str, number: int, size: int | None, etag: str = "", date: str = "", *, is_damaged: bool = False
    ) -> None:  # fmt: skip
        version = Version(number, time.monotonic(), size, etag, date, is_damaged)
        self.versions.setdefault(key, []).append(version)

    def _etag(self, key: str, body: bytes, modified: int, parts: int) -> str:
        folder = key.partition("/")[0]
        if folder == "opaque":
            before = self.objects.get((NAME, key))
            is_later = before is not None and before.modified < modified
            # A date does not distinguish two versions of one second.
            kept = before.etag if before is not None and is_later else None
            return kept or f'"v{next(self._names)}"'
        md5 = hashlib.md5(body).hexdigest()
        return f'"{md5}-2"' if parts > 1 or folder == "parts" else f'"{md5}"'

    # -- requests -----------------------------------------------------------------------------------------------------

    def _reply(
        self, odd: Oddities, seen: Seen, bucket: str, key: str, query: Mapping[str, str], body: bytes
    ) -> Reply:  # fmt: skip
        self.seen.clear()
        if self._strikes(Conditions.RESET):
            raise ConnectionResetError
        if self._strikes(Conditions.BUSY):
            return refusal(503, seen.method)
        if seen.method in ("GET", "HEAD"):
            return super()._reply(odd, seen, bucket, key, query, body)
        reply = self._written(seen, key, query, body)
        if self._strikes(Conditions.LOST):
            raise ConnectionResetError
        return reply

    async def _send(self, writer: asyncio.StreamWriter, odd: Oddities, seen: Seen, reply: Reply) -> None:
        if self._strikes(Conditions.SLOW):
            await asyncio.sleep(self._chance.uniform(0.1, 1.0))
        # A refusal is asked for five times in all: it must not often break off as often in a row.
        breaks = reply.status < 400 or self._chance.random() < 0.1
        if reply.body and seen.method == "GET" and breaks and self._strikes(Conditions.BROKEN):
            reply.content_length, reply.closes = len(reply.body), True
            reply.body = reply.body[: self._chance.randrange(len(reply.body))]
        await super()._send(writer, odd, seen, reply)

    def _strikes(self, conditions: Conditions) -> bool:
        return self.conditions is conditions and self._chance.random() < self.probability

    def _written(self, seen: Seen, key: str, query: Mapping[str, str], body: bytes) -> Reply:
        if seen.method == "DELETE":
            self.delete(NAME, key)
            return Reply(204, [], without_length=True)
        if seen.method == "PUT" and (upload := query.get("uploadId")):
            self._uploads[upload][int(query["partNumber"])] = body
            return Reply(200, [("ETag", f'"{hashlib.md5(body).hexdigest()}"')])
        if seen.method == "PUT":
            source = seen.headers.get("x-amz-copy-source")
            if source is None:
                return Reply(200, [("ETag", self.apply(key, body).etag or "")])
            copied = self.objects.get((NAME, source.removeprefix(f"/{NAME}/")))
            if copied is None:
                return refusal(404, seen.method)
            stored = self.apply(key, copied.body)
            return _document("CopyObjectResult", f"<ETag>{escape(stored.etag or '')}</ETag>")
        return self._posted(seen, key, query, body)

    def _posted(self, seen: Seen, key: str, query: Mapping[str, str], body: bytes) -> Reply:
        if "uploads" in query:
            begun = f"upload-{next(self._names)}"
            self._uploads[begun] = {}
            return _document("InitiateMultipartUploadResult", f"<UploadId>{begun}</UploadId>")
        if upload := query.get("uploadId"):
            parts = self._uploads.pop(upload, None)
            if parts is None:
                return refusal(404, seen.method)
            stored = self.apply(key, b"".join(part for _, part in sorted(parts.items())), parts=2)
            return _document("CompleteMultipartUploadResult", f"<ETag>{escape(stored.etag or '')}</ETag>")
        if "delete" in query:
            keys = re.findall("<Key>([^<]*)</Key>", body.decode())
            for each in keys:
                self.delete(NAME, each)
            return _document("DeleteResult", "".join(f"<Deleted><Key>{each}</Key></Deleted>" for each in keys))
        return self._form(seen, body)

    def _form(self, seen: Seen, body: bytes) -> Reply:
        """A form upload, whose file is its last field."""
        boundary = b"\r\n--" + seen.headers["content-type"].partition("boundary=")[2].strip('"').encode()
        fields = {}
        for part in (b"\r\n" + body).split(boundary)[1:-1]:
            head, _, value = part.partition(b"\r\n\r\n")
            named = re.search(rb'[; ]name="([^"]*)"', head)
            assert named is not None
            fields[named[1].decode()] = value
        self.apply(fields["key"].decode(), fields["file"])
        return Reply(204, [], without_length=True)


def _document(root: str, inner: str) -> Reply:
    return Reply(200, [_XML], f"<{root}>{inner}</{root}>".encode())
