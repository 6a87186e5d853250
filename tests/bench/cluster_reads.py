"""Rows of `tests.bench.cluster`: jobs that read a dataset, and the bytes that the bucket's network carries for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.bench.cluster_goals import Measured
from tests.bench.cluster_world import (
    CONNECTION_BYTES_S,
    MIB,
    TOTAL_BYTES_S,
    TTFB_S,
    Data,
    EpochReport,
    Row,
    RowError,
    checked,
    run_epoch,
)
from tests.support.bucket import Bucket
from tests.support.namespaces import Switch, are_here
from tests.support.nodes import Nodes
from tests.support.simulator import SimulatorProcess

BLOCK = 2 * MIB
# One node holds so much of the data.
_HELD = 0.40
LINK_BYTES_S = 60e6
# A cold byte comes in at its owner, leaves there, and comes in at the edge: links carry almost two for each one read.
_PACE_BYTES_S = 25e6
# Weights of 2 GB in blocks of 8 MiB, scaled down: as many blocks, and links that eight nodes fill without all the CPU.
_WEIGHTS_BLOCK, _WEIGHTS_LINK_BYTES_S = MIB // 2, 7.5e6
_WEIGHTS_BLOCKS = 240


def every_node_reads_all(count: int, directory: Path, scale: float) -> list[Measured]:
    """Each node reads the whole of a cold dataset, in an order of its own."""
    data = Data(max(8, int(32 * scale)), 8 * MIB)
    with ExitStack() as stack:
        simulator, nodes = world(stack, directory, data, count)
        orders = [data.shuffled(1, rank) for rank in range(count)]
        report = checked(run_epoch(simulator, data, [node.endpoint for node in nodes.all], orders))
    return [_share("all", f"each of {count} nodes reads all", report, data, 1.005)]


def dealt_anew(directory: Path, scale: float) -> list[Measured]:
    """One job on four nodes. Its shards are dealt anew in each epoch."""
    count, data = 4, Data(max(8, int(64 * scale)), 8 * MIB)
    with ExitStack() as stack:
        simulator, nodes = world(stack, directory, data, count)
        endpoints = [node.endpoint for node in nodes.all]
        return [
            _share(
                "dealt", f"{count} nodes, dealt anew, epoch {epoch}",
                checked(run_epoch(simulator, data, endpoints, data.dealt(epoch, count))), data,
                1.005 if epoch == 1 else 0.0,
            )
            for epoch in (1, 2, 3)
        ]  # fmt: skip


def paced(directory: Path, scale: float) -> list[Measured]:
    """1, 2, 4 and 8 nodes, whose links have a limit, and whose readers take bytes at a pace. Each node brings as much
    data as each other. The bucket's link has none."""
    measured: list[Measured] = []
    for count in (1, 2, 4, 8):
        place = directory / str(count)
        place.mkdir()
        measured += _paced(count, place, Data(max(2, int(12 * scale)) * count, 8 * MIB))
    return measured


def _paced(count: int, directory: Path, data: Data) -> list[Measured]:
    with on_a_switch(directory, data, count, data.total_bytes, LINK_BYTES_S) as (simulator, nodes):
        return [
            _least_share(
                f"{count} nodes, {'cold' if epoch == 1 else 'warm'}",
                checked(
                    run_epoch(
                        simulator, data, [node.endpoint for node in nodes.all], data.dealt(epoch, count),
                        pace_bytes_s=_PACE_BYTES_S, inside=[node.inside for node in nodes.all],
                    )
                ),
            )
            for epoch in (1, 2)
        ]  # fmt: skip


