"""The objects of the control bucket: a request for one, the objects that clients put, and the answer."""

from __future__ import annotations

import json
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
from outrider.http.access import Principal
from outrider.http.control.batch_body import BatchBody


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A request to the control bucket. `client`: see `access.reader_name`. `read_body` takes the limit in bytes."""

    operation: Operation
    headers: Headers
    who: Principal
    client: str
    read_body: Callable[[int], Awaitable[bytes]]

    @property
    def owner(self) -> str:
        """The access key whose objects the request may see; empty in loopback mode."""
        return self.who.client.access_key if self.who.client else ""

    @property
    def reads(self) -> bool:
        return self.operation.method in ("GET", "HEAD")

    async def body(self, limit: int) -> bytes:
        """Raises EntityTooLarge, and the errors of `engine.write.upload.whole_body`."""
        given = dict(self.headers).get("content-length", "")
        length = decoded_length_of(self.headers) if self.who.payload.chunked else int(given) if given else None
        if length is not None and length > limit:
            raise EntityTooLarge(f"At most {limit} bytes are taken here; a long plan can be sent in parts.")
        return await self.read_body(limit)


@dataclass(frozen=True, slots=True)
class ControlAnswer:
    """`batch`: the body, if the answer is one."""

    status: int
    headers: Headers = ()
    body: bytes | None = None
    batch: BatchBody | None = None


@dataclass(frozen=True, slots=True)
class ControlObject:
    """An object that a client put: its body, and since when it is this one (`at`, seconds since 1970). `hint`: of a
    plan, the reads that the planner knows of."""

    body: bytes
    at: float
    hint: Hint | None = None

    @property
    def bytes(self) -> int:
        return len(self.body) + (self.hint.bytes if self.hint else 0)


class ControlObjects:
    """The objects that were put last, by owner and name. Bounded in number and in bytes; the oldest are dropped."""

    def __init__(self, names_max: int, bytes_max: int) -> None:
        self._names_max = names_max
        self._bytes_max = bytes_max
        # Each with the bytes that it was counted for: its hint may have grown since.
        self._objects: OrderedDict[tuple[str, str], tuple[ControlObject, int]] = OrderedDict()
        self._bytes = 0

    def put(self, owner: str, name: str, entry: ControlObject) -> None:
        self.pop(owner, name)
        self._objects[owner, name] = entry, entry.bytes
        self._bytes += entry.bytes
        while len(self._objects) > self._names_max or self._bytes > self._bytes_max:
            self.pop(*next(iter(self._objects)))

    def get(self, owner: str, name: str) -> ControlObject | None:
        return self._objects.get((owner, name), (None, 0))[0]

    def pop(self, owner: str, name: str) -> ControlObject | None:
        entry, counted = self._objects.pop((owner, name), (None, 0))
        self._bytes -= counted
        return entry

    def of(self, owner: str) -> Iterator[tuple[str, ControlObject]]:
        """The names and objects of one owner."""
        return ((name, entry) for (key, name), (entry, _) in self._objects.items() if key == owner)

    def hints(self) -> list[Hint]:
        """The hints of all owners."""
        return [entry.hint for entry, _ in self._objects.values() if entry.hint is not None]


def answer_with(request: ControlRequest, entry: ControlObject | None) -> ControlAnswer:
    """The answer to a GET or HEAD of an object. Raises MethodNotAllowed, NoSuchKey, InvalidRange."""
    if not request.reads:
        raise MethodNotAllowed
    if entry is None:
        raise NoSuchKey
    return json_answer(request, entry.body, entry.at)


def json_answer(request: ControlRequest, body: bytes, at: float) -> ControlAnswer:
    """The whole body, or the one range that was requested: `aws s3 cp` reads a long object in parts.

    Raises InvalidRange.
    """
    headers = (
        ("content-type", "application/json"), ("etag", etag_of(body)), ("last-modified", formatdate(at, usegmt=True)),
        ("cache-control", "no-store"),
    )  # fmt: skip
    header = dict(request.headers).get("range")
    spec = ranges.parse(header) if header is not None and request.operation.method == "GET" else None
    extent = ranges.resolve(spec, len(body)) if spec is not None else None
    if extent is None:
        return ControlAnswer(200, headers, body)
    content_range = ("content-range", ranges.content_range(extent, len(body)))
    return ControlAnswer(206, (*headers, content_range), body[extent.start : extent.stop])


def json_body(document: object) -> bytes:
    """The bytes of a JSON document as the control bucket shows it."""
    return json.dumps(document, indent=2).encode() + b"\n"


def etag_of(body: bytes) -> str:
    return f'"{md5(body, usedforsecurity=False).hexdigest()}"'
