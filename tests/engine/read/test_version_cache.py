"""The version cache: for how long a version is fresh, by the clock, by writes, by LISTs and by the limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cache.freshness import Freshness
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.packed_version import PACKING, is_of, unpack
from outrider.core.s3.list_page import ListedObject
from outrider.engine.read import version_rows
from outrider.engine.read.version_cache import VersionCache
from outrider.ports import Belief
from tests.support.fakes import FakeClock

A, B, ELSEWHERE = ObjectRef("bkt", "a"), ObjectRef("bkt", "b"), ObjectRef("other", "a")


def version(ref: ObjectRef, number: int = 1) -> ObjectVersion:
    return ObjectVersion(ref, f'"{number}"', 10)


def versions_of(mode: str = "ttl:60", capacity: int = 100) -> tuple[VersionCache, FakeClock]:
    clock = FakeClock()
    return VersionCache("http://o", lambda _: Freshness.parse(mode), clock, capacity), clock


def test_freshness_counts_from_the_time_of_the_request() -> None:
    versions, clock = versions_of()
    mark = versions.mark()
    clock.advance(30)
    versions.learn(version(A), mark)
    clock.advance(29)
    assert versions.fresh(A) == version(A)
    clock.advance(1)
    assert versions.fresh(A) is None
    assert versions.stale(A) == version(A)


@pytest.mark.parametrize("mode", ["immutable", "ttl:60"])
def test_a_forgotten_object_is_revalidated_in_any_mode_and_never_served_stale(mode: str) -> None:
    versions, _ = versions_of(mode)
    for ref in (A, B):
        versions.learn(version(ref), versions.mark())
    versions.forget(A)
    assert (versions.fresh(A), versions.stale(A)) == (None, None)
    assert versions.fresh(B) == version(B)


def test_an_answer_to_a_request_older_than_a_write_sets_no_version() -> None:
    versions, _ = versions_of()
    mark = versions.mark()
    versions.forget(A)
    versions.learn(version(A), mark)
    assert versions.fresh(A) is None
    versions.learn(version(A, 2), versions.mark())
    assert versions.fresh(A) == version(A, 2)


def in_a_list(number: int = 1) -> ListedObject:
    return ListedObject("a", 10, f'"{number}"', "2026-01-01T00:00:00Z")


def dated(number: int = 1) -> ObjectVersion:
    return replace(version(A, number), headers=(("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT"),))


def test_a_list_that_shows_the_same_version_counts_from_the_time_of_its_request() -> None:
    versions, clock = versions_of()
    versions.learn(dated(), versions.mark(), settled=True)
    clock.advance(50)
    mark = versions.mark()
    clock.advance(20)
    assert versions.fresh(A) is None
    versions.listed("bkt", [in_a_list(), ListedObject("unknown", 1)], mark)
    assert versions.fresh(A) == dated()
    clock.advance(40)
    assert versions.fresh(A) is None
    versions.listed("other", [in_a_list()], versions.mark())
    assert versions.fresh(A) is None, "the LIST was of another bucket"


def test_a_list_that_shows_another_version_makes_the_known_one_doubtful() -> None:
    versions, _ = versions_of("immutable")
    versions.learn(dated(), versions.mark(), settled=True)
    before = versions.changes
    versions.listed("bkt", [in_a_list(2)], versions.mark())
    assert versions.fresh(A) is None
    assert versions.changes > before, "a cached lookup must be made again"


def test_a_list_without_etags_neither_confirms_nor_doubts_a_version() -> None:
    versions, clock = versions_of()
    versions.learn(dated(), versions.mark(), settled=True)
    for size in (-1, 10):
        versions.listed("bkt", [ListedObject("a", size)], versions.mark())
        assert versions.fresh(A) == dated()
    versions.listed("bkt", [ListedObject("a", 11)], versions.mark())
    assert versions.fresh(A) is None, "another size is another version"
    versions.learn(dated(), versions.mark(), settled=True)
    clock.advance(50)
    versions.listed("bkt", [ListedObject("a", 10)], versions.mark())
    clock.advance(20)
    assert versions.fresh(A) is None


def test_a_list_older_than_the_known_version_or_than_a_write_confirms_nothing() -> None:
    versions, clock = versions_of()
    mark = versions.mark()
    clock.advance(1)
    versions.learn(dated(2), versions.mark(), settled=True)
    versions.listed("bkt", [in_a_list(1)], mark)
    assert versions.fresh(A) == dated(2)
    mark = versions.mark()
    versions.forget(A)
    versions.listed("bkt", [in_a_list(2)], mark)
    assert versions.fresh(A) is None


def test_after_a_write_no_list_confirms_a_version() -> None:
    versions, _ = versions_of()
    versions.learn(dated(), versions.mark(), settled=True)
    versions.forget(A)
    versions.listed("bkt", [in_a_list()], versions.mark())
    assert versions.fresh(A) is None


def test_a_list_confirms_a_version_that_a_start_found_and_that_was_not_written_for_a_while() -> None:
    versions, clock = versions_of()
    versions.recall("http://o", Belief(dated(), vouched=True))
    assert versions.fresh(A) is None, "no LIST yet"
    for _ in range(80):
        versions.listed("bkt", [in_a_list()], versions.mark())
        assert versions.fresh(A) == dated()
        clock.advance(45)
    versions.listed("bkt", [in_a_list()], versions.mark())
    clock.advance(30)
    assert versions.fresh(A) is None, "after an hour"


def test_no_list_confirms_a_version_that_a_start_found_after_a_write_or_another_version() -> None:
    versions, _ = versions_of()
    versions.recall("http://o", Belief(dated(), vouched=True))
    versions.listed("bkt", [in_a_list(2)], versions.mark())
    versions.listed("bkt", [in_a_list()], versions.mark())
    assert versions.fresh(A) is None
    versions, _ = versions_of()
    versions.forget(A)
    versions.recall("http://o", Belief(dated(), vouched=True))
    versions.listed("bkt", [in_a_list()], versions.mark())
    assert versions.fresh(A) is None


def test_a_start_that_finds_two_versions_believes_the_vouched_one() -> None:
    versions, _ = versions_of()
    versions.recall("http://o", Belief(dated(1)))
    versions.recall("http://o", Belief(dated(2), vouched=True))
    versions.listed("bkt", [in_a_list(2)], versions.mark())
    assert versions.fresh(A) == dated(2)
    versions.recall("http://o", Belief(dated(1), vouched=True))
    assert versions.fresh(A) == dated(2), "the object was revalidated already"
    versions, _ = versions_of()
    versions.recall("http://o", Belief(dated()))
    versions.recall("http://o", Belief(dated(), vouched=True))
    versions.listed("bkt", [in_a_list()], versions.mark())
    assert versions.fresh(A) is None, "one block of it was filled too soon"


@pytest.mark.parametrize(("origin", "believed"), [("http://o", dated()), ("http://another", None)])
def test_a_start_that_finds_many_versions_believes_those_of_its_own_origin(
    origin: str, believed: ObjectVersion | None
) -> None:
    versions, _ = versions_of()
    versions.recall_all(origin, [A], [PACKING.pack(dated())], [None], [True])
    versions.listed("bkt", [in_a_list()], versions.mark())
    assert versions.fresh(A) == believed


def test_a_version_is_vouched_for_over_a_stop_only_with_the_headers_that_the_origin_sent_last() -> None:
    versions, _ = versions_of()
    assert not versions.belief("http://o", dated()).vouched
    versions.learn(dated(), versions.mark())
    assert not versions.belief("http://o", dated()).vouched, "the object may be put again with the same date"
    versions.learn(dated(), versions.mark(), settled=True)
    assert versions.belief("http://o", dated()).vouched
    assert not versions.belief("http://another", dated()).vouched
    on_disk = replace(dated(), headers=(*dated().headers, ("x-amz-tagging-count", "1")))
    assert versions.belief("http://o", on_disk).version == dated()
    versions.forget(A)
    assert not versions.belief("http://o", dated()).vouched
    versions.learn(dated(), versions.mark(), settled=True)
    assert versions.belief("http://o", dated()).vouched
    versions.doubt(A)
    versions.learn(dated(), versions.mark(), settled=True)
    assert not versions.belief("http://o", dated()).vouched, "the write may still be carried out"


def test_a_version_that_was_found_and_not_revalidated_is_unchanged_for_the_next_start() -> None:
    versions, _ = versions_of()
    versions.recall("http://o", Belief(dated(), vouched=True))
    versions.recall("http://o", Belief(version(B)))
    assert versions.belief("http://o", dated()).vouched
    assert not versions.belief("http://o", version(B)).vouched
    versions.forget(A)
    assert not versions.belief("http://o", dated()).vouched


def test_an_object_whose_entry_fell_out_or_that_is_gone_may_still_have_blocks() -> None:
    versions, _ = versions_of(capacity=1)
    versions.learn(version(A), versions.mark())
    versions.learn(version(B), versions.mark())
    versions.gone(B)
    versions.gone(ELSEWHERE)
    assert [versions.may_have(ref) for ref in (A, B, ELSEWHERE)] == [True, True, False]


def test_no_list_confirms_the_headers_of_a_version_that_a_start_found() -> None:
    versions, clock = versions_of()
    versions.recall("http://o", Belief(dated()))
    versions.listed("bkt", [in_a_list()], versions.mark())
    assert versions.fresh(A) is None
    versions.learn(dated(), versions.mark(), settled=True)
    clock.advance(50)
    versions.listed("bkt", [in_a_list()], versions.mark())
    clock.advance(50)
    assert versions.fresh(A) == dated(), "the origin was asked for the object itself"


def test_no_list_confirms_a_version_that_may_be_overwritten_with_the_same_date() -> None:
    versions, clock = versions_of()
    versions.learn(dated(), versions.mark())
    clock.advance(50)
    versions.listed("bkt", [in_a_list()], versions.mark())
    assert versions.fresh(A) == dated(), "its own time is not up"
    clock.advance(10)
    assert versions.fresh(A) is None
    versions.learn(dated(), versions.mark(), settled=True)
    clock.advance(50)
    versions.listed("bkt", [in_a_list()], versions.mark())
    clock.advance(50)
    assert versions.fresh(A) == dated()


def test_an_object_is_revalidated_once_an_hour_however_often_it_is_listed() -> None:
    versions, clock = versions_of()
    versions.learn(dated(), versions.mark(), settled=True)
    for _ in range(80):
        assert versions.fresh(A) == dated()
        clock.advance(45)
        versions.listed("bkt", [in_a_list()], versions.mark())
    clock.advance(30)
    assert versions.fresh(A) is None, "after an hour: tags, say, do not show in a LIST"
    versions.learn(dated(), versions.mark(), settled=True)
    assert versions.fresh(A) == dated()


def test_a_late_answer_to_an_older_request_does_not_replace_a_newer_one() -> None:
    versions, clock = versions_of()
    older = versions.mark()
    clock.advance(1)
    newer = versions.mark()
    versions.learn(version(A, 2), newer)
    versions.learn(version(A, 1), older)
    assert versions.fresh(A) == version(A, 2)


def test_forgetting_a_bucket_forgets_all_its_names_and_no_other() -> None:
    versions, _ = versions_of("immutable")
    mark = versions.mark()
    for ref in (A, ELSEWHERE):
        versions.learn(version(ref), versions.mark())
    versions.forget_bucket("bkt")
    versions.learn(version(B), mark)
    assert (versions.fresh(A), versions.fresh(B)) == (None, None)
    assert versions.fresh(ELSEWHERE) is not None


def test_a_version_that_a_start_found_must_be_revalidated_and_replaces_nothing() -> None:
    versions, _ = versions_of("immutable")
    versions.recall("http://o", Belief(version(A)))
    versions.recall("http://another", Belief(version(B)))
    assert (versions.fresh(A), versions.stale(A), versions.stale(B)) == (None, version(A), None)
    versions.learn(version(A, 2), versions.mark())
    versions.recall("http://o", Belief(version(A, 1)))
    assert versions.fresh(A) == version(A, 2)


@pytest.mark.parametrize("write_first", [False, True])
def test_a_version_that_a_start_found_never_stands_in_after_a_write(write_first: bool) -> None:
    versions, _ = versions_of("immutable")
    if write_first:
        versions.forget(A)
    versions.recall("http://o", Belief(version(A)))
    if not write_first:
        versions.forget(A)
    assert (versions.fresh(A), versions.stale(A)) == (None, None)


def test_an_object_that_is_gone_is_forgotten() -> None:
    versions, _ = versions_of()
    versions.learn(version(A), versions.mark())
    versions.gone(A)
    versions.gone(B)
    assert versions.stale(A) is None


def test_the_least_recently_used_entry_goes_first() -> None:
    versions, _ = versions_of(capacity=2)
    for ref in (A, B):
        versions.learn(version(ref), versions.mark())
    assert versions.fresh(A)
    versions.learn(version(ELSEWHERE), versions.mark())
    assert len(versions) == 2
    assert versions.stale(B) is None
    assert versions.stale(A) is not None


def test_a_forget_whose_entry_fell_out_is_still_obeyed() -> None:
    versions, _ = versions_of(capacity=3)
    mark = versions.mark()
    versions.forget(A)
    for number in range(10):
        versions.forget(ObjectRef("bkt", str(number)))
    versions.learn(version(A), mark)
    assert versions.fresh(A) is None


refs = st.sampled_from([A, B, ELSEWHERE, ObjectRef("bkt", "c")])
steps = st.lists(
    st.tuples(st.sampled_from(("mark", "learn", "forget", "bucket")), refs, st.integers(0, 5)), max_size=60
)


@given(steps, st.integers(1, 4))
def test_no_fresh_version_was_requested_before_the_last_write_under_any_limits(
    script: list[tuple[str, ObjectRef, int]], capacity: int
) -> None:
    versions, clock = versions_of("immutable", capacity)
    marks = [(0, versions.mark())]
    written: dict[ObjectRef, int] = {}
    for at, (act, ref, pick) in enumerate(script, start=1):
        clock.advance(1)
        if act == "mark":
            marks.append((at, versions.mark()))
        elif act == "learn":
            requested_at, mark = marks[pick % len(marks)]
            versions.learn(version(ref, requested_at), mark)
        elif act == "forget":
            versions.forget(ref)
            written[ref] = at
        else:
            versions.forget_bucket(ref.bucket)
            written.update({name: at for name in (A, B, ELSEWHERE, ObjectRef("bkt", "c")) if name.bucket == ref.bucket})
        for name in (A, B, ELSEWHERE):
            fresh = versions.fresh(name)
            assert fresh is None or int(fresh.etag.strip('"')) >= written.get(name, -1)


def test_the_belief_in_a_version_that_leaves_while_a_thread_asks_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    versions, _ = versions_of()
    versions.learn(version(A), versions.mark())

    def leaves(packed: bytes, ref: ObjectRef) -> bool:
        found = is_of(packed, ref)
        monkeypatch.undo()
        versions.gone(A)
        return found

    monkeypatch.setattr(version_rows, "is_of", leaves)
    assert versions.belief("http://o", version(A)) == Belief(version(A))


def test_headers_that_change_while_a_thread_asks_are_not_believed_from_the_change_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions, clock = versions_of()
    versions.learn(version(A), versions.mark())
    clock.advance(30)

    def changes(packed: bytes) -> ObjectVersion:
        found = unpack(packed)
        monkeypatch.undo()
        versions.learn(replace(version(A), headers=(("x-amz-tagging-count", "7"),)), versions.mark())
        return found

    monkeypatch.setattr(version_rows, "unpack", changes)
    assert versions.belief("http://o", version(A)) == Belief(version(A), 30.0)
