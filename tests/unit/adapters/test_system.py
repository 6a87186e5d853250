"""The garbage collector's hand on what lives long, with a clock and objects of the test's own."""

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
    assert gc.get_freeze_count() == 0
    yield
    gc.unfreeze()


@pytest.mark.parametrize(
    ("generation", "took_s", "freezes"), [(2, 0.011, True), (2, 0.009, False), (1, 0.011, False), (0, 0.011, False)]
)
@pytest.mark.usefixtures("nothing_set_aside")
def test_what_outlived_a_long_full_collection_is_set_aside(generation: int, took_s: float, freezes: bool) -> None:
    now = 100.0
    hear = freezing_after_long_ones(lambda: now)
    hear("start", {"generation": generation})
    assert gc.get_freeze_count() == 0
    now += took_s
    hear("stop", {"generation": generation})
    assert (gc.get_freeze_count() > 0) == freezes


# In a process of its own: the callback stays for good.
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


def test_a_collection_sets_aside_what_it_found_alive_and_its_end_frees_it_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 4
