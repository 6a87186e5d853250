"""Rows of `tests.bench.cluster`: more nodes and GPUs than a machine has, by `outrider simulate --nodes`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench.cluster_goals import Measured
from tests.bench.cluster_world import Row
from tests.support.simulator import REPOSITORY

# ResNet50 on 16 nodes of 8 GPUs: each takes 1,100 images of 110 kB a second, 15.5 GB/s in all.
_PLACE = ("--nodes", "16", "--gpus-per-node", "8", "--link", "25Gbit")
_BUCKET = "10GB/s"
_IMAGES, IMAGE_BYTES = "1100", 110_000
SHARD_BYTES = 64 * 2**20
# All caches together hold the data, and some of the owners have more than others.
_CACHE = "120%"
_MINUTE_S = 60.0


def simulated(directory: Path, scale: float) -> list[Measured]:
    """128 GPUs before a bucket that gives two thirds of what they take. The images are in shards, or are objects of
    their own, as in the work that the speed is compared with."""
    shards, images = max(512, int(2048 * scale)), max(1024, int(20480 * scale))
    in_shards, took_s = simulate(shards, SHARD_BYTES, epochs=3)
    alone, alone_s = simulate(images, IMAGE_BYTES, epochs=2)
    return [
        *_last(f"16 x 8 GPUs, {shards} shards of {SHARD_BYTES / 1e6:.0f} MB", in_shards),
        *_last(f"16 x 8 GPUs, {images} images, an object each", alone),
        Measured(
            "simulated", f"seconds to simulate {shards * SHARD_BYTES / 1e9:.0f} GB, three epochs", took_s, _MINUTE_S,
            unit="s", detail=f"the images in {alone_s:.0f} s",
        ),
    ]  # fmt: skip


def simulate(
    count: int, size_bytes: int, *, epochs: int, bucket: str = _BUCKET
) -> tuple[list[dict[str, Any]], float]:  # fmt: skip
    """The rows of the simulation, and the seconds that it took. `bucket`: its bandwidth, as on the command line."""
    argv = [
        sys.executable, "-m", "outrider", "simulate", *_PLACE, "--bucket", bucket, "--images", _IMAGES,
        "--image-size", str(IMAGE_BYTES),
        "--shards", str(count), "--size", str(size_bytes), "--order", "fresh", "--cache", _CACHE,
        "--epochs", str(epochs), "--json",
    ]  # fmt: skip
    began = time.perf_counter()
    printed = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    rows: list[dict[str, Any]] = json.loads(printed)
    return rows, time.perf_counter() - began


def _last(what: str, rows: list[dict[str, Any]]) -> list[Measured]:
    """The last epoch."""
    of = {row["way"]: row for row in rows if row["epoch"] == max(row["epoch"] for row in rows)}
    together, direct = of["cluster"], of["direct"]
    return [
        Measured(
            "simulated", f"{what}: GPU utilisation", 100 * together["gpu"], 97.0, unit="%", at_least=True,
            detail=f"by itself {of['by itself']['gpu']:.1%}, direct {direct['gpu']:.1%}; bytes between nodes "
            f"{together['peers']:.2f} x data",
        ),
        Measured(
            "simulated", f"{what}: speed, x direct", together["speed"], 5.0, at_least=True,
            detail=f"no epoch can be more than {1 / direct['gpu']:.2f} x as fast as direct's, where GPUs never wait",
        ),
    ]  # fmt: skip


ROWS: dict[str, Row] = {"simulated": simulated}
