"""A bucket in this process: a small S3 server that takes writes, keeps the order in which they became true, and has
weather of its own.

The folder of an object says which ETags it has. In `hash/` they are those of AWS: the MD5, of an object of several
parts a hash and `-2`. In `parts/` all have the latter form. In `opaque/` an ETag is a name that an overwrite keeps
where its date is another one, so that ETag and size alone do not tell one version from the next.
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
from tests.support.odd_replies import Reply, refusal
from tests.support.oddities import Stored
from tests.trust.histories.record import Version, is_part, numbers_in

if TYPE_CHECKING:
    import random
    import socket
    from collections.abc import Mapping

    from tests.support.oddities import Oddities, Seen

NAME = "histories"
FOLDERS = ("hash", "opaque", "parts")
_XML = ("Content-Type", "application/xml")


class Weather(StrEnum):
    """What may become of a request."""

    BUSY = "503"
    RESET = "reset"  # before it is carried out
    LOST = "answer lost"  # after it was carried out
    BROKEN = "body broken"  # half of the body, then a reset
    SLOW = "slow"


class Bucket(OddOrigin):
    """`weather`: the fault that strikes each request with `probability`. `deletes`: the number of the DELETE that is
    under way for a key, since a DELETE has no body that would tell it; others are no part of the history."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self.weather: Weather | None = None
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

    def apply(self, key: str, body: bytes | None, *, parts: int = 1, number: int | None = None) -> Stored | None:
        """A write becomes true. `body` None: a DELETE, whose number is `number`."""
        now = time.monotonic()
        if body is None:
            self.objects.pop((NAME, key), None)
            number = self.deletes.get(key) if number is None else number
            if number is not None:
                self.versions.setdefault(key, []).append(Version(number, now, None))
            return None
        modified = int(time.time())
        stored = Stored(body, modified, etag=self._etag(key, body, modified, parts))
        self.objects[NAME, key] = stored
        numbers = numbers_in(body[:64], 0)
        number = numbers[0] if numbers else 0
        assert stored.etag is not None
        date = formatdate(modified, usegmt=True)
        is_damaged = not is_part(body, number, 0)
        self.versions.setdefault(key, []).append(Version(number, now, len(body), stored.etag, date, is_damaged))
        return stored

    def _etag(self, key: str, body: bytes, modified: int, parts: int) -> str:
        folder = key.partition("/")[0]
        if folder == "opaque":
            before = self.objects.get((NAME, key))
            is_later = before is not None and before.modified < modified
            # Two versions of one second cannot be told apart by a date.
            kept = before.etag if before is not None and is_later else None
            return kept or f'"v{next(self._names)}"'
        md5 = hashlib.md5(body).hexdigest()
        return f'"{md5}-2"' if parts > 1 or folder == "parts" else f'"{md5}"'

    # -- requests -----------------------------------------------------------------------------------------------------

    def _reply(
        self, odd: Oddities, seen: Seen, bucket: str, key: str, query: Mapping[str, str], body: bytes
    ) -> Reply:  # fmt: skip
        self.seen.clear()
        if self._strikes(Weather.RESET):
            raise ConnectionResetError
        if self._strikes(Weather.BUSY):
            return refusal(503, seen.method)
        if seen.method in ("GET", "HEAD"):
            return super()._reply(odd, seen, bucket, key, query, body)
        reply = self._written(seen, key, query, body)
        if self._strikes(Weather.LOST):
            raise ConnectionResetError
        return reply

    async def _send(self, writer: asyncio.StreamWriter, odd: Oddities, seen: Seen, reply: Reply) -> None:
        if self._strikes(Weather.SLOW):
            await asyncio.sleep(self._chance.uniform(0.1, 1.0))
        if reply.body and seen.method == "GET" and self._strikes(Weather.BROKEN):
            reply.told, reply.closes = len(reply.body), True
            reply.body = reply.body[: self._chance.randrange(len(reply.body))]
        await super()._send(writer, odd, seen, reply)

    def _strikes(self, weather: Weather) -> bool:
        return self.weather is weather and self._chance.random() < self.probability

    def _written(self, seen: Seen, key: str, query: Mapping[str, str], body: bytes) -> Reply:
        if seen.method == "DELETE":
            self.apply(key, None)
            return Reply(204, [], without_length=True)
        if seen.method == "PUT" and (upload := query.get("uploadId")):
            self._uploads[upload][int(query["partNumber"])] = body
            return Reply(200, [("ETag", f'"{hashlib.md5(body).hexdigest()}"')])
        if seen.method == "PUT":
            source = seen.headers.get("x-amz-copy-source")
            copied = body if source is None else self.objects[NAME, source.removeprefix(f"/{NAME}/")].body
            stored = self.apply(key, copied)
            assert stored is not None
            if source is None:
                return Reply(200, [("ETag", stored.etag or "")])
            return _document("CopyObjectResult", f"<ETag>{escape(stored.etag or '')}</ETag>")
        if "uploads" in query:
            upload = f"upload-{next(self._names)}"
            self._uploads[upload] = {}
            return _document("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        if upload := query.get("uploadId"):
            parts = self._uploads.pop(upload)
            stored = self.apply(key, b"".join(part for _, part in sorted(parts.items())), parts=2)
            assert stored is not None
            return _document("CompleteMultipartUploadResult", f"<ETag>{escape(stored.etag or '')}</ETag>")
        if "delete" in query:
            keys = re.findall("<Key>([^<]*)</Key>", body.decode())
            for each in keys:
                self.apply(each, None)
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
