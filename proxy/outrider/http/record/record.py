"""The record of one request and its reply, for the log, the metrics and the traces."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from outrider.core.s3.operation import Operation

Sent = Counter[str]
"""Body bytes sent, by source."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A request and its reply. `status` None: there was no reply. `cut`: why the reply is not whole; None: it is."""

    request_id: str
    op: str
    method: str
    operation: Operation | None
    asked_range: str | None
    client: str
    address: str
    status: int | None
    cache: str
    sent: Sent
    started: float
    cut: str | None
    reader: str | None = None
    """The reader of an object (see `access.reader_name`); None: no object was read."""
    away_s: float = 0.0
    """For how long the connection had been idle before this request."""
    full_s: float = 0.0
    """For how long the socket was full while the reply was sent."""
    app: str = ""
    """See `user_agent.app_of`."""
    first_byte_s: float | None = None
    """From the start of the request until the head of the reply was certain; None: a refusal of the proxy itself, or no
    reply."""
