"""Garbage collection: objects are frozen after long collections, with a fake clock and objects of the test."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from outrider.adapters.process.system import freezing_after_long_ones

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    hear = freezing_after_long_ones(lambda: now)
    hear("start", {"generation": generation})
    assert gc.get_freeze_count() == 0
    now += took_s
    hear("stop", {"generation": generation})
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
