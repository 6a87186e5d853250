"""The goals of prefetch, simulated and live: `make bench-ahead` prints goal, measured value, and whether it is met.

Live: a real engine before a real bucket, and an accelerator that sleeps. The bucket's network gives 1.3 times the bytes
that the job consumes and, to one connection, less than one worker needs. The measured value is the *excess wait*: the
time that the training loop was blocked for data, less that of the same job over local files, as a share of the excess
wait of the same job straight from the bucket. For jobs that read by s3torchconnector, it is the bytes that the bucket
gave, beside the data. With several `--rounds`, each with an empty cache, the median of each epoch counts.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench import ahead_simulated, command
from tests.bench.ahead_live import Epoch, Live, RunFailed, World
from tests.support.bucket import Bucket

MIB = 2**20
# Four workers, each of which gets 15 % of the job's consumption from one connection: 60 % in all.
# A block takes 4.6 times as long as its first byte, as 8 MiB do at S3 (30 ms, and 60 MB/s a connection).
# An epoch takes a minute. In an epoch of 17 s a goal of 3 % is no more than its first batch, and nobody can fetch that
# batch before the order is announced. The world also runs at half the speed of that one: job, proxy, network and bucket
# share this machine, and with blocks of a sixteenth of the usual size they can take as much from the loop as a goal of
# 3 % allows.
SHARDS = World(
    "shards", objects=192, object_bytes=4 * MIB, sample_bytes=64 * 1024, batch=16, workers=4, step_us=5200.0,
    ttfb_s=0.06, connection_share=0.15, cache=0.25, block_bytes=MIB // 2,
)  # fmt: skip
# A tenth of DELI's MNIST run in number, batch and cache (14,000 samples a node, 512, 3072), at its 56 ms a GET.
SAMPLES = World(
    "samples", objects=1400, object_bytes=1024, sample_bytes=1024, batch=51, workers=0, step_us=8000.0, ttfb_s=0.056,
    connection_share=None, cache=0.22, block_bytes=8 * MIB,
)  # fmt: skip
# Whole objects in the order of their names, by s3torchconnector: shards at 160 MB/s, and 200 images a second. A GET has
# S3's 30 ms, and of a shard its 60 MB/s a connection.
CONNECTOR = World(
    "connector", objects=64, object_bytes=24_000_000, sample_bytes=24_000_000, batch=1, workers=1, step_us=150_000.0,
    ttfb_s=0.03, connection_share=60 / 160, cache=0.25, block_bytes=8 * MIB,
)  # fmt: skip
IMAGES = World(
    "connector", objects=2400, object_bytes=110_000, sample_bytes=110_000, batch=16, workers=2, step_us=5000.0,
    ttfb_s=0.03, connection_share=None, cache=0.25, block_bytes=8 * MIB,
)  # fmt: skip
SHORT_SHARDS = replace(
    SHARDS, objects=12, object_bytes=MIB, block_bytes=256 * 1024, cache=0.5, ttfb_s=0.03, step_us=1000.0
)
SHORT_SAMPLES = replace(SAMPLES, objects=60, batch=10, ttfb_s=0.005, step_us=1000.0)
SHORT_CONNECTOR = replace(CONNECTOR, objects=8, object_bytes=MIB, sample_bytes=MIB, step_us=10_000.0)
SHORT_IMAGES = replace(IMAGES, objects=64, step_us=1000.0)
# Such a sampler draws its own seed, so the proxy cannot find its order. Other worlds have seed 1. Each round has
# another seed, and there are at least as many seeds as rounds: it is luck which samples the cache holds, two hundredths
# of the epoch to either side, and much the same for one seed in each run. (The seeds are SHA-512's initial values:
# nobody chose them for this.)
UNKNOWN_SEEDS = (
    0x1F83D9ABFB41BD6B, 0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1
)  # fmt: skip
# WebDataset chooses its own seed below a million and one: the seed search for it takes about an epoch.
WEBDATASETS_SEED = 805_117
LRU = {"policy": "lru", "prefetch": "off"}
# The bucket may give so much more than the cache has no room for, as a part of the data.
IN_VAIN = 0.03

HEADING = f"{'world':44} {'figure':32} {'goal':>8} {'measured':>8}"


@dataclass(frozen=True, slots=True)
class Row:
    """`goal` "" and `met` None: the row is there for comparison. `measured` None: the direct run did not wait, so there
    is nothing to compare with."""

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
    """One world's runs, compared with those over local files and straight from the bucket: the medians of all
    rounds."""

    def __init__(self, local: list[list[Epoch]], direct: list[list[Epoch]]) -> None:
        self._local_s = _waits_s(local)
        self._direct_s = median(self._excess_s(_waits_s(direct)))

    def _excess_s(self, waits_s: list[float]) -> list[float]:
        """In both runs, the first epoch includes the start of the loader's workers."""
        first_s, *later_s = self._local_s
        beside_s = median(later_s or [first_s])
        return [wait_s - (beside_s if number else first_s) for number, wait_s in enumerate(waits_s)]

    def row(self, world: str, goal: float | None, rounds: list[list[Epoch]], first: int, last: int) -> Row:
        """The row of the worst of these epochs, counted from 1."""
        worst_s = max(self._excess_s(_waits_s(rounds))[first - 1 : last])
        share = worst_s / self._direct_s if self._direct_s > 0 else None
        which = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        met = None if goal is None else share is not None and share <= goal
        return Row(world, f"excess wait, {which}", "" if goal is None else f"<= {goal:.2f}", share, met)


