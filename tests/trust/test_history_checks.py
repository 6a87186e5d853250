"""The judge of histories, on histories made by hand: it finds each kind of violation, and nothing that is allowed."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trust.histories.checks import judged
from tests.trust.histories.record import (
    BUCKET,
    Disturbance,
    Down,
    History,
    Look,
    Read,
    Version,
    Write,
    content,
    is_part,
    numbers_in,
)

NODES = ("a", "b", "c")
GREETED_S = 8.0
OLD = Version(1, 0.0, 1000, '"old"', "Monday")
NEW = Version(2, 10.0, 1000, '"new"', "Tuesday")
LATE = 4
"""The messages of `a` that were late, from its look at 10 s on; see `history`."""


def history(ttl_s: float = inf, *, late: int = 0, through: str = "a") -> History:
    """An object that was overwritten through `through` at 10 s, which was acknowledged at 11 s. All members look well;
    `late`: so many messages of that write were late."""
    made = History(ttl_s, GREETED_S, NODES, {"k": [OLD, NEW]})
    made.writes = {1: Write(1, "k", "PUT", "", 0.0, 0.0, True), 2: Write(2, "k", "PUT", through, 9.9, 11.0, True)}
    made.looks = [
        Look(node, at, at + 0.1, 1, late if at >= 10 else 0, frozenset(NODES) - {node})
        for node in NODES for at in range(100)
    ]  # fmt: skip
    return made


def read(at: float, shown: Version = NEW, node: str = "b", **other: object) -> Read:
    made = Read("k", node, "GET", at, at + 0.1, 200, shown.head, (shown.number,))
    return replace(made, **other)  # type: ignore[arg-type]


def kinds(made: History, *reads: Read) -> list[str]:
    made.reads = list(reads)
    return [violation.kind for violation in judged(made).violations]


NOTIFIED_AT = 11 + 2 + GREETED_S
"""A member that got no message of the write at 10 s was notified of it by a hello by then."""


def parted(some: str, others: str, ttl_s: float = inf) -> History:
    """A fault between these members; empty: with all others. The messages of `a` are late meanwhile."""
    made = history(ttl_s, late=LATE)
    made.disturbances = [Disturbance("", frozenset(some), frozenset([others] if others else []), 9, 40)]
    return made


def slow() -> History:
    made = history(late=LATE)
    made.lags = [(15.0, 1.0)]
    return made


def began_later() -> History:
    """`b` was cut off, nobody looked at `a`, and `c` was started meanwhile."""
    made = history()
    made.disturbances = [Disturbance("", frozenset("b"), frozenset(), 9, 40)]
    made.looks = [look for look in made.looks if look.node != "a"]
    made.downs = [Down("c", 12, 14)]
    return made


def with_write(write: Write, *versions: Version) -> History:
    made = history()
    made.versions["k"] += versions
    made.writes[write.number] = write
    return made


def with_versions(*versions: Version) -> History:
    made = history()
    made.versions["k"] = list(versions)
    return made


def killed() -> History:
    made = history()
    made.downs = [Down("b", 19, 30)]
    return made


def busy() -> History:
    made = history()
    made.disturbances = [Disturbance("", frozenset([BUCKET]), frozenset(), 19, 30)]
    return made


DELETED = Write(3, "k", "DELETE", "a", 30, 31, True), Version(3, 30, None)
GONE = Write(3, "k", "PUT", "a", 20, 21, True)
# The history, its reads, and the kinds of violations.
CASES: dict[str, tuple[History, list[Read], list[str]]] = {
    "versions that are in the bucket":
        (history(0), [read(5, OLD), read(11.1), read(12, way="HEAD", numbers=()), read(90, node="c")], []),
    "bytes of two writes": (history(), [read(20, numbers=(2, 1))], ["mixed"]),
    "bytes in another place": (history(), [read(20, is_misplaced=True)], ["mixed"]),
    "bytes of no write": (history(), [read(20, numbers=(7,))], ["mixed"]),
    "bytes of two writes, in a part": (
        history(), [read(20, status=206, numbers=(2, 1), is_whole=False)], ["mixed"]
    ),
    "the head of another version": (history(), [read(20, head=OLD.head)], ["headers"]),
    "another date": (history(), [read(20, head=(NEW.etag, OLD.modified, 1000))], ["headers"]),
    "another size": (history(), [read(20, head=(NEW.etag, NEW.modified, 999))], ["headers"]),
    "another version than that of If-Match": (history(), [read(20, if_match='"old"')], ["headers"]),
    "an older version before the write is acknowledged": (history(), [read(10.5, OLD)], []),
    "an older version after it, at a member that confirmed it": (history(), [read(11.1, OLD)], ["stale"]),
    "an older version at the member through which it went": (history(late=LATE), [read(11.1, OLD, "a")], ["stale"]),
    "a late member before a hello": (history(late=LATE), [read(NOTIFIED_AT - 0.1, OLD)], []),
    "a late member after it": (history(late=LATE), [read(NOTIFIED_AT + 0.1, OLD)], ["stale"]),
    "a late member on a slow machine": (slow(), [read(NOTIFIED_AT + 0.1, OLD)], []),
    "a member that is cut off, within its time to live": (parted("a", "b", 5.0), [read(14.9, OLD)], []),
    "a member that is cut off, after it": (parted("a", "b", 5.0), [read(15.1, OLD)], ["stale"]),
    "a member that is cut off, without an end of it": (parted("a", "b"), [read(40 + GREETED_S - 0.1, OLD)], []),
    "a member that meets the others again": (parted("a", "b"), [read(40 + GREETED_S + 0.1, OLD)], ["stale"]),
    **{f"a fault between {some} and {others or 'all'}, no excuse": (parted(some, others), [read(30, OLD)], ["stale"])
       for some, others in (("a", "c"), ("c", ""), ("b", BUCKET))},
    "a process that began later, and believes a late member": (began_later(), [read(30, OLD, "c")], []),
    "the same, once all met": (began_later(), [read(40 + GREETED_S + 0.1, OLD, "c")], ["stale"]),
    **{f"a write past the members, {when} {ttl_s} s": (history(ttl_s, through=""), [read(at + ttl_s, OLD)], found)
       for ttl_s in (0.0, 5.0) for when, at, found in (("within", 10, []), ("after", 10.1, ["stale"]))},
    "a write past the members, without a time to live": (history(through=""), [read(90, OLD)], []),
    "a 404 where there is an object": (history(), [read(20, status=404)], ["stale"]),
    "a 404 after a deletion": (with_write(*DELETED), [read(32, status=404)], []),
    "an object after a deletion": (with_write(*DELETED), [read(32)], ["stale"]),
    "an acknowledged write that the bucket never got": (with_write(GONE), [], ["lost"]),
    "a write without an answer that the bucket never got": (with_write(replace(GONE, is_acknowledged=False)), [], []),
    "a write that came damaged": (with_versions(OLD, replace(NEW, is_damaged=True)), [], ["lost"]),
    "a write that came twice": (with_versions(OLD, NEW, replace(NEW, at=20)), [], ["twice"]),
    **{f"a read that failed: {failed}": (history(), [read(20, **failed)], ["failed"])
       for failed in ({"status": 503}, {"status": 0}, {"is_whole": False}, {"status": 412}, {"status": 416})},
    "refusals that the requests asked for": (
        history(), [read(20, status=412, if_match='"old"'), read(20, status=416, start=1000)], []
    ),
    "a member that was killed": (killed(), [read(20, status=0), read(18.95, is_whole=False)], []),
    "another member than that which was killed": (killed(), [read(20, status=0, node="c")], ["failed"]),
    "a failure of the bucket that is handed on": (busy(), [read(20, status=503, is_relayed=True)], []),
    "a failure that is not the bucket's": (busy(), [read(20, status=503)], ["failed"]),
    "a failure that is handed on, while members did not see each other":
        (parted("a", "c"), [read(20, status=503, is_relayed=True)], ["failed"]),
    "a failure of the bucket that is over": (busy(), [read(40, status=503, is_relayed=True)], ["failed"]),
    "a body that an overwrite cut": (history(), [read(9.95, OLD, is_whole=False)], []),
    "a body that was cut before it": (history(), [read(9.8, OLD, is_whole=False)], ["failed"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_kind_of_violation_is_found_and_nothing_that_is_allowed(case: str) -> None:
    made, reads, expected = CASES[case]
    assert kinds(made, *reads) == expected


# -- against models ----------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(0, 500), st.integers(1, 500), st.integers(0, 500))
def test_each_byte_shows_its_write_and_its_place(number: int, start: int, length: int, moved: int) -> None:
    whole = content(number, 1000)
    part = whole[start : start + length]
    assert is_part(part, number, start)
    assert numbers_in(part, start) in ((number,), ())
    if length > 2 * 16 and moved != start:
        assert not is_part(part, number, moved)
    mixed = whole[:512] + content(number + 1, 1000)[512:]
    assert numbers_in(mixed, 0) == (number, number + 1)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 3.0, inf]))
def test_the_age_of_versions_is_judged_as_by_a_model(seed: int, ttl_s: float) -> None:
    """All members confirm all writes. The model looks at each later version, and knows nothing of lateness."""
    chance = random.Random(seed)
    made = history(ttl_s)
    made.versions, made.writes = {"k": []}, {}
    for number in range(1, 8):
        began, node = chance.uniform(0, 20), chance.choice((*NODES, ""))
        at = began + chance.uniform(0, 2)
        ended = at + chance.uniform(0, 2)
        made.writes[number] = Write(number, "k", "PUT", node, began, ended, chance.random() < 0.8)
        made.versions["k"].append(Version(number, at, 100, f'"{number}"'))
    made.versions["k"].sort(key=lambda version: version.at)
    versions = made.versions["k"]

    def is_allowed(at: float, index: int) -> bool:
        later = versions[index + 1 :]
        writes = [made.writes[version.number] for version in later]
        return all(at <= version.at + ttl_s + 0.05 for version in later) and all(
            not (write.node and write.is_acknowledged) or at <= write.ended for write in writes
        )

    for _ in range(20):
        at, index = chance.uniform(0, 30), chance.randrange(len(versions))
        found = kinds(made, read(at, versions[index], chance.choice(NODES)))
        assert found == ([] if is_allowed(at, index) else ["stale"])
