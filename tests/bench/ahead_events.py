"""The planner's CPU cost of an event: `python -m tests.bench.ahead_events` prints medians (a minute).

100,000 one-block objects, a cache for a quarter of them, a repeated order; each read asks the planner for the next
prefetch. The longest event considers all names. It also prints the memory of a million names.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from itertools import islice
from random import Random
from statistics import median
from typing import TypeVar

from outrider.core.ahead.order.webdataset_shuffle import drawn
from outrider.core.ahead.planner import Planner
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion

T = TypeVar("T")
OBJECTS, BYTES, GOAL_US, GOAL_MB = 100_000, 2**20, 50, 200


class Clocked:
    """A store that holds the blocks that the planner chooses, and a stop-watch on each call."""

    def __init__(self) -> None:
        self.refs = [ObjectRef("bucket", f"train/{i:07d}.tar") for i in range(OBJECTS)]
        self.versions = [ObjectVersion(ref, '"e"', BYTES) for ref in self.refs]
        self.blocks = [BlockKey(i.to_bytes(16, "big"), 0) for i in range(OBJECTS)]
        self.room = OBJECTS // 4
        self.planner = Planner(self.room * BYTES, BYTES)
        self.present: set[int] = set()
        self.took_s: dict[str, list[float]] = {}

    def timed(self, name: str, act: Callable[[], T]) -> T:
        begun = time.perf_counter()
        result = act()
        self.took_s.setdefault(name, []).append(time.perf_counter() - begun)
        return result

    def fill(self, i: int) -> None:
        planner, block, version = self.planner, self.blocks[i], self.versions[i]
        if len(self.present) >= self.room:
            victim = self.timed("victims", lambda: next(planner.victims(block, version), None))
            if victim is None:
                planner.dropped(self.refs[i])
                return
            self.present.discard(int.from_bytes(victim.version_id, "big"))
            self.timed("removed", lambda: planner.removed(victim))
        self.present.add(i)
        self.timed("added", lambda: planner.added(block, version))

    def read(self, i: int, now: float) -> None:
        planner, ref, block = self.planner, self.refs[i], self.blocks[i]
        self.timed("asked", lambda: planner.requested("client", ref, BYTES, Extent(0, BYTES), now))
        if i not in self.present:
            self.fill(i)
        self.timed("read", lambda: planner.read(block))
        self.timed("sent", lambda: planner.sent("client", ref, now))
        free_bytes = (self.room - len(self.present)) * BYTES
        for want in self.timed("wants", lambda: planner.wants(now, free_bytes, 16)):
            self.fill(int(want.ref.key[6:13]))


def chance_reads() -> list[int]:
    return Random("no seed of torch").sample(range(OBJECTS), 16)


def workers_reads() -> list[int]:
    """Six shards of each of WebDataset's eight workers, in the order of a seed that WebDataset would not choose."""
    places = islice(drawn(Random(2**40), OBJECTS // 8, 1000), 6)
    return [8 * place + worker for place in places for worker in range(8)]


def step_times_s(count: int, reads: list[int]) -> list[float]:
    """The duration in seconds of each step of a seed search that finds no seed."""
    planner = Planner(BYTES, BYTES)
    refs = [ObjectRef("bucket", f"train/part-{i:08d}.tar") for i in range(count)]
    planner.discovery.listed("bucket", [(ref.key, BYTES) for ref in refs])
    for number, i in enumerate(reads):
        planner.requested("client", refs[i], BYTES, Extent(0, BYTES), float(number))
        planner.sent("client", refs[i], float(number))
    steps_s, more = [], True
    while more:
        begun = time.perf_counter()
        more = planner.step()
        steps_s.append(time.perf_counter() - begun)
    return steps_s


def print_steps(steps_s: list[float], of: str) -> None:
    us, seconds = sorted(steps_s)[len(steps_s) * 99 // 100] * 1e6, sum(steps_s)
    print(f"step     99 of 100 steps take {us:4.0f} us at most, goal < 500: {'met' if us < 500 else 'NOT MET'}")
    print(f"step     {len(steps_s)} steps, {seconds:.2f} s in all, no seed found for {of}")


def main() -> None:
    clocked = Clocked()
    clocked.planner.discovery.listed("bucket", [(ref.key, BYTES) for ref in clocked.refs])
    order = Random(1).sample(range(OBJECTS), OBJECTS)
    for number in range(2 * OBJECTS):
        clocked.read(order[number % OBJECTS], number * 0.001)
    for name, took_s in clocked.took_s.items():
        us = median(took_s) * 1e6
        print(
            f"{name:8} median {us:6.1f} us, goal < {GOAL_US}: {'met' if us < GOAL_US else 'NOT MET'}"
            f" (longest {max(took_s) * 1e3:.1f} ms)"
        )
    print_steps(step_times_s(OBJECTS, chance_reads()), "a sampler")
    print_steps(step_times_s(OBJECTS, workers_reads()), "WebDataset's workers")
    tracemalloc.start()
    planner = Planner(BYTES, BYTES)
    planner.discovery.listed("bucket", ((f"train/part-{i:08d}.tar", BYTES) for i in range(1_000_000)))
    for i in range(10):
        ref = ObjectRef("bucket", f"train/part-{i:08d}.tar")
        planner.requested("client", ref, BYTES, Extent(0, BYTES), float(i))
    mb = tracemalloc.get_traced_memory()[0] / 1e6
    print(f"a million names take {mb:.0f} MB, goal < {GOAL_MB}: {'met' if mb < GOAL_MB else 'NOT MET'}")


if __name__ == "__main__":
    main()