def _waits_s(rounds: list[list[Epoch]]) -> list[float]:
    """The wait of each epoch: the median of the rounds."""
    return [median(epoch.wait_s for epoch in its) for its in zip(*rounds, strict=True)]


Run = Callable[..., list[Epoch]]


def rounds_of(rounds: int, run: Run, name: str, epochs: int, *policy: dict[str, str], **job: Any) -> list[list[Epoch]]:
    """The epochs of `run`, one of `Live`, round by round."""
    return [run(f"{name}-{number + 1}", epochs, *policy, **job) for number in range(rounds)]


def of_shards(live: Live, only: str, rounds: int) -> Iterator[Row]:
    runs = ("default", "new order", "new order, seeded", "announced", "lru")
    chosen = [run for run in runs if only in f"webdataset {run}"]
    if not chosen:
        return
    live.make()
    ours = partial(rounds_of, rounds, live.outrider)
    own = {"seed": WEBDATASETS_SEED}
    compared = Compared(rounds_of(rounds, live.local, "shards-local", 3, **own),
                        rounds_of(rounds, live.direct, "shards-direct", 2, **own))  # fmt: skip
    if "default" in chosen:
        found = ours("shards-default", 3, {}, **own)
        yield compared.row("WebDataset default", 0.35, found, 1, 1)
        yield compared.row("WebDataset default", 0.03, found, 2, 3)
    if "new order" in chosen:
        found = ours("shards-fresh", 3, {}, order="fresh", **own)
        yield compared.row("WebDataset new order", None, found, 1, 1)
        yield compared.row("WebDataset new order", 0.35, found, 2, 3)
    if "new order, seeded" in chosen:
        found = ours("shards-seeded", 3, {}, order="fresh")
        yield compared.row("WebDataset new order, seeded", None, found, 1, 1)
        yield compared.row("WebDataset new order, seeded", None, found, 2, 3)
    if "announced" in chosen:
        found = ours("shards-announced", 3, {}, order="fresh", announce=True, **own)
        yield compared.row("WebDataset announced", 0.03, found, 1, 3)
    if "lru" in chosen:
        yield compared.row("WebDataset lru", None, ours("shards-lru", 2, LRU, **own), 2, 2)


def of_samples(live: Live, only: str, rounds: int) -> Iterator[Row]:
    runs = ("unmodified", "unmodified, seeded", "AnnouncingSampler", "lru")
    chosen = [run for run in runs if only in f"deli {run}"]
    if not chosen:
        return
    live.make()
    ours = partial(rounds_of, rounds, live.outrider)
    with ThreadPoolExecutor() as pool:
        # These runs wait only for the network, so they do not disturb each other.
        direct = pool.submit(rounds_of, rounds, live.direct, "samples-direct", 1)
        lru = pool.submit(ours, "samples-lru", 2, LRU) if "lru" in chosen else None
        direct.result()
    compared = Compared(rounds_of(rounds, live.local, "samples-local", 2), direct.result())
    if "unmodified" in chosen:
        seeds = enumerate(islice(cycle(UNKNOWN_SEEDS), max(rounds, len(UNKNOWN_SEEDS))), 1)
        found = [live.outrider(f"samples-unmodified-{number}", 2, {}, seed=seed) for number, seed in seeds]
        yield compared.row("DELI unmodified", 0.50, found, 1, 2)
    if "unmodified, seeded" in chosen:
        found = ours("samples-seeded", 2, {})
        yield compared.row("DELI unmodified, seeded", 0.14, found, 1, 2)
    if "AnnouncingSampler" in chosen:
        found = ours("samples-announced", 2, {}, announce=True)
        yield compared.row("DELI AnnouncingSampler", 0.02, found, 1, 2)
    if lru is not None:
        yield compared.row("DELI lru", None, lru.result(), 2, 2)


