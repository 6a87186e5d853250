"""Objects of the reserved bucket: a request for one, what stands under a name, and the answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from hashlib import md5

from outrider.core.ahead.hints import Hint
from outrider.core.errors import EntityTooLarge, MethodNotAllowed, NoSuchKey
from outrider.core.model import Headers
from outrider.core.s3 import ranges
from outrider.core.s3.body_integrity import decoded_length_of
from outrider.core.s3.operation import Operation
from outrider.http.access import Who


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the reserved bucket. `client`: see `access.reader_name`. `read_body` takes the limit in bytes."""

    operation: Operation
    headers: Headers
    who: Who
    client: str
    read_body: Callable[[int], Awaitable[bytes]]

    @property
    def owner(self) -> str:
        return self.who.client.access_key if self.who.client else ""

    async def body(self, limit: int) -> bytes:
        """Raises EntityTooLarge, and what `engine.uploads.whole_body` raises."""
        told = dict(self.headers).get("content-length", "")
        length = decoded_length_of(self.headers) if self.who.payload.chunked else int(told) if told else None
        if length is not None and length > limit:
            raise EntityTooLarge(f"At most {limit} bytes are taken here; a long plan can be told in parts.")
        return await self.read_body(limit)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Headers = ()
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class ControlObject:
    """What stands under a name, and since when (`at`, seconds since 1970). `telling`: of a plan."""

    body: bytes
    at: float
    telling: Hint | None = None

    @property
    def bytes(self) -> int:
        return len(self.body) + (self.telling.bytes if self.telling else 0)


class ControlObjects:
    """The last ones put, by owner and name: bounded in number and in bytes."""

    def __init__(self, names_max: int, bytes_max: int) -> None:
        self._names_max = names_max
        self._bytes_max = bytes_max
        # Each with the bytes that it was counted for: a telling may have grown since.
        self._notes: OrderedDict[tuple[str, str], tuple[ControlObject, int]] = OrderedDict()
        self._bytes = 0

    def put(self, owner: str, name: str, note: ControlObject) -> None:
        self.pop(owner, name)
        self._notes[owner, name] = note, note.bytes
        self._bytes += note.bytes
        while len(self._notes) > self._names_max or self._bytes > self._bytes_max:
            self.pop(*next(iter(self._notes)))

    def get(self, owner: str, name: str) -> ControlObject | None:
        return self._notes.get((owner, name), (None, 0))[0]

    def pop(self, owner: str, name: str) -> ControlObject | None:
        note, counted = self._notes.pop((owner, name), (None, 0))
        self._bytes -= counted
        return note

    def of(self, owner: str) -> Iterator[tuple[str, ControlObject]]:
        return ((name, note) for (whose, name), (note, _) in self._notes.items() if whose == owner)

    def hints(self) -> list[Hint]:
        return [note.telling for note, _ in self._notes.values() if note.telling is not None]


def note_of(asked: Asked, note: ControlObject | None) -> Answer:
    if asked.operation.method not in ("GET", "HEAD"):
        raise MethodNotAllowed
    if note is None:
        raise NoSuchKey
    return object_of(asked, note.body, note.at)


def object_of(asked: Asked, body: bytes, at: float) -> Answer:
    """Whole, or the one range that was asked for: `aws s3 cp` reads what is long in parts."""
    headers = (
        ("content-type", "application/json"), ("etag", etag_of(body)), ("last-modified", formatdate(at, usegmt=True)),
        ("cache-control", "no-store"),
    )  # fmt: skip
    header = dict(asked.headers).get("range")
    spec = ranges.parse(header) if header is not None and asked.operation.method == "GET" else None
    extent = ranges.resolve(spec, len(body)) if spec is not None else None
    if extent is None:
        return Answer(200, headers, body)
    told = ("content-range", ranges.content_range(extent, len(body)))
    return Answer(206, (*headers, told), body[extent.start : extent.stop])


def etag_of(body: bytes) -> str:
    return f'"{md5(body, usedforsecurity=False).hexdigest()}"'
