"""The cluster's demo: one training job on four nodes, each node by itself and all four as one cache.

`python -m tests.bench.cluster_demo` (or `make cluster-demo`) needs only this repository: four `outrider serve`
processes on loopback addresses, and a real S3 server behind a simulated network. In the last epoch a node is killed
while the others read. Exits 1 when a read failed, or brought other bytes than were written.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.bench import command
from tests.bench.cluster_world import Data, EpochReport, run_epoch
from tests.bench.demo import Steps
from tests.support.bucket import Bucket
from tests.support.child import scratch_directory
from tests.support.nodes import Nodes
from tests.support.simulator import SimulatorProcess

NODES = 4
EPOCHS = 3
TTFB_S = 0.030
CONNECTION_BYTES_S = 40e6
TOTAL_BYTES_S = 120e6
# The accelerators of one node take so much. All four nodes together take more than the bucket gives.
PACE_BYTES_S = 40e6


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Row:
    """One epoch of all nodes. `bucket_share`: bytes from the bucket, as a multiple of the data."""

    run: str
    epoch: str
    bucket_share: float
    bucket_gets: int
    wait_s: float
    pause_s: float
    took_s: float
    errors: list[str]


def run(directory: Path, data: Data, bucket: Bucket, console: Console) -> list[Row]:
    """Both runs. The job deals its shards anew over the nodes in each epoch."""
    rows: list[Row] = []
    with Steps(console) as progress:
        task = progress.begin("writing objects to the bucket", total=data.count)
        data.upload(bucket, lambda done: progress.update(task, completed=done))
        for together in (False, True):
            name = "one cache" if together else "each by itself"
            task = progress.begin(name, total=EPOCHS + together)
            rows += _job(name, directory, data, bucket, together, lambda task=task: progress.advance(task))  # type: ignore[misc]
    return rows


def _job(
    name: str, directory: Path, data: Data, bucket: Bucket, together: bool, one_more: Callable[[], object]
) -> list[Row]:  # fmt: skip
    place = directory / name.replace(" ", "-")
    place.mkdir()
    # One node holds 40 % of the data; all four together hold all of it, and some of it twice.
    size = str(int(0.40 * data.total_bytes))
    rows = []
    with (
        SimulatorProcess(
            bucket.address, ttfb_s=TTFB_S, connection_bytes_s=CONNECTION_BYTES_S, total_bytes_s=TOTAL_BYTES_S
        ) as simulator,
        Nodes(
            bucket, place, NODES, origin=simulator.endpoint, together=together, cache_size=size, block_size="4MiB",
            prefetch="epoch",
        ) as nodes,
    ):  # fmt: skip
        endpoints = [node.endpoint for node in nodes.all]
        for epoch in range(1, EPOCHS + 1):
            orders = data.dealt(epoch, NODES)
            report = run_epoch(simulator, data, endpoints, orders, pace_bytes_s=PACE_BYTES_S)
            rows.append(_row(name, str(epoch), report, data))
            one_more()
        if together:
            victim = nodes[NODES - 1]
            report = run_epoch(
                simulator, data, endpoints[:-1], data.dealt(EPOCHS + 1, NODES - 1), pace_bytes_s=PACE_BYTES_S,
                at_half=lambda: victim.send(signal.SIGKILL),
            )  # fmt: skip
            rows.append(_row(name, f"{EPOCHS + 1}, a node killed", report, data))
            one_more()
    return rows


def _row(name: str, epoch: str, report: EpochReport, data: Data) -> Row:
    return Row(
        name, epoch, report.bucket_bytes / data.total_bytes, report.bucket_gets, report.wait_s, report.pause_s,
        report.took_s, report.errors,
    )  # fmt: skip


def table(rows: list[Row], data: Data) -> Table:
    drawn = Table(title=f"one job on {NODES} nodes, {data.count} shards of {data.size_bytes / 1e6:.0f} MB")
    drawn.add_column("caches", no_wrap=True)
    drawn.add_column("epoch", no_wrap=True)
    for heading in ("from bucket, x data", "GETs at bucket", "data wait, s", "longest pause, s", "epoch, s"):
        drawn.add_column(heading, justify="right")
    for row in rows:
        drawn.add_row(
            row.run, row.epoch, f"{row.bucket_share:.2f}", str(row.bucket_gets), f"{row.wait_s:.1f}",
            f"{row.pause_s:.2f}", f"{row.took_s:.1f}",
        )  # fmt: skip
    return drawn


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cluster_demo", description=__doc__)
    parser.add_argument("--shards", type=int, default=48, help="how many shards (%(default)s)")
    parser.add_argument("--shard-mib", type=int, default=8, help="the size of a shard (%(default)s MiB)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    chosen = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    command.end_on_signals()
    console.print("starting an S3 server")
    data = Data(chosen.shards, chosen.shard_mib * 2**20)
    try:
        with scratch_directory("outrider-cluster-demo-") as directory, Bucket() as bucket:
            rows = run(directory, data, bucket, console)
        console.print(table(rows, data))
        if chosen.json:
            chosen.json.write_text(json.dumps([_as_dict(row) for row in rows], indent=2) + "\n")
        if failed := [error for row in rows for error in row.errors]:
            raise DemoError("\n".join(failed[:10]))
    except (DemoError, RuntimeError) as error:
        console.print(f"[bold red]The demo failed:[/] {escape(str(error))}", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    console.print("Every byte that was read was the one that was written, and no read failed.")
    return 0


def _as_dict(row: Row) -> dict[str, object]:
    return {name: getattr(row, name) for name in Row.__slots__}


if __name__ == "__main__":
    sys.exit(main())
