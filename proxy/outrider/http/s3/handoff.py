"""What the fast lane leaves to others: replies that it cannot end, or not begin, without a wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from outrider.core.model import Extent, Headers, ObjectVersion
from outrider.core.s3.operation import Operation
from outrider.http.wire.sender import Sender

# A disk that brings pages no sooner is no matter of speed any more: the longer way has bounds, and words, for that.
PAGES_WAIT_S = 1.0


@dataclass(slots=True)
class Begun:
    """A reply whose socket was full: `head` has still to be sent, then the bytes of `rest`."""

    operation: Operation
    version: ObjectVersion
    head: bytes
    rest: Extent
    asked_range: str | None
    status: int
    sent: int
    request_id: str
    started: float
    client: str
    address: str
    app: str
    reader: str
    away_s: float = 0.0
    """For how long the connection had asked for nothing before."""
    full_s: float = 0.0
    """For how long its socket was full, while another loop sent the rest."""
    disk_failed: bool = False
    """The first bytes of `rest` could not be read."""
    first_byte_s: float | None = None
    traced: Headers = ()
    """Of the request, where there are traces."""

    @property
    def extent(self) -> Extent:
        """All that was asked for."""
        return Extent(self.rest.start - self.sent, self.rest.stop)


@dataclass(slots=True)
class PageCold:
    """Nothing was sent yet: the disk has to be asked first. `page_in` does so, in a thread that may wait; then `answer`
    may be asked again."""

    page_in: Callable[[], None]
    started: float


class Caller(Protocol):
    """A client's connection as the request handler sees it."""

    wire: Sender
    begun: Begun | None
    """A reply that the fast path began to the request that is handled next."""
    is_one_too_many: bool
    """There are as many connections as allowed without this one: its first request is refused, and it is closed."""
