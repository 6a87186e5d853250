"""The planner in unusual cases: objects that are overwritten, datasets that are forgotten, hints that change."""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.ahead.planner import Planner
from outrider.core.cache.pins import Pins
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion
from tests.support.counted_work import calls_of

SIZE = 10
OLD, NEW = b"1" * 16, b"2" * 16
ETAGS = {OLD: '"1"', NEW: '"2"'}


def refs_of(count: int, folder: str = "d") -> list[ObjectRef]:
    return [ObjectRef("b", f"{folder}/{i:06d}.tar") for i in range(count)]


def read(planner: Planner, ref: ObjectRef, now: float, client: str = "a") -> None:
    planner.requested(client, ref, SIZE, Extent(0, SIZE), now)
    planner.sent(client, ref, now)


def lists_of(planner: Planner, now: float) -> list[tuple[str, str]]:
    """The prefixes that it wants to be listed, where names are not numbered."""
    for _, numbering in planner.discovery.please_count():
        planner.discovery.not_counted(numbering, now)
    return planner.discovery.please_list()


def test_an_object_that_is_overwritten_while_it_is_open_may_be_evicted() -> None:
    planner = Planner(100, SIZE)
    ref = ObjectRef("b", "ckpt/latest.pt")
    for vid, now in ((OLD, 1.0), (NEW, 100.0)):
        planner.requested("a", ref, 2 * SIZE, Extent(0, 2 * SIZE), now)
        for index in (0, 1):
            planner.added(BlockKey(vid, index), ObjectVersion(ref, ETAGS[vid], 2 * SIZE))
            planner.read(BlockKey(vid, index))
        planner.sent("a", ref, now)
    assert [block.version_id for block in planner.victims()] == [OLD, OLD, NEW, NEW]


def test_an_outdated_version_is_evicted_after_its_dataset_was_forgotten_and_numbered_anew() -> None:
    planner = Planner(10_000, SIZE, keys_max=100)
    refs = refs_of(50)
    for i, ref in enumerate(refs):
        read(planner, ref, 1.0 + i)
    for vid in (OLD, NEW):
        planner.added(BlockKey(vid, 0), ObjectVersion(refs[-1], ETAGS[vid], SIZE))
    for i, ref in enumerate(refs_of(80, "e")):
        read(planner, ref, 100.0 + i)
    for i, ref in enumerate(refs[:10]):
        read(planner, ref, 200.0 + i)
    oldest = next(iter(planner.victims()))
    assert oldest.version_id == OLD
    planner.removed(oldest)
    assert [block.version_id for block in planner.victims()] == [NEW]


def test_a_long_read_does_not_keep_objects_that_others_have_left_open() -> None:
    planner = Planner(10_000, SIZE)
    long = ObjectRef("b", "big/one.tar")
    planner.requested("slow", long, 100_000, Extent(0, 100_000), 0.0)
    for i, ref in enumerate(refs_of(1000)):
        planner.added(BlockKey(b"big!" * 4, i), ObjectVersion(long, '"e"', 100_000))
        planner.requested("fast", ref, 100, Extent(0, 10), float(i))
        planner.read(BlockKey(b"big!" * 4, i))
        planner.sent("fast", ref, float(i))
    assert planner.readers <= 100


def test_a_follower_that_left_gets_no_names_that_it_has_no_room_for() -> None:
    planner = Planner(10_000, SIZE)
    refs = refs_of(120)
    steps = [("a", i) for i in range(100)] + [("b", i) for i in range(8)]
    # Then the client reads the same few objects again and again.
    steps += [("b", i) for _ in range(40) for i in range(4)] + [("a", i) for i in range(100, 120)]
    for step, (client, i) in enumerate(steps):
        read(planner, refs[i], 0.1 * step, client)
    assert len(planner.registry) == 120


def test_a_job_that_ended_in_its_first_epoch_is_forgotten() -> None:
    planner = Planner(10_000, SIZE)
    refs = refs_of(1000)
    planner.discovery.listed("b", [(ref.key, SIZE) for ref in refs])
    for job in range(10):
        for i, ref in enumerate(refs[:50]):
            read(planner, ref, 3600.0 * job + 0.1 * i, f"10.0.0.{job}")
    [dataset] = planner.registry.datasets()
    assert len(dataset.jobs) == 1


