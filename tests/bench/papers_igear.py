"""iGear's job: images as files, read by a DataLoader with eight workers for one, four and eight GPUs.

iGear is work on top of JuiceFS: two levels of cache (the kernel's pages and the local disk) and a warm-up in place of
reads from the bucket, or from a FUSE mount of it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean

from tests.bench.papers_table import Cells, Figure, Line, Table
from tests.bench.targets import Direct, JuiceFSMount, Outrider, OutriderMount, RcloneMount, Target
from tests.bench.world import CONNECTION_BYTES_S, NAME, SHORT, TOTAL_BYTES_S, TTFB_S, World, make_bucket
from tests.support.child import Child, clean_environment
from tests.support.simulator import REPOSITORY, SimulatorProcess

_BATCH, _WORKERS = 128, 8
_BATCHES = 24
# A worker's first batch counts for no rate, so there are more of them.
_BATCHES_MIN = 2 * _WORKERS
# This machine's two cores can feed eight of them.
_GPU_IMAGES_S = 200.0
_IMAGE_BYTES = 110_000
_GPUS = (1, 4, 8)
_DEADLINE_S = 280.0

DIRECT, FUSE, JUICEFS = "no cache, GETs from the bucket", "a FUSE mount of the bucket (rclone)", "JuiceFS mount"
OURS, MOUNT = "Outrider, by S3", "Outrider, by `outrider mount`"


def _named(gpus: int) -> str:
    return f"{gpus} GPU{'s' if gpus > 1 else ''}"


# The gains that iGear's authors give; and the speed of a whole training of ResNet50: it took 1,381 min without a cache,
# 1,448 min from a FUSE mount, and 565 min.
_GAINS = dict(zip(_GPUS, (0.223, 2.18, 2.30), strict=True))
PAPER: dict[str, Cells] = {
    DIRECT: {"training": Figure(ratio=1.0)},
    FUSE: {"training": Figure(ratio=1381 / 1448)},
    "iGear": {
        **{_named(gpus): Figure(ratio=1 + gain) for gpus, gain in _GAINS.items()},
        "training": Figure(ratio=1381 / 565),
    },
}
_COLD = "8 GPUs, cold"


class _Far(Direct):
    """The bucket through its simulated network."""

    name, far = DIRECT, True


class _RcloneMount(RcloneMount):
    name = FUSE


class _JuiceFSMount(JuiceFSMount):
    name = JUICEFS


class _Ours(Outrider):
    name = OURS


class _OurMount(OutriderMount):
    name = MOUNT


def table(directory: Path, scale: float, progress: Callable[[str], None]) -> Table:
    """A way that is missing here, or fails, is left out with a note."""
    batches = max(_BATCHES_MIN, round(_BATCHES * scale))
    plan = replace(
        SHORT, smalls=batches * _BATCH, small_bytes=_IMAGE_BYTES, big_bytes=0, shards=0, firsts=0
    )  # fmt: skip
    here: dict[str, Cells] = {}
    notes = [
        f"{plan.smalls:,} images of {_IMAGE_BYTES / 1e3:.0f} kB, batch {_BATCH}, {_WORKERS} workers, "
        f"{_GPU_IMAGES_S:.0f} images a GPU and second; a bucket of {1e3 * TTFB_S:.0f} ms, "
        f"{CONNECTION_BYTES_S / 1e6:.0f} MB/s a connection, {TOTAL_BYTES_S / 1e6:.0f} MB/s in all",
    ]
    with make_bucket() as bucket, SimulatorProcess(bucket.address) as simulator:
        world = World(plan, directory, bucket, simulator)
        progress(f"writing {plan.smalls} images")
        bucket.make_bucket(NAME)
        world.upload(bucket.endpoint)
        crcs = {key: zlib.crc32(world.body(key)) for key in world.smalls}
        for kind in (_Far, _RcloneMount, _JuiceFSMount, _Ours, _OurMount):
            try:
                if absent := kind.lacks():
                    raise RuntimeError(absent)
                here[kind.name] = _measured(kind(world), crcs, progress)
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                notes.append(f"{kind.name}: left out, {error}")
    return compared(here, notes)


def compared(here: dict[str, Cells], notes: list[str]) -> Table:
    """`here`: images a second of each way, by the column."""
    lines = [Line(way, PAPER.get(way, {}), here.get(way, {})) for way in dict.fromkeys([*PAPER, *here])]
    return Table("igear", "iGear: images as files", "images/s", "{:.0f}", "change", lines, notes)


def _measured(target: Target, crcs: dict[str, int], progress: Callable[[str], None]) -> Cells:
    """A way without a cache reads fewer images: all its epochs are as slow as the first."""
    cached = not isinstance(target, _Far | _RcloneMount)
    world = target.world
    world.calm()
    target.start()
    try:
        target.populate()
        world.far_away()
        # The first epoch is cold; the one after it, too short to be the only one of its kind.
        gpus = [8, 8, 8, 4, 1] if cached else [8, 8, 4, 1]
        rates = _job(target, crcs, gpus, len(crcs) // _BATCH if cached else _BATCHES_MIN)
    finally:
        target.stop()
        world.calm()
    progress(f"{target.name}: {', '.join(f'{rate:.0f}' for rate in rates)} images/s")
    of: dict[str, list[float]] = {_named(count): [] for count in _GPUS}
    for count, rate in zip(gpus[1:], rates[1:], strict=True):
        of[_named(count)].append(rate)
    return {**{name: Figure(mean(its)) for name, its in of.items()}, _COLD: Figure(rates[0])}


def _job(target: Target, crcs: dict[str, int], gpus: list[int], batches: int) -> list[float]:
    """Images a second of each epoch. Raises RuntimeError: it failed, or took too long."""
    images, report = target.directory / "images", target.directory / "report.jsonl"
    images.write_text("".join(f"{target.url(key)} {crc}\n" for key, crc in crcs.items()))
    report.touch()
    flags = {
        "images": images, "report": report, "batch": _BATCH, "batches": batches, "workers": _WORKERS,
        "gpu-images-s": _GPU_IMAGES_S,
    }  # fmt: skip
    argv = [sys.executable, "-m", "tests.bench.papers_job", "--gpus", *map(str, gpus)]
    for name, value in flags.items():
        argv += [f"--{name}", str(value)]
    child = Child(argv, log=target.directory / "job.log", env=clean_environment(), cwd=REPOSITORY)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(_DEADLINE_S)
        lines = report.read_text().splitlines()
        if len(lines) < len(gpus):
            raise RuntimeError(f"the job failed, or took too long: {child.log_tail()[-600:]}")
    finally:
        child.stop()
    return [json.loads(line)["images_s"] for line in lines]
