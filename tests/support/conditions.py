"""The conditions that the bucket simulator imposes (rates, latency, faults), and its counters."""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


LOG_REQUESTS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it arrived. `path` and `query` are raw (still percent-encoded); header names are lower case."""

    method: str
    path: str
    query: str
    headers: dict[str, str]


class FaultKind(StrEnum):
    RESET = "reset"  # the connection is reset after `after_bytes` of the body
    STALL = "stall"  # nothing more comes after `after_bytes` of the body, for `for_s` or until `release()`
    TRUNCATE = "truncate"  # the connection is closed in good order after `after_bytes` of the body
    STATUS = "status"  # `status` with an S3 error XML; the request does not reach the bucket
    LATE = "late"  # the answer's head is held back, for `for_s` or until `release()`
    ACT = "act"  # `act` is called after `after_bytes` of the body, before the next of them
    WRONG_RANGE = "wrong_range"  # Content-Range names bytes one further on than those that follow
    OTHER_TOTAL = "other_total"  # Content-Range says that the object is `by_bytes` larger
    OTHER_LENGTH = "other_length"  # Content-Range names an extent that is `by_bytes` longer than what follows
    LONGER = "longer"  # `by_bytes` of other data follow the body, and Content-Length counts them
    TURN = "turn"  # one bit of the body's byte at `after_bytes` turns on the way
    SHORTER = "shorter"  # Content-Length is at most `after_bytes`, and the body ends there
    OTHER_ETAG = "other_etag"  # the answer has another ETag
    ASTRAY = "astray"  # the answer to a Range brings, and names, bytes that lie `by_bytes` further on
    DEAF = "deaf"  # the bucket never sees those of the request's headers that `deaf_to` names
    DROP = "drop"  # the connection is closed before any answer; the bucket did get the request
    LOSE = "lose"  # the same, after the bucket has answered: it has carried the request out
    CUT_UPLOAD = "cut_upload"  # the connection is reset after `after_bytes` of the request's body


@dataclass(slots=True)
class Fault:
    """One fault of the requests that it matches, `times` times (None: always).

    `after_bytes` 0 with RESET, STALL, ACT and TRUNCATE means after the head. An answer with a shorter body is not
    affected, but the fault counts as spent. With `probability` below 1, a random generator (seeded by the conditions)
    picks among the matching requests.
    """

    kind: FaultKind
    times: int | None = 1
    method: str | None = "GET"
    path_contains: str = ""
    when: Callable[[Request], bool] | None = None
    probability: float = 1.0
    after_bytes: int = 0
    status: int = 503
    code: str | None = None
    retry_after_s: int | None = None
    for_s: float | None = None
    by_bytes: int = 1
    deaf_to: tuple[str, ...] = ("range",)
    act: Callable[[], object] | None = None

    def matches(self, request: Request) -> bool:
        return (
            self.times != 0
            and self.method in (None, request.method)
            and self.path_contains in request.path
            and (self.when is None or self.when(request))
        )


@dataclass(slots=True)
class Conditions:
    """May be changed at any time, also while answers are under way; rates hold from the next slice on.

    `ttfb_s` is the minimum time from the end of a request to the first byte of its answer; the bucket's own time is
    part of it. Rates apply to bodies of answers; None is no limit. Bodies of requests are never slowed down.
    """

    ttfb_s: float = 0.0
    connection_bytes_s: float | None = None
    total_bytes_s: float | None = None
    faults: list[Fault] = field(default_factory=list)
    seed: int = 1
    _random: random.Random | None = field(default=None, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def draw(self, request: Request) -> Fault | None:
        """The first fault that strikes this request; this spends one of its `times`."""
        with self._lock:
            self._random = self._random or random.Random(self.seed)
            for fault in self.faults:
                if fault.matches(request) and (fault.probability >= 1 or self._random.random() < fault.probability):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def update(self, changes: Mapping[str, Any]) -> None:
        """Set knobs from plain JSON values; faults come as a list of objects with Fault's field names.

        Raises:
            ValueError: a name or a kind that does not exist.
        """
        known = {knob.name for knob in fields(self) if knob.init}
        if unknown := set(changes) - known:
            raise ValueError(f"unknown knobs {sorted(unknown)}: there are {sorted(known)}")
        for name, value in changes.items():
            if name == "faults":
                self.faults = [Fault(**{**fault, "kind": FaultKind(fault["kind"])}) for fault in value]
            else:
                setattr(self, name, value)


@dataclass(frozen=True, slots=True)
class Counts:
    """The traffic since the start or the last reset. `body_bytes` went to clients; framing and heads are not included.

    `concurrent_max` is the maximum of requests under way at once. `connections` were accepted from clients.
    """

    by_method: dict[str, int]
    body_bytes: int
    request_body_bytes: int
    concurrent_max: int
    connections: int

    @property
    def requests(self) -> int:
        return sum(self.by_method.values())

    @property
    def gets(self) -> int:
        return self.by_method.get("GET", 0)

    @property
    def heads(self) -> int:
        return self.by_method.get("HEAD", 0)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Tally:
    """The running counts behind `Counts`, and the last requests; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._clear()

    def _clear(self) -> None:
        self._by_method: Counter[str] = Counter()
        self._body_bytes = 0
        self._request_body_bytes = 0
        self._concurrent_max = self._under_way
        self._connections = 0
        self._log: deque[Request] = deque(maxlen=LOG_REQUESTS_MAX)

    def connected(self) -> None:
        with self._lock:
            self._connections += 1

    def begin(self, request: Request) -> None:
        with self._lock:
            self._by_method[request.method] += 1
            self._log.append(request)
            self._under_way += 1
            self._concurrent_max = max(self._concurrent_max, self._under_way)

    def end(self) -> None:
        with self._lock:
            self._under_way -= 1

    def sent(self, size_bytes: int) -> None:
        with self._lock:
            self._body_bytes += size_bytes

    def received(self, size_bytes: int) -> None:
        with self._lock:
            self._request_body_bytes += size_bytes

    def counts(self) -> Counts:
        with self._lock:
            return self._counts()

    def reset(self) -> Counts:
        """Restart the counters; returns the counts until now. No request is lost in between."""
        with self._lock:
            counts = self._counts()
            self._clear()
            return counts

    def log(self) -> list[Request]:
        with self._lock:
            return list(self._log)

    def _counts(self) -> Counts:
        return Counts(
            by_method=dict(self._by_method),
            body_bytes=self._body_bytes,
            request_body_bytes=self._request_body_bytes,
            concurrent_max=self._concurrent_max,
            connections=self._connections,
        )