def test_one_object_too_large_for_the_cache_does_not_hold_up_the_others() -> None:
    planner = Planner(100, SIZE)
    refs = refs_of(100)
    planner.discovery.listed("b", [(ref.key, 80 if i == 3 else SIZE) for i, ref in enumerate(refs)])
    wanted = set()
    for i, ref in enumerate(Random(2).sample(refs[4:], 60)):
        read(planner, ref, 0.05 * i)
        for want in planner.wants(0.05 * i, 100, 4):
            wanted.add(want.ref)
            planner.dropped(want.ref, again=False)
    assert len(wanted) > 20
    assert refs[3] not in wanted


@pytest.mark.parametrize("came", [0, 10])
def test_a_list_that_failed_is_tried_again_after_rests_that_double(came: int) -> None:
    """A LIST that broke off after its first pages is tried again, too: the rest of the names would never be
    prefetched."""
    planner = Planner(10_000, SIZE)
    asked = []
    refs = refs_of(1200)
    for i, ref in enumerate(refs):
        read(planner, ref, float(i))
        for bucket, prefix in lists_of(planner, float(i)):
            asked.append(i)
            came_now = came if len(asked) < 4 else len(refs)
            if came_now:
                planner.discovery.listed(bucket, [(ref.key, SIZE) for ref in refs[:came_now]], more=True)
            if len(asked) < 4:
                planner.discovery.list_failed(bucket, prefix, float(i))
            planner.discovery.listed(bucket, (), before=came_now)
    assert asked == [2, 62, 182, 422], "and not again once the LIST was complete"


def test_a_dataset_of_more_names_than_may_be_known_is_not_listed_over_and_over() -> None:
    planner = Planner(10_000, SIZE, keys_max=300)
    refs = refs_of(500)
    lists = 0
    for i, ref in enumerate(Random(1).sample(refs, 500)):
        read(planner, ref, 0.01 * i)
        for bucket, _ in lists_of(planner, 0.01 * i):
            lists += 1
            planner.discovery.listed(bucket, [(ref.key, SIZE) for ref in refs[:290]])
    assert lists == 1


# -- what is pinned ---------------------------------------------------------------------------------------------


