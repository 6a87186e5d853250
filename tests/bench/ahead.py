"""The goals of riding ahead, simulated and live: `make bench-ahead` prints goal, measured, met or not.

Live: a real engine before a real bucket, whose network gives 1.3 times what the job consumes and, to one connection,
less than one worker needs; an accelerator that sleeps. Measured is the *excess wait*: how long the loop was blocked
for data, above that of the same job over local files; as a share of that of the same job straight from the bucket.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from tests.bench import ahead_simulated
from tests.bench.ahead_live import Epoch, Live, RunFailed, World
from tests.support.bucket import Bucket
from tests.support.child import scratch_directory

MIB = 2**20
# Four workers, each of whom gets 15 % of what the job consumes from one connection: 60 % in all.
# A block takes 4.6 times as long as its first byte, as 8 MiB do at S3 (30 ms, and 60 MB/s a connection).
SHARDS = World(
    "shards", objects=96, object_bytes=4 * MIB, sample_bytes=64 * 1024, batch=16, workers=4, step_us=2600.0,
    ttfb_s=0.03, connection_share=0.15, cache=0.25, block_bytes=MIB // 2,
)  # fmt: skip
# A tenth of DELI's MNIST run in number, batch and cache (14,000 samples a node, 512, 3072), at its 56 ms a GET.
SAMPLES = World(
    "samples", objects=1400, object_bytes=1024, sample_bytes=1024, batch=51, workers=0, step_us=8000.0, ttfb_s=0.056,
    connection_share=None, cache=0.22, block_bytes=8 * MIB,
)  # fmt: skip
SHORT_SHARDS = replace(SHARDS, objects=12, object_bytes=MIB, block_bytes=256 * 1024, cache=0.5, step_us=1000.0)
SHORT_SAMPLES = replace(SAMPLES, objects=60, batch=10, ttfb_s=0.005, step_us=1000.0)
# As a sampler draws its own that was given none: the proxy cannot find it. Others have 1.
UNKNOWN_SEED = 0x1F83D9ABFB41BD6B
LRU = {"policy": "lru", "prefetch": "off"}


HEADING = f"{'world':44} {'figure':32} {'goal':>8} {'measured':>8}"


@dataclass(frozen=True, slots=True)
class Row:
    """`goal` "" and `met` None: it is there for comparison. `measured` None: the direct run did not wait, so there is
    nothing to compare with."""

    world: str
    figure: str
    goal: str
    measured: float | None
    met: bool | None
    why: str = ""

    def line(self) -> str:
        measured = "-" if self.measured is None else f"{self.measured:.3f}"
        verdict = "" if not self.goal else "met" if self.met else f"NOT MET: {self.why}" if self.why else "NOT MET"
        return f"{self.world:44} {self.figure:32} {self.goal:>8} {measured:>8}  {verdict}".rstrip()


class Compared:
    """One world's runs against those over local files and straight from the bucket."""

    def __init__(self, local: list[Epoch], direct: list[Epoch]) -> None:
        self._local = local
        self._direct_s = median(self.excess_s(number, one) for number, one in enumerate(direct))

    def excess_s(self, number: int, epoch: Epoch) -> float:
        """The first epoch holds the start of the loader's workers, in both."""
        later = self._local[1:] or self._local
        return epoch.wait_s - (self._local[0].wait_s if number == 0 else median(one.wait_s for one in later))

    def row(self, world: str, goal: float | None, epochs: list[Epoch], first: int, last: int) -> Row:
        """The worst of these epochs, counted from 1."""
        worst_s = max(self.excess_s(number, epochs[number]) for number in range(first - 1, last))
        share = worst_s / self._direct_s if self._direct_s > 0 else None
        which = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        met = None if goal is None else share is not None and share <= goal
        return Row(world, f"excess wait, {which}", "" if goal is None else f"<= {goal:.2f}", share, met)


