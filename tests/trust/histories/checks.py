"""The checks of a history. Pure: a history goes in, its violations come out.

A version is older than allowed where a later one of the same object was in the bucket for longer than the time to live
when the read began, or where its write was acknowledged before, through a member, and the member that was read had to
know of it. docs/cluster.md ("Writes and members that learn late") says when that is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

from tests.trust.histories.record import ABSENT, BUCKET

if TYPE_CHECKING:
    from tests.trust.histories.record import Disturbance, Down, History, Look, Read, Version, Write

# Members hand the age of an answer on in milliseconds, and look at the clock once an iteration of their loop.
_CLOCK_S = 0.05
# A message that was not confirmed by then is given up, and counted.
_GIVEN_UP_S = 2.0


@dataclass(frozen=True, slots=True)
class Violation:
    """`kind`: mixed, headers, stale, lost, twice, failed."""

    kind: str
    key: str
    text: str


@dataclass
class Verdict:
    """`bound_reads`: the reads that began after an acknowledged write which their member had to know. `stale_s`: the
    longest that a version was in the bucket no more when a read began that showed it."""

    violations: list[Violation] = field(default_factory=list)
    bound_reads: int = 0
    late_reads: int = 0
    stale_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)

    def by_object(self) -> dict[tuple[str, str], list[str]]:
        """The violations of each kind and object: most have one cause."""
        alike: dict[tuple[str, str], list[str]] = {}
        for violation in self.violations:
            alike.setdefault((violation.kind, violation.key), []).append(violation.text)
        return alike


def judged(history: History) -> Verdict:
    return _Judge(history).verdict()


class _Judge:
    def __init__(self, history: History) -> None:
        self._history = history
        self._verdict = Verdict()
        self._must_know: dict[tuple[int, str], float] = {}

    def verdict(self) -> Verdict:
        self._judge_writes()
        for read in self._history.reads:
            self._judge_read(read)
        return self._verdict

    def _violated(self, kind: str, key: str, text: str) -> None:
        self._verdict.violations.append(Violation(kind, key, text))

    # -- writes -------------------------------------------------------------------------------------------------------

    def _judge_writes(self) -> None:
        stored: set[int] = set()
        for key, versions in self._history.versions.items():
            for version in versions:
                if version.number in stored:
                    self._violated("twice", key, f"the bucket got a write again: {version}")
                stored.add(version.number)
                if version.is_damaged:
                    self._violated(
                        "lost", key, f"the bucket got other bytes than those of write {version.number} of {key}"
                    )
        for write in self._history.writes.values():
            if write.is_acknowledged and write.number not in stored:
                self._violated("lost", write.key, f"the bucket never got an acknowledged write: {write}")

    # -- reads --------------------------------------------------------------------------------------------------------

    def _judge_read(self, read: Read) -> None:
        versions = self._history.versions.get(read.key, [])
        if len(read.numbers) > 1 or read.is_misplaced:
            self._violated("mixed", read.key, f"bytes of writes {read.numbers}: {read}")
            return
        if read.status in (200, 206):
            index = self._shown(read, versions)
            if index is None:
                return
            if not read.is_whole and not self._is_excused(read, versions, index):
                self._violated("failed", read.key, f"cut: {read}")
            self._judge_age(read, versions, index)
            self._verdict.outcomes["whole" if read.is_whole else "cut"] += 1
        elif read.status == 404:
            gone = [at for at, version in enumerate(versions) if version.size is None and version.at < read.ended]
            self._judge_age(read, versions, gone[-1] if gone else -1)
            self._verdict.outcomes["404"] += 1
        elif read.status == 412 and read.if_match:
            self._verdict.outcomes["412"] += 1
        elif read.status == 416 and any((v.size or 0) <= read.start and v.at < read.ended for v in versions):
            self._verdict.outcomes["416"] += 1
        else:
            self._verdict.outcomes["503 of the bucket" if read.is_relayed else "failed"] += 1
            if not self._may_fail(read):
                self._violated("failed", read.key, f"{read}")

    def _shown(self, read: Read, versions: list[Version]) -> int | None:
        """The index of the version that the read shows, by its bytes or else by its head. None: a violation."""
        by_head = [at for at, version in enumerate(versions) if version.size is not None and version.head == read.head]
        by_bytes = [at for at, version in enumerate(versions) if version.number in read.numbers]
        if read.numbers and not by_bytes:
            self._violated("mixed", read.key, f"bytes of a write that the bucket never had: {read}")
            return None
        if not by_head or (by_bytes and not set(by_head) & set(by_bytes)):
            had = [versions[at].head for at in by_bytes]
            self._violated("headers", read.key, f"the head fits no version, and not {had}, whose bytes came: {read}")
            return None
        if read.if_match not in ("", read.head[0]):
            self._violated("headers", read.key, f"another ETag than that of If-Match: {read}")
        return (by_bytes or by_head)[-1]

    def _may_fail(self, read: Read) -> bool:
        """Whether its member was not there, or handed on what the bucket gave just then."""
        if any(down.node == read.node and _overlaps(read, down) for down in self._history.downs):
            return True
        return read.is_relayed and any(
            disturbance.is_between(BUCKET, read.node) and _overlaps(read, disturbance)
            for disturbance in self._disturbances
        )

    def _is_excused(self, read: Read, versions: list[Version], index: int) -> bool:
        """Whether a body may be cut: the read may fail, or the bucket no longer had the version."""
        return self._may_fail(read) or any(version.at < read.ended for version in versions[index + 1 :])

    # -- age ----------------------------------------------------------------------------------------------------------

    def _judge_age(self, read: Read, versions: list[Version], index: int) -> None:
        shown = versions[index] if index >= 0 else ABSENT
        is_late = False
        for later in versions[index + 1 :]:
            if later.at >= read.began:
                break
            if not is_late:
                self._verdict.stale_s = max(self._verdict.stale_s, read.began - later.at)
                is_late = True
            write = self._history.writes.get(later.number)
            overdue_s = read.began - later.at - self._history.ttl_s
            if overdue_s > _CLOCK_S:
                self._violated(
                    "stale", read.key, f"{overdue_s:.3f} s after the time to live: {read} shows {shown}, after {write}"
                )
                return
            if write is not None and (known_s := read.began - self._known_at(write, read.node)) > 0:
                self._violated(
                    "stale", read.key, f"{known_s:.3f} s after it was to be known: {read} shows {shown}, after {write}"
                )
                return
        self._verdict.late_reads += is_late
        write = self._history.writes.get(shown.number)
        self._verdict.bound_reads += write is not None and read.began > self._known_at(write, read.node)

    def _known_at(self, write: Write, node: str) -> float:
        """A read of `node` that begins later must not show an older version; inf: it may."""
        if not write.node or not write.is_acknowledged:
            return inf
        known = self._must_know.get((write.number, node))
        if known is None:
            # A process that began after the write was not notified of it, and believes what another member knows.
            begins = any(down.node == node and down.ended > write.began for down in self._history.downs)
            of = self._history.members if begins else (node,)
            known = self._must_know[write.number, node] = max(self._notified_at(write, member) for member in of)
        return known

    def _notified_at(self, write: Write, member: str) -> float:
        if member == write.node or self._has_confirmed(write, member):
            return write.ended
        at = write.ended + _GIVEN_UP_S
        for disturbance in self._disturbances:
            if disturbance.is_between(write.node, member) and disturbance.ended > write.began:
                if disturbance.began > at + self._history.greeted_s:
                    break
                at = max(at, disturbance.ended)
        received_at = at + self._history.greeted_s
        return received_at + 2 * self._lag_s(write.began, received_at)

    def _has_confirmed(self, write: Write, member: str) -> bool:
        """Whether the member through which the write went says so: it counted no message that was late or lost, from
        before the write until after the last one was given up."""
        looks = self._looks[write.node]
        before = bisect_left(looks, write.began, key=lambda look: look.ended) - 1
        after = bisect_left(looks, write.ended + _GIVEN_UP_S + 0.5, key=lambda look: look.began)
        if before < 0 or after >= len(looks):
            return False
        first, last = looks[before], looks[after]
        return (
            first.boot == last.boot
            and first.unconfirmed == last.unconfirmed
            and all(member in look.alive for look in looks[before : after + 1])
        )

    def _lag_s(self, began: float, ended: float) -> float:
        lags = self._lags
        first = bisect_left(lags, began, key=lambda lag: lag[0])
        last = bisect_left(lags, ended, key=lambda lag: lag[0])
        return max((lag for _, lag in lags[first : last + 1]), default=0.0)

    @cached_property
    def _lags(self) -> list[tuple[float, float]]:
        return sorted(self._history.lags)

    @cached_property
    def _disturbances(self) -> list[Disturbance]:
        return sorted(self._history.disturbances, key=lambda each: each.began)

    @cached_property
    def _looks(self) -> defaultdict[str, list[Look]]:
        looks: defaultdict[str, list[Look]] = defaultdict(list)
        for look in sorted(self._history.looks, key=lambda each: each.began):
            looks[look.node].append(look)
        return looks


def _overlaps(read: Read, fault: Down | Disturbance) -> bool:
    return fault.began < read.ended and read.began < fault.ended
