"""The record of one request and its answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.core.s3.operation import Operation

if TYPE_CHECKING:
    pass


Sent = Counter[str]
"""Body bytes sent, by source."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A request and its answer, for the log and the metrics. `status` None: there was none. `cut`: why the answer is
    not whole; None: it is."""

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
    """Who read an object (see `access.reader_name`); None: nobody did."""
    away_s: float = 0.0
    """For how long his connection had asked for nothing before."""
    full_s: float = 0.0
    """For how long his socket was full meanwhile."""
    app: str = ""
    """See `useragent.app_of`."""
    first_byte_s: float | None = None
    """From its start until the head of the answer was certain; None: a refusal of our own, or no answer."""