def id_of(version: ObjectVersion) -> bytes:
    return blake2b(f"{version.ref.key} {version.etag}".encode(), digest_size=16).digest()


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["none", "epochs", "by chance", "many folders"]))
def test_all_blocks_that_are_not_pinned_may_be_evicted_and_no_others(seed: int, world: str) -> None:
    chance = Random(seed)
    pins = Pins(int, id_of)
    planner = Planner(10_000, SIZE, pins=pins)
    folders = [f"f{i}" for i in range(20)] if world == "many folders" else ["d"]
    refs = [ref for folder in folders for ref in refs_of(60 // len(folders), folder)]
    versions = {ref: ObjectVersion(ref, '"1"', SIZE) for ref in refs}
    here: dict[bytes, ObjectVersion] = {}
    order = list(refs)
    for step in range(300):
        ref = chance.choice(refs)
        if world == "epochs":
            ref = order[step % len(order)]
        read(planner, ref, 0.1 * step) if world != "none" else None
        act = chance.choice("aaaapuovv")
        if act == "a" or (act == "o" and chance.random() < 0.2):
            if act == "o":
                versions[ref] = ObjectVersion(ref, f'"{step}"', SIZE)
            version = versions[ref]
            if id_of(version) not in here:
                here[id_of(version)] = version
                pins.block_cached(version, id_of(version))
                planner.added(BlockKey(id_of(version), 0), version)
        elif act == "p":
            pins.pin(("", chance.choice("xy")), [versions[ref] for ref in chance.sample(refs, 8)], 10**9)
        elif act == "u":
            pins.unpin(("", chance.choice("xy")))
        elif act == "v" and (victim := next(planner.victims(), None)) is not None:
            planner.removed(victim)
            del here[victim.version_id]
        if step % 10 == 0 or act == "u":
            assert sorted(block.version_id for block in planner.victims()) == sorted(
                vid for vid in here if not pins.holds(vid)
            )


@pytest.mark.parametrize("folders", [1, 20])
def test_pinned_objects_cost_the_search_for_victims_nothing(folders: int) -> None:
    """50,000 idle pinned objects, walked over at each eviction, held all readers up for 69 ms each time."""

    def work(count: int) -> int:
        pins = Pins(int, id_of)
        planner = Planner(10**9, SIZE, pins=pins)
        pinned = [ObjectVersion(ref, '"1"', SIZE) for i in range(folders) for ref in refs_of(count // folders, f"p{i}")]
        pins.pin(("", "all"), pinned, 10**9)
        for version in pinned:
            planner.added(BlockKey(id_of(version), 0), version)
        for i, ref in enumerate(refs_of(50)):
            read(planner, ref, 1000.0 + i)
            planner.added(BlockKey(b"%016d" % i, 0), ObjectVersion(ref, '"e"', SIZE))
        next(planner.victims())
        return calls_of(lambda: next(planner.victims()))

    assert work(5000) <= 2 * work(100)


def test_objects_that_may_not_be_prefetched_are_passed_by() -> None:
    refs = refs_of(20)
    planner = Planner(10_000, SIZE, fetches=lambda ref: ref in refs[::2])
    planner.announced("a", refs, 0.0)
    planner.discovery.listed("b", [(ref.key, SIZE) for ref in refs])
    wanted = []
    for number, ref in enumerate(refs):
        read(planner, ref, 1.0 + number)
        wanted += [want.ref for want in planner.wants(1.0 + number, 10_000, 100)]
    assert wanted == refs[2::2]


def test_a_dataset_that_may_not_be_prefetched_is_not_listed() -> None:
    planner = Planner(10_000, SIZE, fetches=lambda ref: False)
    for number, ref in enumerate(refs_of(20)):
        read(planner, ref, 1.0 + number)
    assert not planner.discovery.please_count()
    assert not planner.discovery.please_list()
    assert not planner.wants(21.0, 10_000, 100)


def reading(ranks: list[int], *, count: int = 64) -> Planner:
    """After a client has read these of the listed objects, one a second."""
    planner, refs = Planner(10_000, SIZE), refs_of(count)
    planner.discovery.listed("b", [(ref.key, SIZE) for ref in refs])
    for at, rank in enumerate(ranks):
        read(planner, refs[rank], float(at))
    return planner


@pytest.mark.parametrize(
    ("ranks", "is_guess"),
    [
        ([0, 1, 2, 3], False),
        ([20, 21, 22, 23], False),
        ([3, 7, 11, 15], False),  # every fourth, as a rank of four reads
        ([0, 1, 2, 4, 3, 5, 6, 7], False),  # parallel readers
        ([20, 21, 31, 30], True),
        ([45, 44, 43, 42], True),
        ([5, 60, 17, 30], True),
        ([5, 17, 30, 60], True),
        ([0, 1, 2, 3, 40], True),
    ],
)
def test_objects_that_follow_reads_in_the_order_of_their_names_are_no_guesses(ranks: list[int], is_guess: bool) -> None:
    wants = reading(ranks).wants(float(len(ranks)), 10_000, 8)
    assert wants
    assert {want.is_guess for want in wants} == {is_guess}
    if not is_guess:
        step = ranks[1] - ranks[0]
        assert int(wants[0].ref.key[2:8]) == max(ranks) + step


def test_what_follows_few_reads_in_order_is_not_fetched_far_ahead() -> None:
    """A rank may have these few alone, or a job may have looked at them before its shuffled epoch."""
    wants = reading([100, 101, 102, 103], count=512).wants(4.0, 10_000, 1000)
    assert [int(want.ref.key[2:8]) for want in wants] == list(range(104, 104 + len(wants)))
    assert 2 <= len(wants) <= 8


@given(st.permutations(range(64)))
def test_few_reads_by_chance_are_taken_for_the_order_of_the_names(ranks: list[int]) -> None:
    ascents = sum(earlier < later for earlier, later in pairwise(ranks[:12]))
    assert ascents > 8 or all(want.is_guess for want in reading(ranks[:12]).wants(12.0, 10_000, 8))