def of_shards(live: Live, only: str) -> Iterator[Row]:
    chosen = [run for run in ("default", "new order", "announced", "lru") if only in f"webdataset {run}"]
    if not chosen:
        return
    live.make()
    compared = Compared(live.local("shards-local", 3), live.direct("shards-direct", 2))
    if "default" in chosen:
        epochs = live.outrider("shards-default", 3, {})
        yield compared.row("WebDataset default", 0.35, epochs, 1, 1)
        yield compared.row("WebDataset default", 0.03, epochs, 2, 3)
    if "new order" in chosen:
        epochs = live.outrider("shards-fresh", 3, {}, order="fresh")
        yield compared.row("WebDataset new order", None, epochs, 1, 1)
        yield compared.row("WebDataset new order", 0.35, epochs, 2, 3)
    if "announced" in chosen:
        epochs = live.outrider("shards-announced", 3, {}, order="fresh", announce=True)
        yield compared.row("WebDataset announced", 0.03, epochs, 1, 3)
    if "lru" in chosen:
        yield compared.row("WebDataset lru", None, live.outrider("shards-lru", 2, LRU), 2, 2)


def of_samples(live: Live, only: str) -> Iterator[Row]:
    runs = ("unmodified", "unmodified, seeded", "AnnouncingSampler", "lru")
    chosen = [run for run in runs if only in f"deli {run}"]
    if not chosen:
        return
    live.make()
    with ThreadPoolExecutor() as pool:
        # They wait for the network and for nothing else, so they do not disturb each other.
        direct = pool.submit(live.direct, "samples-direct", 1)
        lru = pool.submit(live.outrider, "samples-lru", 2, LRU) if "lru" in chosen else None
        direct.result()
    compared = Compared(live.local("samples-local", 2), direct.result())
    if "unmodified" in chosen:
        epochs = live.outrider("samples-unmodified", 2, {}, seed=UNKNOWN_SEED)
        yield compared.row("DELI unmodified", 0.50, epochs, 1, 2)
    if "unmodified, seeded" in chosen:
        epochs = live.outrider("samples-seeded", 2, {})
        yield compared.row("DELI unmodified, seeded", 0.14, epochs, 1, 2)
    if "AnnouncingSampler" in chosen:
        epochs = live.outrider("samples-announced", 2, {}, announce=True)
        yield compared.row("DELI AnnouncingSampler", 0.02, epochs, 1, 2)
    if lru is not None:
        yield compared.row("DELI lru", None, lru.result(), 2, 2)


def of_simulator(only: str) -> Iterator[Row]:
    for row in ahead_simulated.rows():
        if only in f"simulated {row.world}":
            measured = row.worst()
            yield Row(f"simulated: {row.world}", row.figure, row.goal, measured, row.met(measured), row.why)


def rows(chosen: argparse.Namespace, directory: Path, told: Callable[[str], None]) -> Iterator[Row]:
    if not chosen.short:
        yield from of_simulator(chosen.only)
    with Bucket() as bucket:
        shards, samples = (SHORT_SHARDS, SHORT_SAMPLES) if chosen.short else (SHARDS, SAMPLES)
        yield from of_shards(Live(shards, bucket, directory, told), chosen.only)
        yield from of_samples(Live(samples, bucket, directory, told), chosen.only)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ahead", description=__doc__)
    parser.add_argument("--short", action="store_true", help="little data, live rows alone: the figures mean nothing")
    parser.add_argument("--only", default="", metavar="WORDS", help="rows with these words in their names")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument("--keep", action="store_true", help="keep data, logs, and traces of the proxy's metrics")
    chosen = parser.parse_args()
    # Both end all that was started on the way out. SIGINT by name, since a shell starts what is in its background
    # with Ctrl-C ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupted)
    found: list[Row] = []
    try:
        with _directory(keep=chosen.keep) as directory:
            print(HEADING, flush=True)
            for row in rows(chosen, directory, _told):
                found.append(row)
                print(row.line(), flush=True)
    except (RunFailed, RuntimeError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if chosen.json:
            chosen.json.write_text(json.dumps([asdict(row) for row in found], indent=2) + "\n")
    return 0


def _told(progress: str) -> None:
    print(f"    {progress}", file=sys.stderr, flush=True)


@contextmanager
def _directory(*, keep: bool) -> Iterator[Path]:
    if keep:
        directory = Path(tempfile.mkdtemp(prefix="outrider-ahead-"))
        print(f"keeping {directory}", file=sys.stderr)
        yield directory
    else:
        with scratch_directory("outrider-ahead-") as directory:
            yield directory


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
