"""Garbage collection: objects are frozen after long collections, with a fake clock and objects of the test. The
memory that growing arrays leave free. And the cores that a process may use, by files of the test."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from outrider.adapters.process.system import freezing_after_long_ones, usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def nothing_set_aside() -> Iterator[None]:
    """The session has set aside what it made while it collected the tests, and does so again."""
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.freeze()


@pytest.mark.parametrize(
    ("generation", "took_s", "freezes"), [(2, 0.011, True), (2, 0.009, False), (1, 0.011, False), (0, 0.011, False)]
)
@pytest.mark.usefixtures("nothing_set_aside")
def test_objects_that_outlive_a_long_full_collection_are_frozen(generation: int, took_s: float, freezes: bool) -> None:
    now = 100.0
    on_collection = freezing_after_long_ones(lambda: now)
    on_collection("start", {"generation": generation})
    assert gc.get_freeze_count() == 0
    now += took_s
    on_collection("stop", {"generation": generation})
    assert (gc.get_freeze_count() > 0) == freezes


# Run in its own process: the callback cannot be removed.
_PROGRAM = """
import gc, outrider.adapters.process.system as system
system.keep_collections_short()
started = gc.get_freeze_count()
system._LONG_COLLECTION_S = -1.0
kept = [[] for _ in range(10_000)]
gc.collect()
aside = gc.get_freeze_count() - started
seen = len(gc.get_objects())
del kept
print(started > 10_000, aside >= 10_000, seen < 10_000, gc.get_freeze_count() < started + aside - 9_000)
"""


def test_frozen_objects_are_still_freed_by_reference_counting() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 4


# Columns of a table that grow in turn.
_COLUMNS = """
import os
from array import array
from outrider.adapters.process.system import give_back_memory, keep_memory_small
def held(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
keep_memory_small()
# From then on the C library takes blocks of this size from a heap.
freed = bytearray(16 * 2**20)
del freed
before, columns = held(), [array("d") for _ in range(20)]
for _ in range(2000):
    for column in columns:
        column.extend((0.0,) * 100)
give_back_memory()
print((held() - before) / (20 * 2000 * 100 * 8))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library is left as it is")
def test_the_gaps_that_growing_columns_leave_are_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", _COLUMNS], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.15


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8), ({"cpu.max": "max 100000"}, 8), ({"cpu.max": "250000 100000"}, 2), ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "3200000 100000"}, 8), ({"cpu.max": "odd"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
    ],
)  # fmt: skip
def test_the_cores_that_may_be_used_are_those_of_affinity_and_quota(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert usable_cores(tmp_path) == cores
