"""A read of a peer, and how it fails."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from outrider.core.model import Extent, ObjectRef, ObjectVersion


class ReadClass(StrEnum):
    """Why the bytes are requested: a client waits for them, a reader's window holds them, or the planner fetches them
    ahead."""

    DEMAND = "demand"
    NEXT = "next"
    AHEAD = "ahead"


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A version that the bucket confirmed `age_s` seconds ago. `is_settled`: see `freshness.is_settled`."""

    version: ObjectVersion
    age_s: float
    is_settled: bool = False


class Sending(NamedTuple):
    """The load of a member by all others: the bytes a second that it sends lately, and the bodies at this time."""

    bytes_s: int
    bodies: int


NOT_STATED = Sending(0, 0)
"""As of members before 0.3."""


@dataclass(frozen=True, slots=True)
class PeerRead:
    """A question about an object. `extent`: the bytes that are requested, all of one block; None: the version alone.
    `index`: the block of `extent`.

    `known`: the version of which the bytes of `extent` must be; None: the peer says which version it has, and its
    bytes end where the object does. An extent past that end is answered with the version alone. `only_if_cached`: the
    peer must not ask the bucket; without the bytes on its disk it may give the version alone. `whole_headers`: the
    checksums of the whole object are wanted.
    """

    ref: ObjectRef
    extent: Extent | None
    index: int = 0
    known: Confirmed | None = None
    read_class: ReadClass = ReadClass.DEMAND
    only_if_cached: bool = False
    whole_headers: bool = False


class PeerFailed(Exception):
    """A peer did not answer, or not so that it can be believed. The bytes come from elsewhere. `why`: a phrase, one of
    a small number, that is a metric's label: absent, broke, busy, changed, connect, digest, garbage, late, refused,
    slow, status."""

    def __init__(self, why: str, text: str = "") -> None:
        super().__init__(text or why)
        self.why = why


class PeerChanged(PeerFailed):
    """The peer says that the bucket no longer has the version that was requested. The bucket is asked who is right."""

    def __init__(self) -> None:
        super().__init__("changed", "the bucket has another version")
