"""Which versions are believed after a stop or a crash: never one that would not be believed had the process kept
running, whatever was confirmed, written or in doubt, and however much time passed."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.disk import Disk
from outrider.adapters.disk.recovery import Recovery
from outrider.adapters.disk.written_names import WrittenNamesFile, WrittenNamesFiles
from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.disk_limits import DiskBudget
from outrider.core.cache.freshness import Freshness, age_s
from outrider.core.cache.policies import Lru
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.read.version_rows import Mark
from outrider.metrics import Metrics
from outrider.ports import Belief, Name
from tests.support.fakes import FakeClock
from tests.support.trials import fuzzing

pytestmark = pytest.mark.one_python

A, B, C = ObjectRef("bkt", "a"), ObjectRef("bkt", "b"), ObjectRef("other", "a")
NAMES = (A, B, C)
LAYOUT = BlockLayout("http://o", 4096)


@dataclass
class Question:
    """Under way to the origin. `mark` None: the process that asked has ended."""

    version: ObjectVersion
    mark: Mark | None
    kept_mark: Mark


class World:
    """A proxy that is stopped, killed and started, its origin, and `kept`: what it would believe had it kept
    running."""

    def __init__(self, root: Path, mode: str) -> None:
        self.root, self.mode = root, mode
        self.wall, self.kept_clock = FakeClock(1.7e9), FakeClock()
        self.kept = VersionCache("http://o", self.freshness_of, self.kept_clock, 100)
        # It began long ago: until then a 404 leaves more doubt.
        self.kept.recalled()
        self.numbers = dict.fromkeys(NAMES, 1)
        self.tagged = dict.fromkeys(NAMES, 0)
        self.questions: list[Question] = []
        self.writes: list[Name] = []
        self.starts = 0

    def freshness_of(self, ref: ObjectRef) -> Freshness:
        return Freshness.parse(self.mode)

    async def start(self, *, is_alone: bool = True) -> None:
        self.starts += 1
        self.clock = FakeClock(50.0 * self.starts)  # as after a reboot, it may show less than before
        self.versions = VersionCache("http://o", self.freshness_of, self.clock, 100)
        metrics = Metrics()
        disk = Disk(BlockDir.open(self.root), DiskBudget(2**30), metrics, self.clock)
        self.store = DiskBlockStore([disk], Lru(), metrics, self.clock)
        self.touched = WrittenNamesFile(self.store.disks[0].directory, self.store.disks[0].work, is_alone=is_alone)
        self.note = WrittenNamesFiles([self.touched], self.versions.may_have).note
        self.others: list[ObjectRef] = []
        self.versions.on_other = self.others.append
        self.recovery = Recovery(
            self.store, self.versions, touched=[self.touched], wall_clock=self.wall, is_alone=is_alone,
            under_way=lambda: self.writes,
        )  # fmt: skip
        await self.recovery.index()

    async def end(self, *, clean: bool) -> None:
        if clean:
            await self.recovery.save()
        self.store.close()
        for folder in (self.root / "v2").iterdir():
            os.utime(folder, (self.wall(), self.wall()))
        for name in self.writes:
            self.kept.doubt(name)
        self.writes.clear()
        for question in self.questions:
            question.mark = None

    def advance(self, seconds: float) -> None:
        for clock in (self.wall, self.kept_clock, self.clock):
            clock.advance(seconds)

    # -- what happens -------------------------------------------------------------------------------------------------

    def now_at_origin(self, ref: ObjectRef) -> ObjectVersion:
        headers = (("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT"), ("x-amz-tagging-count", str(self.tagged[ref])))
        return ObjectVersion(ref, f'"{self.numbers[ref]}"', 10, headers)

    async def act(self, act: str, ref: ObjectRef, pick: int) -> None:
        await getattr(self, f"on_{act}")(ref, pick)
        for other in self.others:
            await self.note([other])
        self.others.clear()

    async def on_ask(self, ref: ObjectRef, pick: int) -> None:
        self.questions.append(Question(self.now_at_origin(ref), self.versions.mark(), self.kept.mark()))

    async def on_answer(self, ref: ObjectRef, pick: int, *, fills: bool = False) -> None:
        if self.questions:
            await self.answer(self.questions.pop(pick % len(self.questions)), fills=fills)

    async def on_fill(self, ref: ObjectRef, pick: int) -> None:
        await self.on_answer(ref, pick, fills=True)

    async def on_head(self, ref: ObjectRef, pick: int) -> None:
        await self.on_ask(ref, pick)
        await self.on_answer(ref, -1)

    async def on_read(self, ref: ObjectRef, pick: int) -> None:
        await self.on_ask(ref, pick)
        await self.on_answer(ref, -1, fills=True)

    async def on_gone(self, ref: ObjectRef, pick: int) -> None:
        self.versions.gone(ref)
        self.kept.gone(ref)

    async def on_past(self, ref: ObjectRef, pick: int) -> None:
        self.numbers[ref] += 1

    async def on_write(self, ref: ObjectRef, pick: int) -> None:
        await self.write(ref)
        self.numbers[ref] += 1

    async def on_tag(self, ref: ObjectRef, pick: int) -> None:
        await self.write(ref)
        self.tagged[ref] += 1

    async def on_bucket(self, ref: ObjectRef, pick: int) -> None:
        await self.write(ref.bucket)
        self.numbers[ref] += 1

    async def on_send(self, ref: ObjectRef, pick: int) -> None:
        """A write of a name without blocks is not recorded: after a crash the proxy does not know that it may be under
        way."""
        if self.versions.may_have(ref) or not self.touched.is_whole:
            await self.send(ref)

    async def on_lost(self, ref: ObjectRef, pick: int) -> None:
        """A write has no answer."""
        if self.writes:
            lost = self.writes.pop()
            self.versions.doubt(lost)
            self.kept.doubt(lost)

    async def on_carry(self, ref: ObjectRef, pick: int) -> None:
        """The origin carries a write out, with or without an answer."""
        self.numbers[ref] += 1 if ref in self.writes else 0

    async def on_note(self, ref: ObjectRef, pick: int) -> None:
        await self.recovery.note(0)

    async def on_evict(self, ref: ObjectRef, pick: int) -> None:
        await self.store.drop(self.store.blocks_of(lambda its: its == ref))

    async def on_wait(self, ref: ObjectRef, pick: int) -> None:
        self.advance(pick)

    async def on_stop(self, ref: ObjectRef, pick: int) -> None:
        believed = self.on_disk()
        await self.on_kill(ref, pick, clean=True)
        if self.mode == "immutable":
            assert {name: self.versions.fresh(name) for name in believed} == believed

    async def on_kill(self, ref: ObjectRef, pick: int, *, clean: bool = False) -> None:
        await self.end(clean=clean)
        self.advance(pick)
        await self.start()

    async def write(self, name: Name) -> None:
        """A write with its answer."""
        for _ in range(2):
            await self.send(name)
            self.writes.pop()

    async def send(self, name: Name) -> None:
        await self.note([name])
        for versions in (self.versions, self.kept):
            if isinstance(name, str):
                versions.forget_bucket(name)
            else:
                versions.forget(name)
        self.writes.append(name)

    async def answer(self, question: Question, *, fills: bool) -> None:
        self.kept.learn(question.version, question.kept_mark)
        if question.mark is None:
            return
        self.versions.learn(question.version, question.mark)
        meta = BlockMeta(LAYOUT, question.version, 0)
        if fills and not self.store.has(meta.key):
            writer = await self.store.create(meta)
            await writer.write(0, [b"0123456789"])
            await writer.commit()

    # -- what is believed ---------------------------------------------------------------------------------------------

    def on_disk(self) -> dict[ObjectRef, ObjectVersion]:
        """The versions that are believed, have a block, and are not being written."""
        fresh = {ref: self.versions.fresh(ref) for ref in NAMES}
        return {
            ref: version for ref, version in fresh.items()
            if version is not None and self.store.has(BlockMeta(LAYOUT, version, 0).key)
            and ref not in self.writes
        }  # fmt: skip

    def check(self) -> None:
        for ref in NAMES:
            believed = self.versions.fresh(ref)
            assert believed is None or believed == self.kept.fresh(ref)


ACTS = (
    "read", "read", "read", "head", "ask", "answer", "fill", "past", "gone", "write", "tag", "bucket", "send", "lost",
    "carry", "note", "note", "evict", "wait", "stop", "stop", "kill", "kill",
)  # fmt: skip
histories = st.lists(
    st.tuples(st.sampled_from(ACTS), st.sampled_from((A, A, A, B, C)), st.sampled_from((0, 1, 2, 30, 59, 300, 700))),
    min_size=8, max_size=30,
)  # fmt: skip


@given(st.sampled_from(["immutable", "ttl:60", "always"]), histories)
@fuzzing(75)
def test_no_start_believes_what_a_process_that_kept_running_would_not(
    mode: str, history: Iterable[tuple[str, ObjectRef, int]]
) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            world = World(Path(folder) / "cache", mode)
            await world.start()
            try:
                for act, ref, pick in history:
                    await world.act(act, ref, pick)
                    world.check()
            finally:
                world.store.close()

    asyncio.run(play())


async def played(root: Path, mode: str, *acts: tuple[str, int]) -> World:
    """The world after these acts on the object A."""
    world = World(root / "cache", mode)
    await world.start()
    for act, pick in acts:
        await world.act(act, A, pick)
        world.check()
    world.store.close()
    return world


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_start_believes_a_version_until_its_time_is_up_by_the_wall_clock(how: str, tmp_path: Path) -> None:
    world = await played(tmp_path / "1", "immutable", ("read", 0), (how, 10**9))
    assert world.versions.fresh(A) == world.now_at_origin(A)
    world = await played(tmp_path / "2", "ttl:60", ("read", 0), ("wait", 20), (how, 30))
    assert world.versions.fresh(A) == world.now_at_origin(A)
    world.advance(10)
    assert world.versions.fresh(A) is None
    assert world.versions.stale(A) == world.now_at_origin(A), "the question is a conditional one"
    world = await played(tmp_path / "3", "ttl:60", ("read", 0), ("wait", 20), (how, 41))
    assert world.versions.fresh(A) is None
    world = await played(tmp_path / "4", "always", ("read", 0), (how, 0))
    assert world.versions.fresh(A) is None


async def test_a_second_crash_within_the_time_of_a_doubt_does_not_end_it(tmp_path: Path) -> None:
    world = await played(tmp_path, "immutable", ("read", 0), ("send", 0), ("kill", 1), ("kill", 1), ("read", 0))
    assert world.versions.fresh(A) is None


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_the_time_counts_from_the_question_and_not_from_the_end_of_a_fill(how: str, tmp_path: Path) -> None:
    world = await played(tmp_path, "ttl:60", ("ask", 0), ("wait", 59), ("fill", 0), (how, 2))
    assert world.versions.fresh(A) is None


async def test_a_fill_that_ends_after_its_version_is_outdated_makes_it_not_believed(tmp_path: Path) -> None:
    world = await played(
        tmp_path, "immutable", ("ask", 0), ("past", 0), ("wait", 1), ("head", 0), ("fill", 0), ("kill", 0)
    )
    assert world.versions.fresh(A) is None


@pytest.mark.parametrize("seen", [(("past", 0), ("head", 0)), (("gone", 0),)], ids=["another version", "none"])
async def test_a_crash_does_not_bring_back_a_version_that_the_origin_no_longer_has(
    seen: tuple[tuple[str, int], ...], tmp_path: Path
) -> None:
    world = await played(tmp_path, "immutable", ("read", 0), *seen, ("kill", 0))
    assert world.versions.fresh(A) is None


@pytest.mark.parametrize("written", [[("tag", 0), ("kill", 0)], [("kill", 0), ("tag", 0)]], ids=["before", "after"])
async def test_a_note_from_before_a_crash_does_not_bring_back_headers_from_before_a_write(
    written: list[tuple[str, int]], tmp_path: Path
) -> None:
    await played(tmp_path, "immutable", ("read", 0), ("note", 0), ("evict", 0), *written, ("read", 0), ("kill", 0))


async def test_headers_that_a_stop_knew_to_be_outdated_on_disk_are_not_believed_after_a_crash(tmp_path: Path) -> None:
    world = await played(tmp_path / "1", "immutable", ("read", 0), ("tag", 0), ("head", 0), ("stop", 0))
    assert world.versions.fresh(A) == world.now_at_origin(A), "the snapshot has the headers of now"
    world = await played(tmp_path / "2", "immutable", ("read", 0), ("tag", 0), ("head", 0), ("stop", 0), ("kill", 0))
    assert world.versions.fresh(A) is None


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_clock_that_stepped_back_shows_no_age(how: str, tmp_path: Path) -> None:
    world = World(tmp_path / "cache", "immutable")
    await world.start()
    await world.act("read", A, 0)
    await world.end(clean=how == "stop")
    world.wall.advance(-1)
    await world.start()
    assert world.versions.fresh(A) is None
    world.store.close()


async def test_a_clock_that_stepped_back_since_the_last_confirmation_shows_no_age_of_older_ones(tmp_path: Path) -> None:
    """The confirmation of A is in the past by either clock."""
    for clean in (True, False):
        world = World(tmp_path / str(clean), "immutable")
        await world.start()
        await world.act("read", A, 0)
        world.advance(100)
        await world.act("read", B, 0)
        await world.end(clean=clean)
        world.wall.advance(-50)
        await world.start()
        assert world.versions.fresh(A) is None
        world.store.close()


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("members", [(True, False), (False, True), (False, False)])
async def test_what_a_member_of_a_cluster_left_or_finds_has_to_be_confirmed(
    members: tuple[bool, bool], how: str, tmp_path: Path
) -> None:
    """`members`: whether the process is alone, before and after the restart."""
    world = World(tmp_path / "cache", "immutable")
    await world.start(is_alone=members[0])
    await world.act("read", A, 0)
    await world.end(clean=how == "stop")
    world.wall.now = 3e9  # the files of a member have the time of the machine
    await world.start(is_alone=members[1])
    assert world.versions.fresh(A) is None
    assert world.versions.stale(A) == world.now_at_origin(A)
    world.store.close()


async def test_several_versions_of_one_name_that_a_crash_left_are_ambiguous(tmp_path: Path) -> None:
    versions = VersionCache("http://o", lambda _: Freshness.parse("immutable"), FakeClock(), 10)
    older, newer = (ObjectVersion(A, f'"{number}"', 10) for number in (1, 2))
    for version, age in ((older, 9.0), (newer, 8.0), (newer, 7.0)):
        versions.recall("http://o", Belief(version, age))
    assert versions.fresh(A) is None
    versions = VersionCache("http://o", lambda _: Freshness.parse("immutable"), FakeClock(), 10)
    for version, found in ((older, None), (newer, 8.0), (older, None)):
        versions.recall("http://o", Belief(version, found))
    assert versions.fresh(A) == newer, "of the other one no confirmation is known"


async def test_the_headers_that_were_confirmed_last_are_those_of_the_version(tmp_path: Path) -> None:
    versions = VersionCache("http://o", lambda _: Freshness.parse("immutable"), FakeClock(), 10)
    plain = ObjectVersion(A, '"1"', 10)
    tagged = replace(plain, headers=(("x-amz-tagging-count", "1"),))
    for version, age in ((plain, 9.0), (tagged, 8.0), (plain, 9.0)):
        versions.recall("http://o", Belief(version, age))
    assert versions.fresh(A) == tagged


def test_a_block_that_is_found_late_does_not_bring_back_what_the_origin_no_longer_has() -> None:
    versions = VersionCache("http://o", lambda _: Freshness.parse("immutable"), FakeClock(), 1)
    version = ObjectVersion(A, '"1"', 10)
    versions.gone(A)
    versions.recall("http://o", Belief(version, 5.0))
    assert versions.fresh(A) is None
    versions.recalled()
    versions.gone(B)
    versions.learn(version, versions.mark())
    assert versions.fresh(A) == version


def test_a_block_that_is_found_late_does_not_make_an_answer_doubtful() -> None:
    versions = VersionCache("http://o", lambda _: Freshness.parse("immutable"), FakeClock(), 1)
    older, newer = (ObjectVersion(A, f'"{number}"', 10) for number in (1, 2))
    versions.learn(newer, versions.mark())
    versions.recall("http://o", Belief(older, 5.0))
    assert versions.fresh(A) == newer


@given(st.floats(0, 1e9), st.floats(0.98, 1.02), st.floats(0, 1))
def test_a_version_is_found_fresh_for_no_longer_than_its_time_and_not_much_less(
    age: float, part: float, started: float
) -> None:
    clock, ttl_s = FakeClock(), age * part
    versions = VersionCache("http://o", lambda _: Freshness(ttl_s), clock, 1)
    clock.advance(age * started)
    versions.recall("http://o", Belief(ObjectVersion(A, '"1"', 10), age))
    if versions.fresh(A) is None:
        assert age * 1.008 + 1e-6 >= ttl_s
    else:
        assert age <= ttl_s + 1e-6


@pytest.mark.parametrize(
    ("confirmed_at", "now", "not_before", "age"),
    [(None, 9.0, 0.0, None), (0.0, 9.0, 0.0, None), (8.0, 9.0, 9.0, 1.0), (9.0, 9.0, 0.0, 0.0), (9.1, 9.0, 0.0, None),
     (8.0, 9.0, 9.1, None), (float("nan"), 9.0, 0.0, None)],
)  # fmt: skip
def test_the_age_of_a_version_is_known_from_a_clock_that_goes_forward(
    confirmed_at: float | None, now: float, not_before: float, age: float | None
) -> None:
    assert age_s(confirmed_at, now, not_before) == age
