"""`make demo DEMO=--real`: really trains (examples/train_resnet.py), from the bucket, through Outrider, and from disk.

The losses of all steps must be the same, bit for bit: the cache gives the same bytes in the same order.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from tests.support.child import Child, clean_environment
from tests.support.simulator import REPOSITORY, SimulatorProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bucket import Bucket

EXAMPLE = REPOSITORY / "examples" / "train_resnet.py"
BUCKET = "real"
EPOCHS = 2
DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class Trained:
    """One epoch. `losses` of its steps are exact (hexadecimal). `time_s` of the first one has the start of torch."""

    run: str
    epoch: int
    time_s: float
    losses: list[str]
    bucket_gets: int
    bucket_bytes: int

    @property
    def loss(self) -> float:
        return sum(map(float.fromhex, self.losses)) / len(self.losses)


class Training:
    """Owns the shards, in `directory` and in the bucket."""

    def __init__(self, directory: Path, bucket: Bucket, shards: int) -> None:
        self._directory, self._bucket = directory, bucket
        self._template = f"train-{{000000..{shards - 1:06}}}.tar"
        made = directory / "images"
        subprocess.run([sys.executable, str(EXAMPLE), "--make", str(made), "--count", str(shards)], check=True)
        bucket.make_bucket(BUCKET)
        client = bucket.client()
        for shard in made.iterdir():
            client.upload_file(str(shard), BUCKET, shard.name)
        client.close()

    def run(self, name: str, endpoint: str | None, simulator: SimulatorProcess) -> list[Trained]:
        """Train; from local disk where there is no endpoint. Raises RuntimeError: it failed or took too long."""
        report = self._directory / f"{name}.jsonl"
        place = f"{self._directory}/images" if endpoint is None else f"s3://{BUCKET}"
        argv = [sys.executable, str(EXAMPLE), "--shards", f"{place}/{self._template}"]
        argv += ["--epochs", str(EPOCHS), "--report", str(report)]
        environ = clean_environment() | self._bucket.environment()
        if endpoint is not None:
            environ["AWS_ENDPOINT_URL"] = endpoint
        simulator.reset()
        found: list[Trained] = []
        child = Child(argv, log=self._directory / f"{name}.log", env=environ, cwd=self._directory)
        try:
            for epoch in range(1, EPOCHS + 1):
                began = time.perf_counter()
                is_reported = functools.partial(_is_reported, report, epoch, child)
                child.wait_until(is_reported, what=name, deadline_s=DEADLINE_S)
                if _lines(report) < epoch:
                    raise RuntimeError(f"the training {name} failed:\n{child.log_tail()}")
                counts = simulator.reset()
                losses = json.loads(report.read_text().splitlines()[epoch - 1])
                time_s = time.perf_counter() - began
                found.append(Trained(name, epoch, time_s, losses, counts.gets, counts.body_bytes))
        finally:
            child.stop()
        return found


def _is_reported(report: Path, epoch: int, child: Child) -> bool:
    """Whether the report has the epoch, or will never have it."""
    return _lines(report) >= epoch or not child.running


def _lines(report: Path) -> int:
    return report.read_text().count("\n") if report.exists() else 0


def same(rows: list[Trained]) -> bool:
    """Whether each epoch had the same losses in all runs."""
    return all(len({tuple(row.losses) for row in rows if row.epoch == epoch}) == 1 for epoch in range(1, EPOCHS + 1))


def table(rows: list[Trained]) -> Table:
    drawn = Table(title="a small ResNet, trained")
    drawn.add_column("run", no_wrap=True)
    for heading in ("epoch", "time, s", "mean loss", "GETs at bucket", "MB from bucket"):
        drawn.add_column(heading, justify="right")
    for row in rows:
        drawn.add_row(
            row.run, str(row.epoch), f"{row.time_s:.1f}", f"{row.loss:.4f}", str(row.bucket_gets),
            f"{row.bucket_bytes / 1e6:.1f}",
        )  # fmt: skip
    return drawn