# The duration of a slice at the lowest rate that applies: long compared with a sleep's overshoot (0.1 ms), short for
# fairness.
SLICE_S = 0.005
# One Ethernet frame: on a slow line, a sender of few bytes waits for no more than this of the others'.
SLICE_BYTES_MIN = 1500
SLICE_BYTES_MAX = 256 * 1024
# The lateness that a sender may make up for: it covers a thread that the scheduler delayed, and hides no idle minute.
CATCH_UP_S = 0.02


def reserve(free_at: float, now: float, size_bytes: int, rate_bytes_s: float, catch_up_s: float = CATCH_UP_S) -> float:
    """The time at which the last of `size_bytes` has passed a line of this rate that is busy until `free_at`.

    The line is then busy until the returned time. A line that was idle has at most `catch_up_s` of credit.
    """
    return max(free_at, now - catch_up_s) + size_bytes / rate_bytes_s


def slice_bytes(*rates_bytes_s: float | None) -> int:
    """How many bytes to move at once under these rates; None is no limit."""
    bound = [rate for rate in rates_bytes_s if rate is not None]
    if not bound:
        return SLICE_BYTES_MAX
    return max(SLICE_BYTES_MIN, min(SLICE_BYTES_MAX, int(min(bound) * SLICE_S)))


class Line:
    """One line of a given rate. Many threads may share it: they are served first come, first served, slice by slice."""

    def __init__(self, now: float) -> None:
        self._free_at = now
        self._lock = threading.Lock()

    def take(self, size_bytes: int, rate_bytes_s: float | None, now: float) -> float:
        """The time at which these bytes have passed. The rate may differ from call to call; None: they pass at once."""
        if rate_bytes_s is None:
            return now
        with self._lock:
            self._free_at = reserve(self._free_at, now, size_bytes, rate_bytes_s)
            return self._free_at
