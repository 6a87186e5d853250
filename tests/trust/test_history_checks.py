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


# -- bytes and heads ---------------------------------------------------------------------------------------------------


def test_reads_of_the_version_in_the_bucket_are_right() -> None:
    reads = [read(5, OLD), read(11.1), read(12, way="HEAD", numbers=()), read(90, node="c")]
    assert kinds(history(0), *reads) == []


def test_bytes_of_two_writes_are_a_violation() -> None:
    assert kinds(history(), read(20, numbers=(2, 1))) == ["mixed"]
    assert kinds(history(), read(20, is_misplaced=True)) == ["mixed"]
    assert kinds(history(), read(20, numbers=(7,))) == ["mixed"]
    assert kinds(history(), read(20, status=206, numbers=(2, 1), is_whole=False)) == ["mixed"]


def test_a_head_of_another_version_than_the_bytes_is_a_violation() -> None:
    for head in (OLD.head, (NEW.etag, OLD.modified, 1000), (NEW.etag, NEW.modified, 999)):
        assert kinds(history(), read(20, head=head)) == ["headers"]
    assert kinds(history(), read(20, if_match='"old"')) == ["headers"]


# -- age ---------------------------------------------------------------------------------------------------------------


def test_a_member_that_confirmed_a_write_shows_nothing_older() -> None:
    assert kinds(history(), read(10.5, OLD)) == []
    assert kinds(history(), read(11.1, OLD)) == ["stale"]


def test_the_member_through_which_a_write_went_shows_nothing_older() -> None:
    assert kinds(history(late=LATE), read(11.1, OLD, "a")) == ["stale"]


def test_a_member_that_is_late_shows_the_older_version_until_a_hello() -> None:
    heard_at = 11 + 2 + GREETED_S
    assert kinds(history(late=LATE), read(heard_at - 0.1, OLD)) == []
    assert kinds(history(late=LATE), read(heard_at + 0.1, OLD)) == ["stale"]
    slow = history(late=LATE)
    slow.lags = [(15.0, 1.0)]
    assert kinds(slow, read(heard_at + 0.1, OLD)) == []


def test_a_member_that_cannot_be_reached_shows_the_older_version_for_its_time_to_live() -> None:
    for ttl_s, allowed_until in ((5.0, 15.0), (inf, 40 + GREETED_S)):
        parted = history(ttl_s, late=LATE)
        parted.disturbances = [Disturbance("", frozenset("a"), frozenset("b"), 9, 40)]
        assert kinds(parted, read(allowed_until - 0.1, OLD)) == []
        assert kinds(parted, read(allowed_until + 0.1, OLD)) == ["stale"]


def test_a_fault_between_others_is_no_excuse() -> None:
    for some, others in (("a", "c"), ("c", ""), ("b", BUCKET)):
        parted = history(late=LATE)
        parted.disturbances = [Disturbance("", frozenset(some), frozenset([others] if others else []), 9, 40)]
        assert kinds(parted, read(30, OLD)) == ["stale"]


def test_a_process_that_began_later_believes_what_a_late_member_knows() -> None:
    begun = history()
    begun.disturbances = [Disturbance("", frozenset("b"), frozenset(), 9, 40)]
    begun.looks = [look for look in begun.looks if look.node != "a"]
    begun.downs = [Down("c", 12, 14)]
    assert kinds(begun, read(30, OLD, "c")) == []
    assert kinds(begun, read(40 + GREETED_S + 0.1, OLD, "c")) == ["stale"]


@pytest.mark.parametrize("ttl_s", [0.0, 5.0])
def test_a_write_past_the_members_shows_after_the_time_to_live(ttl_s: float) -> None:
    assert kinds(history(ttl_s, through=""), read(10 + ttl_s, OLD)) == []
    assert kinds(history(ttl_s, through=""), read(10.1 + ttl_s, OLD)) == ["stale"]
    assert kinds(history(through=""), read(90, OLD)) == []


def test_an_object_that_is_not_there_is_a_version() -> None:
    assert kinds(history(), read(20, status=404)) == ["stale"]
    deleted = history()
    deleted.versions["k"].append(Version(3, 30, None))
    deleted.writes[3] = Write(3, "k", "DELETE", "a", 30, 31, True)
    assert kinds(deleted, read(32, status=404)) == []
    assert kinds(deleted, read(32)) == ["stale"]


# -- writes ------------------------------------------------------------------------------------------------------------


def test_an_acknowledged_write_that_the_bucket_never_got_is_lost() -> None:
    gone = history()
    gone.writes[3] = Write(3, "k", "PUT", "a", 20, 21, True)
    assert kinds(gone) == ["lost"]
    gone.writes[3] = replace(gone.writes[3], is_acknowledged=False)
    assert kinds(gone) == []


def test_a_write_that_came_damaged_is_lost() -> None:
    damaged = history()
    damaged.versions["k"][1] = replace(NEW, is_damaged=True)
    assert kinds(damaged) == ["lost"]


def test_a_write_that_came_twice_is_a_violation() -> None:
    again = history()
    again.versions["k"].append(replace(NEW, at=20))
    assert kinds(again) == ["twice"]


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_read_that_fails_is_a_violation() -> None:
    for failed in ({"status": 503}, {"status": 0}, {"is_whole": False}, {"status": 412}, {"status": 416}):
        assert kinds(history(), read(20, **failed)) == ["failed"]
    assert kinds(history(), read(20, status=412, if_match='"old"'), read(20, status=416, start=1000)) == []


def test_a_read_of_a_member_that_was_killed_may_fail() -> None:
    killed = history()
    killed.downs = [Down("b", 19, 30)]
    assert kinds(killed, read(20, status=0), read(18.95, is_whole=False)) == []
    assert kinds(killed, read(20, status=0, node="c")) == ["failed"]


def test_the_bucket_s_own_failure_may_be_handed_on() -> None:
    busy = history()
    busy.disturbances = [Disturbance("", frozenset([BUCKET]), frozenset(), 19, 30)]
    assert kinds(busy, read(20, status=503, is_relayed=True)) == []
    assert kinds(busy, read(20, status=503), read(40, status=503, is_relayed=True)) == ["failed", "failed"]


def test_a_body_may_be_cut_by_an_overwrite() -> None:
    assert kinds(history(), read(9.95, OLD, is_whole=False)) == []
    assert kinds(history(), read(9.8, OLD, is_whole=False)) == ["failed"]


# -- against models ----------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(0, 500), st.integers(1, 500), st.integers(0, 500))
def test_each_byte_tells_its_write_and_its_place(number: int, start: int, length: int, moved: int) -> None:
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