def of_connector(live: Live, name: str, only: str, rounds: int) -> Iterator[Row]:
    """`name`: of the world. A cache that holds a part of the data, and knows the order, spares that part."""
    chosen = [run for run in ("default", "prefetch off") if only in f"{name} {run}"]
    if not chosen:
        return
    if importlib.util.find_spec("s3torchconnector") is None:
        print(f"{name}: left out, s3torchconnector is not installed", flush=True)
        return
    live.make()
    slug, floor = _slug(name), 1 - live.world.cache
    if "default" in chosen:
        local = rounds_of(rounds, live.local, f"{slug}-local", 3)
        found = rounds_of(rounds, live.outrider, f"{slug}-default", 3, {})
        for number, least in enumerate((1.0, floor, floor)):
            given = _bucket_shares(live.world, found)[number]
            bound = least + IN_VAIN
            yield Row(f"{name} default", f"bucket / data, epoch {number + 1}", f"<= {bound:.2f}", given, given <= bound)
        yield Row(f"{name} default", "accelerator busy, epochs 1 to 3", "", _busy(found), None)
        yield Row(f"{name} from the local disk", "accelerator busy, epochs 1 to 3", "", _busy(local), None)
    if "prefetch off" in chosen:
        found = rounds_of(rounds, live.outrider, f"{slug}-off", 3, {"prefetch": "off"})
        hits = 1 - max(_bucket_shares(live.world, found)[1:])
        yield Row(f"{name} prefetch off", "bytes that hit, epochs 2 to 3", ">= 0.20", hits, hits >= 0.2)


def _slug(name: str) -> str:
    return name.replace(" ", "-")


def _bucket_shares(world: World, rounds: list[list[Epoch]]) -> list[float]:
    """The bytes that the bucket gave in each epoch, beside the data."""
    data = world.objects * world.object_bytes
    return [median(epoch.counts.body_bytes / data for epoch in its) for its in zip(*rounds, strict=True)]


def _busy(rounds: list[list[Epoch]]) -> float:
    """The part of the worst epoch in which the training loop did not wait."""
    epochs = zip(*rounds, strict=True)
    worst: float = min(median(1 - epoch.wait_s / epoch.took_s for epoch in its) for its in epochs)
    return worst


def of_simulator(only: str) -> Iterator[Row]:
    for row in ahead_simulated.rows():
        if only in f"simulated {row.world}":
            measured = row.worst()
            yield Row(f"simulated: {row.world}", row.figure, row.goal, measured, row.met(measured), row.why)


def rows(chosen: argparse.Namespace, directory: Path, progress: Callable[[str], None]) -> Iterator[Row]:
    if not chosen.short:
        yield from of_simulator(chosen.only)
    with Bucket() as bucket:
        shards, samples = (SHORT_SHARDS, SHORT_SAMPLES) if chosen.short else (SHARDS, SAMPLES)
        objects, images = (SHORT_CONNECTOR, SHORT_IMAGES) if chosen.short else (CONNECTOR, IMAGES)
        yield from of_shards(Live(shards, bucket, directory, progress), chosen.only, chosen.rounds)
        yield from of_samples(Live(samples, bucket, directory, progress), chosen.only, chosen.rounds)
        for name, world in ("connector", objects), ("connector images", images):
            live = Live(world, bucket, directory / _slug(name), progress, name=_slug(name))
            yield from of_connector(live, name, chosen.only, chosen.rounds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ahead", description=__doc__)
    parser.add_argument("--short", action="store_true", help="little data, only live rows: the figures mean nothing")
    parser.add_argument("--only", default="", metavar="WORDS", help="rows with these words in their names")
    parser.add_argument(
        "--rounds", type=int, default=1, help="of each live run; the median of each epoch counts; default: 1"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    parser.add_argument("--keep", action="store_true", help="keep data, logs, and traces of the proxy's metrics")
    chosen = parser.parse_args()
    if chosen.rounds < 1:
        parser.error(f"--rounds is {chosen.rounds}: must be 1 or more")
    command.end_on_signals()
    found: list[Row] = []
    try:
        with command.directory("outrider-ahead-", keep=chosen.keep) as directory:
            print(HEADING, flush=True)
            for row in rows(chosen, directory, command.report_progress):
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


if __name__ == "__main__":
    sys.exit(main())
