"""DELI's two jobs, at a tenth of their size if not asked otherwise: the data wait of an epoch, beside that which the
paper's authors measured.

Source: Krichevsky et al., arXiv 2108.06322; the authors' measurements are CSV files in github.com/cake-lab/DELI. Each
of their figures is the mean of all nodes, epochs and trials of a configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import mean

from tests.bench.ahead import LRU, SAMPLES, UNKNOWN_SEEDS
from tests.bench.ahead_live import Epoch, Live, World
from tests.bench.papers_table import Cells, Figure, Line, Table
from tests.support.bucket import Bucket

# A tenth of the samples of a node, of the batch of 512 and of the cache of 3,072 samples. The latency is not scaled:
# 14,000 blocking GETs took 772 s. The accelerator's time for a sample is the epoch's run time, less its data wait, of
# the authors' runs from the bucket: 18 s for 14,000 samples, and 153 s for 11,667.
JOBS = {
    "MNIST": replace(SAMPLES, objects=1400, batch=51, step_us=1300.0, cache=3072 / 14_000),
    "ResNet": replace(
        SAMPLES, objects=1167, object_bytes=3072, sample_bytes=3072, batch=51, step_us=13_100.0, cache=3072 / 11_667
    ),
}
# The paper's batch: more samples than its authors had are no reason for a larger one.
_BATCH_MAX = 512
_LEAST_OBJECTS = 60
_EPOCHS = 2

DIRECT, DISK, CACHE = "straight from the bucket", "local disk", "a cache of a quarter, no prefetch"
UNMODIFIED, SEEDED = "Outrider, the job unmodified", "Outrider, unmodified, a sampler with a seed"
ANNOUNCED = "Outrider, `AnnouncingSampler`"
# Seconds, and for the paper's headline its own ratios.
PAPER: dict[str, Cells] = {
    DIRECT: {"MNIST": Figure(772), "ResNet": Figure(641)},
    DISK: {"MNIST": Figure(100), "ResNet": Figure(158)},
    CACHE: {"MNIST": Figure(810), "ResNet": Figure(708)},
    "DELI, fetch 1024, cache 1024": {"MNIST": Figure(160), "ResNet": Figure(132)},
    "DELI, fetch 1536 at half, cache 3072": {"MNIST": Figure(111, 1 - 0.856), "ResNet": Figure(42, 1 - 0.935)},
}


def table(directory: Path, scale: float, progress: Callable[[str], None]) -> Table:
    """Runs that wait for a GET at most of their samples take hardly any CPU, so they run beside the others. The others
    run one after another, those that take most CPU last: only the longest of the former is not done by then."""
    with Bucket() as bucket, ThreadPoolExecutor(3 * len(JOBS) + 1) as pool:
        lives = {}
        for name, world in JOBS.items():
            (directory / name).mkdir()
            lives[name] = Live(_scaled(world, scale), bucket, directory / name, progress, name=name.lower())
            lives[name].make()
        runs = [
            (name, pool.submit(each, live)) for name, live in lives.items() for each in (_direct, _lru, _unmodified)
        ]
        ahead = pool.submit(lambda: [(name, _ahead(lives[name])) for name in ("ResNet", "MNIST")])
        here: dict[str, Cells] = {way: {} for way in (DIRECT, DISK, CACHE, UNMODIFIED, SEEDED, ANNOUNCED)}
        for name, ways in [*((name, run.result()) for name, run in runs), *ahead.result()]:
            for way, epochs in ways.items():
                here[way][name] = Figure(mean(epoch.wait_s for epoch in epochs))
    return compared(here, [_note_of(name, live.world) for name, live in lives.items()])


def compared(here: dict[str, Cells], notes: list[str]) -> Table:
    """`here`: the data wait of each way and job, in seconds."""
    lines = [Line(way, PAPER.get(way, {}), here.get(way, {})) for way in dict.fromkeys([*PAPER, *here])]
    return Table("deli", "DELI: data wait of an epoch", "data wait", "{:.3g} s", "change", lines, notes)


def _direct(live: Live) -> dict[str, list[Epoch]]:
    return {DIRECT: live.direct("direct", 1)}


def _lru(live: Live) -> dict[str, list[Epoch]]:
    return {CACHE: live.outrider("lru", _EPOCHS, LRU)}


def _unmodified(live: Live) -> dict[str, list[Epoch]]:
    return {UNMODIFIED: live.outrider("unmodified", _EPOCHS, {}, seed=UNKNOWN_SEEDS[0])}


def _ahead(live: Live) -> dict[str, list[Epoch]]:
    return {
        DISK: live.local("local", _EPOCHS),
        SEEDED: live.outrider("seeded", _EPOCHS, {}),
        ANNOUNCED: live.outrider("announced", _EPOCHS, {}, announce=True),
    }


def _scaled(world: World, scale: float) -> World:
    objects = max(_LEAST_OBJECTS, round(world.objects * scale))
    batch = min(_BATCH_MAX, max(1, round(world.batch * objects / world.objects)))
    return replace(world, objects=objects, batch=batch)


def _note_of(name: str, world: World) -> str:
    return (
        f"{name}: {world.objects:,} samples of {world.sample_bytes:,} bytes, batch {world.batch}, a cache of "
        f"{world.cache:.0%}, {1e3 * world.ttfb_s:.0f} ms a GET, {world.step_us / 1e3:.1f} ms of accelerator a sample"
    )