def weights(directory: Path, scale: float) -> list[Measured]:
    """Eight nodes read the same bytes from the first one on, and begin together: one object, then a prefix of 16. The
    bucket has no limit; a node's link brings it each byte once, from the bucket or from the byte's owner."""
    blocks = max(16, int(_WEIGHTS_BLOCKS * scale) // 16 * 16)
    measured: list[Measured] = []
    for count in (1, 16):
        place = directory / str(count)
        place.mkdir()
        measured += _weights(8, place, Data(count, blocks // count * _WEIGHTS_BLOCK))
    return measured


def _weights(count: int, directory: Path, data: Data) -> list[Measured]:
    made = on_a_switch(directory, data, count, 2 * data.total_bytes, _WEIGHTS_LINK_BYTES_S, block_bytes=_WEIGHTS_BLOCK)
    with made as (simulator, nodes):
        report = checked(
            run_epoch(
                simulator, data, [node.endpoint for node in nodes.all], [data.keys] * count,
                inside=[node.inside for node in nodes.all],
            )
        )  # fmt: skip
    what = f"{count} nodes read the same {'object' if data.count == 1 else f'{data.count} objects'} at once"
    least_s = data.total_bytes / _WEIGHTS_LINK_BYTES_S
    return [
        _share("weights", what, report, data, 1.005),
        Measured(
            "weights", f"{what}: the slowest, x the time of its link", report.took_s / least_s, 1.15,
            detail=f"the fastest {min(rank.took_s for rank in report.ranks) / least_s:.2f}; of {least_s:.1f} s",
        ),
    ]  # fmt: skip


@contextmanager
def on_a_switch(
    directory: Path, data: Data, count: int, cache_bytes: int, link_bytes_s: float, *,
    total_bytes_s: float | None = None, together: bool = True, block_bytes: int = BLOCK, files: Path | None = None,
) -> Iterator[tuple[SimulatorProcess, Nodes]]:  # fmt: skip
    """Nodes on hosts of their own, each with a link, before a bucket that has the data; its own link has no limit.
    `cache_bytes`: of each node. `files`: see `Data.upload`. Raises RowError: there are no network namespaces here."""
    if not are_here():
        raise RowError("needs root, ip and tc")
    hosts = [f"node-{number}" for number in range(1, count + 1)]
    with Switch(["bucket", *hosts]) as switch, ExitStack() as stack:
        inside = partial(switch.inside, "bucket")
        with inside():
            bucket = stack.enter_context(Bucket())
            data.upload(bucket, files=files)
        simulator = stack.enter_context(
            SimulatorProcess(
                bucket.address, ttfb_s=TTFB_S, total_bytes_s=total_bytes_s, listen=switch.address("bucket"),
                inside=inside,
            )
        )  # fmt: skip
        nodes = stack.enter_context(
            Nodes(
                bucket, directory, count, origin=simulator.endpoint, together=together, switch=switch,
                block_size=str(block_bytes), cache_size=str(cache_bytes),
            )
        )  # fmt: skip
        for host in hosts:
            switch.limit(host, link_bytes_s)
        yield simulator, nodes


def _least_share(what: str, report: EpochReport) -> Measured:
    shares = [rank.read_bytes / rank.took_s / _PACE_BYTES_S for rank in report.ranks]
    detail = f"of {_PACE_BYTES_S / 1e6:.0f} MB/s a node, the least; the mean {sum(shares) / len(shares):.2f}"
    return Measured("paced", what, min(shares), 0.95, at_least=True, detail=detail)


def world(
    stack: ExitStack, directory: Path, data: Data, count: int, cache_bytes: int | None = None
) -> tuple[SimulatorProcess, Nodes]:  # fmt: skip
    """Nodes before a bucket with limits. `cache_bytes`: of each node; by default they can hold the data together."""
    bucket = stack.enter_context(Bucket())
    data.upload(bucket)
    simulator = stack.enter_context(
        SimulatorProcess(
            bucket.address, ttfb_s=TTFB_S, connection_bytes_s=CONNECTION_BYTES_S, total_bytes_s=TOTAL_BYTES_S
        )
    )
    size = str(int(_HELD * data.total_bytes) if cache_bytes is None else cache_bytes)
    return simulator, stack.enter_context(
        Nodes(
            bucket, directory, count, origin=simulator.endpoint, block_size=str(BLOCK), cache_size=size,
            prefetch="epoch",
        )
    )  # fmt: skip


def _share(row: str, what: str, report: EpochReport, data: Data, goal: float) -> Measured:
    detail = f"{data.total_bytes / 1e6:.0f} MB; epoch {report.took_s:.1f} s, {report.bucket_gets} GETs at the bucket"
    return Measured(
        row, f"{what}: bytes from the bucket / data", report.bucket_bytes / data.total_bytes, goal, detail=detail
    )


ROWS: dict[str, Row] = {
    "all-4": partial(every_node_reads_all, 4),
    "all-8": partial(every_node_reads_all, 8),
    "dealt": dealt_anew,
    "paced": paced,
    "weights": weights,
}
