"""The results that the fast path hands to the slow path: a reply that it could not finish, a reply that has to wait for
the disk, and all that it found out about a request that it could not answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp.http import HttpVersion11
from aiohttp.web_request import BaseRequest

from outrider.core.model import Extent, ObjectVersion
from outrider.core.s3.operation import Operation
from outrider.http.access import Principal
from outrider.http.wire.sender import WireSender

# A disk that needs longer to bring pages is slow in any case: the slow path has time limits and error replies for it.
DISK_WAIT_S = 1.0


@dataclass(slots=True)
class Begun:
    """A reply whose socket was full: `head` has still to be sent, then the bytes of `rest`."""

    operation: Operation
    version: ObjectVersion
    head: bytes
    rest: Extent
    status: int
    sent: int
    request_id: str
    started: float
    client: str
    app: str
    reader: str
    away_s: float = 0.0
    """For how long the connection had been idle before this request."""
    disk_failed: bool = False
    """The first bytes of `rest` could not be read."""
    first_byte_s: float | None = None
    since: int = 0
    """The number of changes of the version cache when the version was looked up."""

    @property
    def extent(self) -> Extent:
        """All bytes of the requested range."""
        return Extent(self.rest.start - self.sent, self.rest.stop)


@dataclass(frozen=True, slots=True)
class Recognised:
    """A request that the fast path understood but could not answer; its signature, where one is needed, was good.

    All of it follows from `head`, the whole request as it came, and holds for these bytes alone. Grants are not part of
    it: the slow path checks them for every request.
    """

    head: bytes
    who: Principal
    operation: Operation | None
    """None: the fast path did not need to classify it, or could not."""

    def is_about(self, request: BaseRequest) -> bool:
        """Whether `request` was parsed from exactly the bytes of `head`."""
        if request.version != HttpVersion11:
            return False
        lines = [f"{request.method} {request.raw_path} HTTP/1.1".encode("utf-8", "surrogateescape")]
        lines.extend([b"%b: %b" % pair for pair in request.raw_headers])
        return b"\r\n".join([*lines, b"", b""]) == self.head


@dataclass(slots=True)
class ColdHit:
    """A hit whose pages are not in memory, or whose block was not verified since the start; nothing was sent yet. After
    `page_in`, in a thread that may wait, or after `prepare` the fast path may be asked again. Both are None: now."""

    page_in: Callable[[], None] | None
    prepare: Callable[[], Coroutine[Any, Any, None]] | None
    started: float
    recognised: Recognised

    @property
    def is_ready(self) -> bool:
        return self.page_in is None and self.prepare is None


class Caller(Protocol):
    """A client's connection as the request handler sees it. A Protocol, as `connection` imports the handler."""

    begun: Begun | None
    """A reply that the fast path began to the request that is handled next."""
    recognised: Recognised | None
    """The fast path's knowledge of the request that is handled next, if that `is_about` it."""
    only_reads: bool
    """The request under way changes nothing, so it ends when the client leaves."""
    is_one_too_many: bool
    """There are as many connections as allowed without this one: its first request is refused, and it is closed."""

    @property
    def wire(self) -> WireSender: ...
