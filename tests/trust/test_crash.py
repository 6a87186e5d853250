"""SIGKILL at any moment, and power loss: what a start finds in the cache directory, and what clients get of it."""

from __future__ import annotations

import random
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from outrider.core.blockfile import PAGE_BYTES
from tests.support.proxy import ServedProxy
from tests.support.rawhttp import RawConnection
from tests.support.shelf import KIB, RIGHT, Shelf, WrongBytes
from tests.support.trials import rounds

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.trials import Trials

BLOCK_BYTES = 64 * KIB
# 24 blocks of the shelf's 96: most reads evict.
BUDGET_BYTES = 24 * (BLOCK_BYTES + PAGE_BYTES)
READERS = 3
# As many reads as bring each moment that a running proxy can die at.
READS = 20


@pytest.fixture(scope="module")
def shelf(bucket: Bucket) -> Shelf:
    return Shelf.make(bucket, "crash", 24)


def on_disk(root: Path) -> int:
    """All that the store keeps there, in full pages."""
    sizes = [path.stat().st_size for part in ("v1", "tmp") for path in (root / part).rglob("*") if path.is_file()]
    return sum(-(-size // PAGE_BYTES) * PAGE_BYTES for size in sizes)


class Mortal(ServedProxy):
    """`outrider serve` with a small cache, which is killed at a moment of its own (`tests.support.doomed`)."""

    def __init__(self, bucket: Bucket, directory: Path) -> None:
        super().__init__(
            bucket, directory, cache_size=str(BUDGET_BYTES), block_size=str(BLOCK_BYTES), freshness="immutable",
            prefetch="off",
        )  # fmt: skip
        self.argv[self.argv.index("outrider")] = "tests.support.doomed"
        self.environment["PYTHONPATH"] += ":."

    def start_to_die(self, doom: str) -> bool:
        """False: it died before it served."""
        self.environment["DOOM"] = doom
        try:
            self.start()
        except RuntimeError:
            assert self.wait() == -signal.SIGKILL, self.log.read_text()[-4000:]
            return False
        finally:
            del self.environment["DOOM"]
        return True

    @property
    def is_dead(self) -> bool:
        assert self._child is not None
        return not self._child.running

    def examine(self) -> None:
        """After a start and before the first read: what the index knows is what is there, and that keeps the budget."""
        assert list((self.cache_dir / "tmp").iterdir()) == []
        assert not list(self.cache_dir.glob("*.part"))
        assert on_disk(self.cache_dir) == self.status()["bytes"] <= BUDGET_BYTES


def load(proxy: Mortal, shelf: Shelf, seed: int) -> list[str]:
    """What readers saw, until they had enough or the proxy died."""
    seen: list[str] = []
    wrong: list[WrongBytes] = []

    def read(number: int) -> None:
        chance = random.Random(seed * READERS + number)
        try:
            with RawConnection(proxy.address) as connection:
                for _ in range(READS):
                    seen.append(shelf.read_any(connection, chance))
                    if seen[-1] != RIGHT:
                        return
        except WrongBytes as error:
            wrong.append(error)
        except OSError:
            return

    threads = [threading.Thread(target=read, args=(number,)) for number in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]
    return seen


# Where death comes, and up to which one of these operations: some of a start, of fills, of evictions, of the stop.
MOMENTS = [
    ("a fill", "open tmp", 25), ("a fill", "write tmp", 40), ("a fill", "rename v1", 25),
    ("an eviction", "remove v1", 20), ("a start", "scandir v1", 12), ("a start", "open v1", 12),
    ("a start", "remove index", 1), ("the snapshot of a stop", "open index", 1),
    ("the snapshot of a stop", "write index", 1), ("the snapshot of a stop", "rename index", 1),
]  # fmt: skip


def test_killed_at_any_moment_it_starts_again_with_right_bytes_and_within_its_budget(
    bucket: Bucket, shelf: Shelf, trials: Trials, tmp_path: Path
) -> None:
    chance = random.Random(6)
    # Each of them now and then, and in no order.
    moments = [MOMENTS[i % len(MOMENTS)] for i in range(rounds(len(MOMENTS)))]
    chance.shuffle(moments)
    proxy = Mortal(bucket, tmp_path)
    for number, (fault, moment, latest) in enumerate(moments):
        doom = f"{moment}:{chance.randint(1, latest)}" + chance.choice(["", ":after"])
        seen: list[str] = []
        if proxy.start_to_die(doom):
            proxy.examine()
            seen = load(proxy, shelf, number)
            if not proxy.is_dead:
                proxy.send(signal.SIGTERM)
            status = proxy.wait()
            assert status in (0, -signal.SIGKILL), proxy.log.read_text()[-4000:]
            assert on_disk(proxy.cache_dir) <= BUDGET_BYTES
            if status == 0:
                fault = "none: an orderly stop between two kills"
        for saw in seen or ["nothing: it was killed before it served"]:
            trials.record("crash", f"SIGKILL in {fault}" if "none" not in fault else fault, saw)
    with proxy:
        proxy.examine()
        assert shelf.read_all(proxy.address) == RIGHT
        proxy.settle()
        assert on_disk(proxy.cache_dir) <= BUDGET_BYTES
