"""The whole engine against a dict of versions: after any events in any order, a read is of exactly one version.

That version was current within the freshness window, and is no older than the last write through the proxy.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from outrider.adapters.disk.recovery import Recovery
from outrider.core.errors import InvalidRange, OriginBroke, S3Error, ServiceUnavailable, VersionChanged
from outrider.core.model import Extent, ObjectRef, ObjectVersion
from outrider.core.s3.body_integrity import UNSIGNED
from outrider.core.s3.operation import classify
from outrider.engine.ahead.prefetch import Mode
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.read.hit_lookup import HitLookup
from outrider.engine.read.object_read import ReadAnswer
from outrider.engine.read.version_answers import NotCacheable
from outrider.engine.write.upload import Upload, upload_of
from tests.support.child import open_below
from tests.support.engine import BLOCK, Engine, as_large, as_small, by_threads, engine, nothing_is_left, pieces_of
from tests.support.event_loops import SeededLoop, SeededThreads, leave_after
from tests.support.fakes import FakeClock, FakeOrigin, Fault, ramp
from tests.support.trials import SCALE, rounds

if TYPE_CHECKING:
    from collections.abc import Coroutine

TTL_S = 60.0
KEYS = ("a", "b")
CAPACITY = 4 * (BLOCK + 4096)
SIZES = (0, 1, 1000, BLOCK, BLOCK + 1, 3 * BLOCK + 5, 6 * BLOCK)

keys = st.sampled_from(KEYS)
starts = st.one_of(
    st.none(), st.sampled_from((0, 1, BLOCK // 2, BLOCK - 1, BLOCK, 2 * BLOCK + 7, 3 * BLOCK - 9000, 5 * BLOCK))
)
lengths = st.one_of(st.none(), st.sampled_from((1, 100, BLOCK, 3 * BLOCK)))


class Version:
    """The content of an object from `since` on; `data` None: there was no object."""

    def __init__(self, data: bytes | None, since: float) -> None:
        self.data = data
        self.since = since
        self.until = inf


class OneVersion(RuleBasedStateMachine):
    policy, prefetch = "lru", Mode.OFF

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="outrider-states-"))

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.loop = SeededLoop(seed)
        self.buffer_bytes = (as_large, as_small, by_threads)[seed % 3]
        self.runner = asyncio.Runner(loop_factory=lambda: self.loop)
        self.origin = FakeOrigin(chunk_bytes=20_000)
        self.clock = FakeClock()
        self.histories = {key: [Version(None, -inf)] for key in KEYS}
        self.floors = dict.fromkeys(KEYS, 0)  # the oldest version that may be read since our last write
        self.number = 0
        self.start()

    def start(self) -> None:
        async def index() -> None:
            await self.recovery.index()

        self.stack = ExitStack()
        self.room: Engine = self.stack.enter_context(
            engine(
                self.folder / "c",
                self.origin,
                capacity_bytes=CAPACITY,
                clock=self.clock,
                policy=self.policy,
                prefetch=self.prefetch,
                fills_max=2,
                buffer_bytes=self.buffer_bytes,
            )
        )
        self.runner.get_loop()
        self.room.store.disks[0].work.threads.shutdown()
        self.room.store.disks[0].work.threads = SeededThreads(self.loop)
        self.recovery = Recovery(self.room.store, self.room.versions)
        self.hits = HitLookup(self.room.layout, self.room.versions, self.room.store, self.clock)
        self.runner.run(index())

    def teardown(self) -> None:
        if not hasattr(self, "room"):
            shutil.rmtree(self.folder)
            return
        self.origin.faults = []
        try:
            self.all_settles()
            self.stack.close()
            assert not open_below(self.folder), "files were left open"
        finally:
            self.runner.close()
            shutil.rmtree(self.folder)

    def act(self, work: Coroutine[Any, Any, None]) -> None:
        # As at the beginning: otherwise a reader may suffer from faults that another one has used up.
        self.stormy = any(fault.times for fault in self.origin.faults)
        self.runner.run(work)

    def new_data(self, size: int) -> bytes:
        self.number += 1
        return ramp(size, start=self.number * 7)

    def happened(self, key: str, data: bytes | None) -> None:
        history = self.histories[key]
        history[-1].until = self.clock.now
        history.append(Version(data, self.clock.now))

    # -- the world ------------------------------------------------------------------------------------------------

    @rule(key=keys, size=st.sampled_from(SIZES))
    def others_write(self, key: str, size: int) -> None:
        data = self.new_data(size)
        self.origin.put(ObjectRef("bkt", key), data)
        self.happened(key, data)

    @rule(key=keys)
    def others_delete(self, key: str) -> None:
        self.origin.delete(ObjectRef("bkt", key))
        self.happened(key, None)

    @rule(seconds=st.sampled_from((1.0, 6.0, 30.0, 59.0, 61.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(
        fault=st.sampled_from(("break", "break at once", "503", "down", "shift")), times=st.integers(1, 6),
        after=st.sampled_from((1, 5000, 30_000)),
    )  # fmt: skip
    def a_fault_is_set(self, fault: str, times: int, after: int) -> None:
        made = {
            "break": Fault(times, method="GET", break_after=after),
            "break at once": Fault(times, method="GET", break_after=0),
            "503": Fault(times, status=503),
            "down": Fault(times, refuse=True),
            "shift": Fault(times, method="GET", shift=1),
        }[fault]
        self.origin.faults.append(made)

    @rule()
    def all_faults_end(self) -> None:
        self.origin.faults = []

    @rule(at=st.integers(0, 10**6), pick=st.integers(0, 20))
    def a_block_rots(self, at: int, pick: int) -> None:
        # Only blocks that this process has not verified yet: `verify=first` trusts blocks that it wrote or read whole.
        unverified = list(self.room.store.each(unverified=True))
        if not unverified:
            return
        path = self.room.store.disks[0].directory.path_of(unverified[pick % len(unverified)])
        raw = bytearray(path.read_bytes())
        raw[at % len(raw)] ^= 0x55
        path.write_bytes(raw)

    # -- us -------------------------------------------------------------------------------------------------------

    @rule(clean=st.booleans())
    def we_restart(self, clean: bool) -> None:
        async def stop() -> None:
            await self.room.tasks.cancel()
            if clean:
                await self.recovery.save()

        self.runner.run(stop())
        self.stack.close()
        self.start()

    @rule(key=keys, size=st.sampled_from(SIZES), kind=st.sampled_from(("PUT", "DELETE", "DELETE objects")))
    def we_write(self, key: str, size: int, kind: str) -> None:
        data = self.new_data(size) if kind == "PUT" else None
        self.act(self._write(key, data, kind))

    async def _write(self, key: str, data: bytes | None, kind: str) -> None:
        async def source() -> object:
            yield data

        ref = ObjectRef("bkt", key)
        before = self.origin.objects.get(ref)
        upload = Upload() if data is None else upload_of((), UNSIGNED, None, source(), len(data))  # type: ignore[arg-type]
        if kind == "DELETE objects":
            operation, names = classify("POST", "/bkt?delete", ()), [key]
        else:
            operation, names = classify(kind, f"/bkt/{key}", ()), None
        try:
            answer = await self.room.passthrough.send(operation, (), upload, names)
        except ServiceUnavailable:
            return
        if kind == "DELETE objects" and answer.status == 200:
            self.origin.delete(ref)  # the fake does not read the body
        await answer.body.aclose()
        if answer.status < 300 or self.origin.objects.get(ref) is not before:
            self.happened(key, data)
            self.floors[key] = len(self.histories[key]) - 1

    @rule(key=keys, start=starts, length=lengths, readers=st.integers(1, 3))
    def we_read(self, key: str, start: int | None, length: int | None, readers: int) -> None:
        async def reads() -> None:
            await asyncio.gather(*(self._read(key, start, length) for _ in range(readers)))

        self.act(reads())

    async def _read(self, key: str, start: int | None, length: int | None, *, stopping: bool = False) -> None:
        stormy = stopping or self.stormy
        headers = {}
        if start is not None:
            headers["range"] = f"bytes={start}-{'' if length is None else start + length - 1}"
        elif length is not None:
            headers["range"] = f"bytes=-{length}"
        try:
            answer = await self.room.reads.get(ObjectRef("bkt", key), headers, self._asked)
        except InvalidRange:
            assert any(data is not None and _slice(data, start, length) is None for data in self._allowed(key))
        except OriginRefused as refused:
            status = refused.status
            assert stormy or (status == 404 and None in self._allowed(key))
        except NotCacheable:
            pass  # forwarded: the origin answers itself
        except S3Error:
            assert stormy
        else:
            got, whole = await self._taken(answer, stormy)
            slices = [_slice(data, start, length) for data in self._allowed(key) if data is not None]
            assert any(part is not None and (part == got if whole else part.startswith(got)) for part in slices)

    @rule(key=keys, offsets=st.lists(st.integers(0, 3 * BLOCK), min_size=2, max_size=4))
    def we_read_here_and_there(self, key: str, offsets: list[int]) -> None:
        """The reads include one from the middle of a block, followed by one before it."""

        async def reads() -> None:
            await asyncio.gather(*(self._read(key, offset, 1000) for offset in offsets))

        self.act(reads())

    def _asked(self, version: ObjectVersion, extent: Extent) -> None:
        self.room.prefetch.requested("job", version, extent, checksums=False)

    @rule(key=keys, start=starts, length=lengths, steps=st.integers(0, 80), stays=st.booleans())
    def we_leave_a_read(self, key: str, start: int | None, length: int | None, steps: int, stays: bool) -> None:
        """The reader leaves at any of its waits. A reader of the same object beside it is not disturbed."""

        async def reads() -> None:
            beside = [self._read(key, start, length)] if stays else []
            await asyncio.gather(leave_after(steps, self._read(key, start, length)), *beside)

        self.act(reads())

    @rule(key=keys, size=st.sampled_from(SIZES), kind=st.sampled_from(("PUT", "DELETE")), steps=st.integers(0, 20))
    def we_leave_a_write(self, key: str, size: int, kind: str, steps: int) -> None:
        """Only the origin knows whether the write took place. The client got no success."""
        data = self.new_data(size) if kind == "PUT" else None
        recorded = len(self.histories[key])
        before = self.origin.objects.get(ObjectRef("bkt", key))
        self.act(self._left(steps, self._write(key, data, kind)))
        if len(self.histories[key]) == recorded and self.origin.objects.get(ObjectRef("bkt", key)) is not before:
            self.happened(key, data)

    async def _left(self, steps: int, work: Coroutine[Any, Any, None]) -> None:
        await leave_after(steps, work)

    @rule(key=keys, readers=st.integers(1, 3), steps=st.integers(0, 40))
    def the_work_of_the_background_is_cancelled(self, key: str, readers: int, steps: int) -> None:
        """The background is cancelled as at a stop. A reader gets its bytes past the cache, or its connection is
        cut."""

        async def stop() -> None:
            for _ in range(steps):
                await asyncio.sleep(0)
            await self.room.tasks.cancel()

        async def reads() -> None:
            await asyncio.gather(stop(), *(self._read(key, None, None, stopping=True) for _ in range(readers)))

        self.act(reads())

    @rule(key=keys, start=starts, steps=st.integers(0, 30), readers=st.integers(0, 2))
    def a_client_hits(self, key: str, start: int | None, steps: int, readers: int) -> None:
        """The fast path looks up a hit, takes a lease, and reads later. Anything may happen here in between."""

        async def hit() -> None:
            for _ in range(steps):
                await asyncio.sleep(0)
            known = self.hits.known(ObjectRef("bkt", key))
            if known is None or (start or 0) >= known.version.size:
                return
            allowed = self._allowed(key)
            found = self.hits.pieces(known, Extent(start or 0, known.version.size), known.version.size)
            if found is None:
                return
            for _ in range(steps):
                await asyncio.sleep(0)
            got = b""
            for lease, fd, offset, count in found:
                got += os.pread(fd, count, offset)
                lease.release()
            assert len(got) == sum(count for *_, count in found)
            assert any(data is not None and data[start or 0 :].startswith(got) for data in allowed)

        async def reads() -> None:
            await asyncio.gather(hit(), *(self._read(other, None, None) for other in KEYS[:readers]))

        self.act(reads())

    @rule()
    def the_planner_thinks(self) -> None:
        async def tick() -> None:
            await self.room.prefetch.tick()

        self.runner.run(tick())

    async def _taken(self, answer: ReadAnswer, stormy: bool) -> tuple[bytes, bool]:
        """The bytes of the body, and whether they are complete. The client sees a cut, so a short body never looks
        whole."""
        got = bytearray()
        assert answer.body is not None
        try:
            async for piece in pieces_of(answer.body):
                got += piece
        except VersionChanged:
            return bytes(got), False
        except (OriginBroke, OriginRefused):
            assert stormy
            return bytes(got), False
        assert len(got) == answer.length
        return bytes(got), True

    def _allowed(self, key: str) -> list[bytes | None]:
        return [
            version.data
            for number, version in enumerate(self.histories[key])
            if number >= self.floors[key] and version.until > self.clock.now - TTL_S
        ]

    # -- always ---------------------------------------------------------------------------------------------------

    @invariant()
    def the_budget_holds(self) -> None:
        assert 0 <= self.room.store.used_bytes <= CAPACITY

    @invariant()
    def no_background_task_failed(self) -> None:
        assert not self.room.tasks.failures

    @rule()
    def all_settles(self) -> None:
        async def settled() -> None:
            await self.room.tasks.settle()
            await nothing_is_left(self.room)

        self.runner.run(settled())
        assert self.room.origin.under_way == 0


def _slice(data: bytes, start: int | None, length: int | None) -> bytes | None:
    """The bytes that the Range names. None means that there are none (416)."""
    if start is None and length is None:
        return data
    if start is None:
        part = data[-length:] if length else b""
    else:
        part = data[start:] if length is None else data[start : start + length]
    return part or None


class OneVersionAhead(OneVersion):
    """The same engine, with prefetch of the rest of each object, and eviction by the planner."""

    policy, prefetch = "epoch", Mode.EPOCH


for _machine in (OneVersion, OneVersionAhead):
    _machine.TestCase.settings = settings(
        max_examples=rounds(50),
        derandomize=SCALE == 1,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
# Longer than the five minutes in which Hypothesis shrinks a failure. A test that is ended during that time looks as if
# it had hung, and its finding is lost.
TestOneVersion = pytest.mark.timeout(600 * SCALE)(OneVersion.TestCase)
TestOneVersionAhead = pytest.mark.timeout(600 * SCALE)(OneVersionAhead.TestCase)
