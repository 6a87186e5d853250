"""The record of a run: writes, the versions that the bucket had, reads, and what kept members from hearing of writes.

All times are seconds of one monotonic clock: clients, bucket and faults are in one process.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf

CELL_BYTES = 16
"""A body is made of cells: the number of its write and the number of the cell. So each cell shows whose it is, and that
it lies where it belongs."""


@lru_cache(64)
def content(number: int, size: int) -> bytes:
    """The body of a write."""
    cells = -(-size // CELL_BYTES)
    words = array("Q", bytes(cells * CELL_BYTES))
    words[0::2] = array("Q", [number]) * cells
    words[1::2] = array("Q", range(cells))
    return words.tobytes()[:size]


def is_part(body: bytes, number: int, start: int) -> bool:
    """Whether these are the bytes of the write `number` from `start` on."""
    return body == content(number, start + len(body))[start:]


def numbers_in(body: bytes, start: int) -> tuple[int, ...]:
    """The writes whose cells are in a body that begins at the byte `start` of its object, in their order. Cells that
    are not there in whole do not count."""
    first = -start % CELL_BYTES
    cells = (len(body) - first) // CELL_BYTES
    if cells <= 0:
        return ()
    words = memoryview(body)[first : first + cells * CELL_BYTES].cast("Q")
    return tuple(dict.fromkeys(words[0::2].tolist() if sys.version_info >= (3, 12) else words.tolist()[0::2]))


@dataclass(frozen=True, slots=True)
class Write:
    """`way`: PUT, COPY and so on. `node`: through which member; empty: straight at the bucket. `ended`: when its client
    had the whole answer."""

    number: int
    key: str
    way: str
    node: str
    began: float
    ended: float = inf
    is_acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class Version:
    """The state of an object in the bucket from `at` on. `size` None: there is no object. `is_damaged`: the bytes that
    came are not those of the write."""

    number: int
    at: float
    size: int | None
    etag: str = ""
    modified: str = ""
    is_damaged: bool = False

    @property
    def head(self) -> tuple[str, str, int | None]:
        """The validators of the version in replies: no two versions of an object have the same."""
        return self.etag, self.modified, self.size


ABSENT = Version(0, -inf, None)
"""The state of each object before its first write."""


@dataclass(frozen=True, slots=True)
class Read:
    """`status` 0: no reply came. `head`: see `Version.head`. `numbers`: see `numbers_in`. `is_misplaced`: the bytes are
    of one write and do not lie where they belong. `is_whole`: all bytes came that the head promised. `start`: the first
    byte that was asked for. `if_match`: the ETag that was asked for; empty: any. `is_relayed`: the member says that it
    relayed the bucket's reply as it is. `refusal`: the document of an error."""

    key: str
    node: str
    way: str
    began: float
    ended: float
    status: int
    head: tuple[str, str, int | None] = ("", "", None)
    numbers: tuple[int, ...] = ()
    is_misplaced: bool = False
    is_whole: bool = True
    start: int = 0
    if_match: str = ""
    is_relayed: bool = False
    refusal: str = ""


BUCKET = "bucket"
"""The bucket among the hosts of members."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """From `began` to `ended` messages between `some` and `others` may get lost or be late. `others` empty: between
    `some` and everybody."""

    why: str
    some: frozenset[str]
    others: frozenset[str]
    began: float
    ended: float

    def is_between(self, one: str, other: str) -> bool:
        if not self.others:
            return one in self.some or other in self.some
        return (one in self.some and other in self.others) or (other in self.some and one in self.others)


@dataclass(frozen=True, slots=True)
class Down:
    """The process of `node` was not there, or not ready."""

    node: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Look:
    """An account of the member `node` by itself. `boot`: the number of its process. `unconfirmed`: how many of its
    messages of writes were confirmed late or not at all. `alive`: the other members that it would ask."""

    node: str
    began: float
    ended: float
    boot: int
    unconfirmed: int
    alive: frozenset[str]


@dataclass
class History:
    """`ttl_s`: 0 for `always`, inf for `immutable`. `greeted_s`: members that can reach each other have exchanged the
    numbers of their writes, and acted on them, after so long. `versions`: those of each object, in their order."""

    ttl_s: float
    greeted_s: float
    members: tuple[str, ...]
    versions: dict[str, list[Version]] = field(default_factory=dict)
    writes: dict[int, Write] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    disturbances: list[Disturbance] = field(default_factory=list)
    downs: list[Down] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    lags: list[tuple[float, float]] = field(default_factory=list)
    """How much later than due this process woke up, and when."""
