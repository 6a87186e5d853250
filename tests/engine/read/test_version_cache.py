"""The version cache: for how long a version is believed, by the clock, the generations and the limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cache.freshness import Freshness
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.s3.list_page import Listed
from outrider.engine.read.version_cache import VersionCache
from tests.support.fakes import FakeClock

A, B, ELSEWHERE = ObjectRef("bkt", "a"), ObjectRef("bkt", "b"), ObjectRef("other", "a")


def version(ref: ObjectRef, number: int = 1) -> ObjectVersion:
    return ObjectVersion(ref, f'"{number}"', 10)


def catalog_of(mode: str = "ttl:60", capacity: int = 100) -> tuple[VersionCache, FakeClock]:
    clock = FakeClock()
    return VersionCache("http://o", lambda _: Freshness.parse(mode), clock, capacity), clock


def test_an_answer_is_fresh_from_when_it_was_asked_for() -> None:
    catalog, clock = catalog_of()
    mark = catalog.mark()
    clock.advance(30)
    catalog.learn(version(A), mark)
    clock.advance(29)
    assert catalog.fresh(A) == version(A)
    clock.advance(1)
    assert catalog.fresh(A) is None
    assert catalog.stale(A) == version(A)


@pytest.mark.parametrize("mode", ["immutable", "ttl:60"])
def test_a_forgotten_object_is_asked_about_in_any_mode_and_never_stands_in(mode: str) -> None:
    catalog, _ = catalog_of(mode)
    for ref in (A, B):
        catalog.learn(version(ref), catalog.mark())
    catalog.forget(A)
    assert (catalog.fresh(A), catalog.stale(A)) == (None, None)
    assert catalog.fresh(B) == version(B)


def test_an_answer_to_a_question_older_than_a_write_is_not_believed() -> None:
    catalog, _ = catalog_of()
    mark = catalog.mark()
    catalog.forget(A)
    catalog.learn(version(A), mark)
    assert catalog.fresh(A) is None
    catalog.learn(version(A, 2), catalog.mark())
    assert catalog.fresh(A) == version(A, 2)


def in_a_list(number: int = 1) -> Listed:
    return Listed("a", 10, f'"{number}"', "2026-01-01T00:00:00Z")


def dated(number: int = 1) -> ObjectVersion:
    return replace(version(A, number), headers=(("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT"),))


def test_a_list_that_shows_the_same_version_counts_from_when_it_was_asked_for() -> None:
    catalog, clock = catalog_of()
    catalog.learn(dated(), catalog.mark(), settled=True)
    clock.advance(50)
    mark = catalog.mark()
    clock.advance(20)
    assert catalog.fresh(A) is None
    catalog.listed("bkt", [in_a_list(), Listed("unknown", 1)], mark)
    assert catalog.fresh(A) == dated()
    clock.advance(40)
    assert catalog.fresh(A) is None
    catalog.listed("other", [in_a_list()], catalog.mark())
    assert catalog.fresh(A) is None, "of another bucket"


def test_a_list_that_shows_another_version_makes_the_known_one_doubtful() -> None:
    catalog, _ = catalog_of("immutable")
    catalog.learn(dated(), catalog.mark(), settled=True)
    before = catalog.changes
    catalog.listed("bkt", [in_a_list(2)], catalog.mark())
    assert catalog.fresh(A) is None
    assert catalog.changes > before, "who looked it up must do so again"


def test_a_list_older_than_what_is_known_or_than_a_write_tells_nothing() -> None:
    catalog, clock = catalog_of()
    mark = catalog.mark()
    clock.advance(1)
    catalog.learn(dated(2), catalog.mark(), settled=True)
    catalog.listed("bkt", [in_a_list(1)], mark)
    assert catalog.fresh(A) == dated(2)
    mark = catalog.mark()
    catalog.forget(A)
    catalog.listed("bkt", [in_a_list(2)], mark)
    assert catalog.fresh(A) is None


def test_after_a_write_no_list_confirms_a_version() -> None:
    catalog, _ = catalog_of()
    catalog.learn(dated(), catalog.mark(), settled=True)
    catalog.forget(A)
    catalog.listed("bkt", [in_a_list()], catalog.mark())
    assert catalog.fresh(A) is None


def test_a_list_confirms_a_version_that_a_start_found_and_nobody_wrote_to_for_a_while() -> None:
    catalog, clock = catalog_of()
    catalog.recall("http://o", dated(), vouched=True)
    assert catalog.fresh(A) is None, "no LIST yet"
    for _ in range(80):
        catalog.listed("bkt", [in_a_list()], catalog.mark())
        assert catalog.fresh(A) == dated()
        clock.advance(45)
    catalog.listed("bkt", [in_a_list()], catalog.mark())
    clock.advance(30)
    assert catalog.fresh(A) is None, "after an hour"


def test_no_list_confirms_a_version_that_a_start_found_after_a_write_or_another_version() -> None:
    catalog, _ = catalog_of()
    catalog.recall("http://o", dated(), vouched=True)
    catalog.listed("bkt", [in_a_list(2)], catalog.mark())
    catalog.listed("bkt", [in_a_list()], catalog.mark())
    assert catalog.fresh(A) is None
    catalog, _ = catalog_of()
    catalog.forget(A)
    catalog.recall("http://o", dated(), vouched=True)
    catalog.listed("bkt", [in_a_list()], catalog.mark())
    assert catalog.fresh(A) is None


def test_a_start_that_finds_two_versions_believes_the_vouched_one() -> None:
    catalog, _ = catalog_of()
    catalog.recall("http://o", dated(1))
    catalog.recall("http://o", dated(2), vouched=True)
    catalog.listed("bkt", [in_a_list(2)], catalog.mark())
    assert catalog.fresh(A) == dated(2)
    catalog.recall("http://o", dated(1), vouched=True)
    assert catalog.fresh(A) == dated(2), "it was asked about already"
    catalog, _ = catalog_of()
    catalog.recall("http://o", dated())
    catalog.recall("http://o", dated(), vouched=True)
    catalog.listed("bkt", [in_a_list()], catalog.mark())
    assert catalog.fresh(A) is None, "one block of it was filled too soon"


def test_a_version_is_vouched_for_over_a_stop_only_with_the_headers_that_the_origin_told_last() -> None:
    catalog, _ = catalog_of()
    assert not catalog.vouches("http://o", dated())
    catalog.learn(dated(), catalog.mark())
    assert not catalog.vouches("http://o", dated()), "it may be put again with the same date"
    catalog.learn(dated(), catalog.mark(), settled=True)
    assert catalog.vouches("http://o", dated())
    assert not catalog.vouches("http://another", dated())
    assert not catalog.vouches("http://o", replace(dated(), headers=(*dated().headers, ("x-amz-tagging-count", "1"))))
    catalog.forget(A)
    assert not catalog.vouches("http://o", dated())
    catalog.learn(dated(), catalog.mark(), settled=True)
    assert catalog.vouches("http://o", dated())
    catalog.doubt(A)
    catalog.learn(dated(), catalog.mark(), settled=True)
    assert not catalog.vouches("http://o", dated()), "the write may be carried out yet"


def test_a_version_that_was_found_and_not_asked_about_is_unchanged_for_the_next_start() -> None:
    catalog, _ = catalog_of()
    catalog.recall("http://o", dated(), vouched=True)
    catalog.recall("http://o", version(B))
    assert catalog.vouches("http://o", dated())
    assert not catalog.vouches("http://o", version(B))
    catalog.forget(A)
    assert not catalog.vouches("http://o", dated())


def test_an_object_that_fell_out_or_is_gone_may_have_blocks_still() -> None:
    catalog, _ = catalog_of(capacity=1)
    catalog.learn(version(A), catalog.mark())
    catalog.learn(version(B), catalog.mark())
    catalog.gone(B)
    catalog.gone(ELSEWHERE)
    assert [catalog.may_have(ref) for ref in (A, B, ELSEWHERE)] == [True, True, False]


def test_no_list_confirms_the_headers_of_a_version_that_a_start_found() -> None:
    catalog, clock = catalog_of()
    catalog.recall("http://o", dated())
    catalog.listed("bkt", [in_a_list()], catalog.mark())
    assert catalog.fresh(A) is None
    catalog.learn(dated(), catalog.mark(), settled=True)
    clock.advance(50)
    catalog.listed("bkt", [in_a_list()], catalog.mark())
    clock.advance(50)
    assert catalog.fresh(A) == dated(), "it was asked itself"


def test_no_list_confirms_a_version_that_may_be_overwritten_with_the_same_date() -> None:
    catalog, clock = catalog_of()
    catalog.learn(dated(), catalog.mark())
    clock.advance(50)
    catalog.listed("bkt", [in_a_list()], catalog.mark())
    assert catalog.fresh(A) == dated(), "its own time is not up"
    clock.advance(10)
    assert catalog.fresh(A) is None
    catalog.learn(dated(), catalog.mark(), settled=True)
    clock.advance(50)
    catalog.listed("bkt", [in_a_list()], catalog.mark())
    clock.advance(50)
    assert catalog.fresh(A) == dated()


def test_an_object_is_asked_about_now_and_then_however_often_it_is_listed() -> None:
    catalog, clock = catalog_of()
    catalog.learn(dated(), catalog.mark(), settled=True)
    for _ in range(80):
        assert catalog.fresh(A) == dated()
        clock.advance(45)
        catalog.listed("bkt", [in_a_list()], catalog.mark())
    clock.advance(30)
    assert catalog.fresh(A) is None, "after an hour: tags, say, do not show in a LIST"
    catalog.learn(dated(), catalog.mark(), settled=True)
    assert catalog.fresh(A) == dated()


def test_a_late_answer_to_an_older_question_does_not_replace_a_newer_one() -> None:
    catalog, clock = catalog_of()
    older = catalog.mark()
    clock.advance(1)
    newer = catalog.mark()
    catalog.learn(version(A, 2), newer)
    catalog.learn(version(A, 1), older)
    assert catalog.fresh(A) == version(A, 2)


def test_forgetting_a_bucket_forgets_all_its_names_and_no_other() -> None:
    catalog, _ = catalog_of("immutable")
    mark = catalog.mark()
    for ref in (A, ELSEWHERE):
        catalog.learn(version(ref), catalog.mark())
    catalog.forget_bucket("bkt")
    catalog.learn(version(B), mark)
    assert (catalog.fresh(A), catalog.fresh(B)) == (None, None)
    assert catalog.fresh(ELSEWHERE) is not None


def test_a_version_that_a_start_found_must_be_asked_about_and_replaces_nothing() -> None:
    catalog, _ = catalog_of("immutable")
    catalog.recall("http://o", version(A))
    catalog.recall("http://another", version(B))
    assert (catalog.fresh(A), catalog.stale(A), catalog.stale(B)) == (None, version(A), None)
    catalog.learn(version(A, 2), catalog.mark())
    catalog.recall("http://o", version(A, 1))
    assert catalog.fresh(A) == version(A, 2)


@pytest.mark.parametrize("write_first", [False, True])
def test_a_version_that_a_start_found_never_stands_in_after_a_write(write_first: bool) -> None:
    catalog, _ = catalog_of("immutable")
    if write_first:
        catalog.forget(A)
    catalog.recall("http://o", version(A))
    if not write_first:
        catalog.forget(A)
    assert (catalog.fresh(A), catalog.stale(A)) == (None, None)


def test_an_object_that_is_gone_is_forgotten() -> None:
    catalog, _ = catalog_of()
    catalog.learn(version(A), catalog.mark())
    catalog.gone(A)
    catalog.gone(B)
    assert catalog.stale(A) is None


def test_the_least_recently_used_entry_goes_first() -> None:
    catalog, _ = catalog_of(capacity=2)
    for ref in (A, B):
        catalog.learn(version(ref), catalog.mark())
    assert catalog.fresh(A)
    catalog.learn(version(ELSEWHERE), catalog.mark())
    assert len(catalog) == 2
    assert catalog.stale(B) is None
    assert catalog.stale(A) is not None


def test_a_forget_whose_entry_fell_out_is_still_obeyed() -> None:
    catalog, _ = catalog_of(capacity=3)
    mark = catalog.mark()
    catalog.forget(A)
    for number in range(10):
        catalog.forget(ObjectRef("bkt", str(number)))
    catalog.learn(version(A), mark)
    assert catalog.fresh(A) is None


refs = st.sampled_from([A, B, ELSEWHERE, ObjectRef("bkt", "c")])
steps = st.lists(
    st.tuples(st.sampled_from(("mark", "learn", "forget", "bucket")), refs, st.integers(0, 5)), max_size=60
)


@given(steps, st.integers(1, 4))
def test_nothing_fresh_was_asked_for_before_the_last_write_whatever_the_limits(
    script: list[tuple[str, ObjectRef, int]], capacity: int
) -> None:
    catalog, clock = catalog_of("immutable", capacity)
    marks = [(0, catalog.mark())]
    written: dict[ObjectRef, int] = {}
    for at, (act, ref, pick) in enumerate(script, start=1):
        clock.advance(1)
        if act == "mark":
            marks.append((at, catalog.mark()))
        elif act == "learn":
            asked_at, mark = marks[pick % len(marks)]
            catalog.learn(version(ref, asked_at), mark)
        elif act == "forget":
            catalog.forget(ref)
            written[ref] = at
        else:
            catalog.forget_bucket(ref.bucket)
            written.update({name: at for name in (A, B, ELSEWHERE, ObjectRef("bkt", "c")) if name.bucket == ref.bucket})
        for name in (A, B, ELSEWHERE):
            fresh = catalog.fresh(name)
            assert fresh is None or int(fresh.etag.strip('"')) >= written.get(name, -1)
