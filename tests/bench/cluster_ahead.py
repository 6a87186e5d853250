"""Rows of `tests.bench.cluster`: nodes that fetch ahead together, and what their jobs wait for.

A job's excess wait is the time for which its accelerators had nothing to do, less that of the same job over files, as
a part of the excess wait of the same job straight from the bucket. The loader of each rank reads 2 MiB ahead, in all
three: a `DataLoader` with workers has some batches ready, two of each worker by default, and `outrider simulate
--nodes` has two blocks.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from tests.bench.cluster_goals import Measured
from tests.bench.cluster_reads import BLOCK, LINK_BYTES_S, on_a_switch, world
from tests.bench.cluster_world import (
    BUCKET,
    MIB,
    TTFB_S,
    Data,
    Direct,
    EpochReport,
    Inside,
    Place,
    Row,
    RowError,
    checked,
    run_epoch,
)
from tests.support.bucket import Bucket
from tests.support.nodes import Node, Nodes
from tests.support.simulator import SimulatorProcess

_NODES = 4
_EPOCHS = (1, 2, 3)
# The bucket gives 1.3 times what the job reads, and one connection less than a rank takes.
_BANDWIDTH = 1.3
_PACE_BYTES_S = 20e6
_CONNECTION_SHARE = 0.6
# A loader has read so much ahead of its accelerator: two blocks, as in `outrider simulate --nodes`.
_BUFFER_BYTES = 2 * MIB
_QUARTER = 0.25
_WITH_ROOM = 1.5
_QUARTER_BLOCK = MIB
# All data once, one copy more of what each node reads, and some of the owners have more than others.
_TWICE = 2.2
# Room for six tenths more than a node owns, of which it reads another copy.
_TIGHT = 1.6
_EIGHT = 8
_EIGHT_BUCKET_BYTES_S = 120e6
# Slow enough that four nodes at once leave this machine some CPU.
_WARM_LINK_BYTES_S = 30e6
# So that there are 512 blocks: few are dealt to their owners less evenly, and the fullest owner, which ends last, would
# have 0.31 of 64 blocks of the default 8 MiB. Requests for many more keep this machine's two cores busy.
_WARM_BLOCK = MIB
_WARM_POLL_S = 0.02
_WARM_DEADLINE_S = 300.0

Deal = Callable[[int], list[list[str]]]
"""The shards of each rank in an epoch."""


@dataclass(frozen=True, slots=True)
class _Beside:
    """The same ranks over files, and straight from the bucket."""

    disk: EpochReport
    direct: EpochReport

    def excess(self, report: EpochReport) -> float:
        least_s = self.disk.idle_s
        return (report.idle_s - least_s) / (self.direct.idle_s - least_s)


def fresh(directory: Path, scale: float) -> list[Measured]:
    """Four nodes hold a quarter of the data together. Its shards are dealt anew in each epoch, in an order that nobody
    can know."""
    data = _quarter_data(scale)
    with ExitStack() as stack:
        bucket, simulator = _quarter_bucket(stack, data)
        deal: Deal = lambda epoch: data.dealt(epoch, _NODES)  # noqa: E731
        reports, _ = _job(stack, directory, bucket, simulator, data, deal)
    return _from_bucket("fresh", "a new order each epoch", reports, data, 0.80)


def quarter(directory: Path, scale: float) -> list[Measured]:
    """The same, by readers that are as fast as they can be: there is no time to fetch ahead, so that it is eviction
    alone that keeps what the epoch has not read yet."""
    data = Data(max(8, int(64 * scale)), 8 * MIB)
    reports, alone = (_at_full_speed(directory / f"{count}", data, count) for count in (_NODES, 1))
    shares = [report.bucket_bytes / data.total_bytes for report in alone]
    return [
        Measured("quarter", "readers at full speed, epoch 1: bytes from the bucket / data",
                 reports[0].bucket_bytes / data.total_bytes, 1.03,
                 detail=f"of one node, epochs 1 to 3: {_all(shares)}"),
        *_from_bucket("quarter", "a new order each epoch, readers at full speed", reports, data, 0.82),
    ]  # fmt: skip


def _at_full_speed(directory: Path, data: Data, count: int) -> list[EpochReport]:
    """Epochs of four ranks over so many nodes, which hold a quarter of the data together."""
    directory.mkdir()
    with ExitStack() as stack:
        simulator, nodes = world(stack, directory, data, count, data.cache_bytes(_QUARTER, count, BLOCK))
        places = [node.endpoint for node in nodes.all] * (_NODES // count)
        return [checked(run_epoch(simulator, data, places, data.dealt(epoch, _NODES))) for epoch in _EPOCHS]


def known(row: str, directory: Path, scale: float) -> list[Measured]:
    """The same, where the order is the same in each epoch, or each rank announces its own as the epoch begins."""
    data, is_announced = _quarter_data(scale), row == "announced"
    with ExitStack() as stack:
        bucket, simulator = _quarter_bucket(stack, data, directory / "files")
        beside = _beside(bucket, simulator, data, directory / "files", _NODES, _PACE_BYTES_S)
        deal: Deal = lambda epoch: data.dealt(epoch if is_announced else 1, _NODES)  # noqa: E731
        reports, served = _job(stack, directory, bucket, simulator, data, deal, is_announced=is_announced)
    order = "order announced" if is_announced else "order repeated"
    excess = [beside.excess(report) for report in reports]
    return [
        *_from_bucket(row, order, reports, data, 0.78),
        Measured(
            row, "excess wait, the worse of epochs 2 and 3 / direct's", max(excess[1:]), 0.03,
            detail=f"epochs 1 to 3: {_all(excess)}; direct waits {beside.direct.idle_s:.1f} s, disk "
            f"{beside.disk.idle_s:.2f} s, epoch 3 {reports[-1].idle_s:.2f} s, of {_NODES} x {reports[-1].took_s:.1f} s",
        ),
        _share_here(row, served),
    ]  # fmt: skip


def near(directory: Path, scale: float) -> list[Measured]:
    """Each rank announces its order as the epoch begins. There is room for all data, and for half of it again."""
    data = Data(max(16, int(64 * scale)), 8 * MIB)
    with ExitStack() as stack:
        bucket, simulator = _quarter_bucket(stack, data)
        deal: Deal = lambda epoch: data.dealt(epoch, _NODES)  # noqa: E731
        _, served = _job(stack, directory, bucket, simulator, data, deal, held=_WITH_ROOM, is_announced=True)
    return [_share_here("near", served)]


def static(row: str, held: float, most: float, directory: Path, scale: float) -> list[Measured]:
    """Each node reads the same quarter in each epoch. There is room for `held` times the data in all; from the second
    epoch on, `most` times the data may go between nodes."""
    data = Data(max(8, int(64 * scale)), 8 * MIB)
    with ExitStack() as stack:
        simulator, nodes = world(stack, directory, data, _NODES, data.cache_bytes(held, _NODES, BLOCK))
        places = [node.endpoint for node in nodes.all]
        reports, between = [], []
        for _ in _EPOCHS:
            before = _counted(nodes, "outrider_peer_bytes", "direction")["in"]
            reports.append(checked(run_epoch(simulator, data, places, data.dealt(1, _NODES))))
            between.append(_counted(nodes, "outrider_peer_bytes", "direction")["in"] - before)
    shares = [count / data.total_bytes for count in between]
    return [
        Measured(
            row, f"each node its own part, room for {held} x, epoch 3: bytes from the bucket / data",
            reports[-1].bucket_bytes / data.total_bytes, 0.0,
            detail=f"epochs 1 to 3: {_all(report.bucket_bytes / data.total_bytes for report in reports)}",
        ),
        Measured(
            row, "epochs 2 and 3: bytes between nodes / data", max(shares[1:]), most,
            detail=f"epochs 1 to 3: {_all(shares)}",
        ),
    ]  # fmt: skip


def eight(directory: Path, scale: float) -> list[Measured]:
    """Eight nodes hold the data together. Their links and the bucket have limits, and the job takes bytes at a pace."""
    data = Data(max(8, int(96 * scale)), 8 * MIB)
    pace = _EIGHT_BUCKET_BYTES_S / _BANDWIDTH / _EIGHT
    size = data.cache_bytes(1.5, _EIGHT, BLOCK)
    files = directory / "files"
    with on_a_switch(directory, data, _EIGHT, size, LINK_BYTES_S, total_bytes_s=_EIGHT_BUCKET_BYTES_S, files=files) as (
        simulator,
        nodes,
    ):
        inside = [node.inside for node in nodes.all]
        disk = _epoch(simulator, data, [files] * _EIGHT, data.dealt(1, _EIGHT), pace)
        reports = [
            _epoch(
                simulator, data, [node.endpoint for node in nodes.all], data.dealt(epoch, _EIGHT), pace, inside
            )
            for epoch in _EPOCHS
        ]  # fmt: skip
    return [
        Measured(
            "eight", f"8 nodes, epoch {epoch}: data wait beyond that of the local disk",
            100 * (report.idle_share - disk.idle_share), 3.0, unit="points",
            detail=f"{report.idle_share:.1%} of the time, disk {disk.idle_share:.1%}; {_of(report, data)}",
        )
        for epoch, report in zip(_EPOCHS, reports, strict=True)
    ]  # fmt: skip


def warm(directory: Path, scale: float) -> list[Measured]:
    """A warm-up of four nodes, beside that of one node by itself. Each has a link of its own to a bucket that has no
    limit."""
    took = {}
    for count in (1, _NODES):
        place = directory / str(count)
        place.mkdir()
        data = Data(max(8, int(64 * scale)), 8 * MIB)
        size = data.cache_bytes(2.0, count, _WARM_BLOCK)
        with on_a_switch(
            place, data, count, size, _WARM_LINK_BYTES_S, together=count > 1, block_bytes=_WARM_BLOCK
        ) as (_, nodes):  # fmt: skip
            took[count] = _warmed_s(nodes[0], data)
            fullest = 1.0 if count == 1 else _fullest(nodes[0], data)
    return [
        Measured(
            "warm", f"warm-up of {_NODES} nodes: time, x that of one", took[_NODES] / took[1], 0.30,
            detail=f"{took[_NODES]:.1f} s and {took[1]:.1f} s; {data.total_bytes / 1e6:.0f} MB, links of "
            f"{_WARM_LINK_BYTES_S / 1e6:.0f} MB/s; the fullest owner has {fullest:.3f} of it",
        )
    ]  # fmt: skip


def _quarter_data(scale: float) -> Data:
    return Data(max(16, int(96 * scale)), 8 * MIB)


def _quarter_bucket(
    stack: ExitStack, data: Data, files: Path | None = None
) -> tuple[Bucket, SimulatorProcess]:  # fmt: skip
    bucket = stack.enter_context(Bucket())
    data.upload(bucket, files=files)
    simulator = SimulatorProcess(
        bucket.address, ttfb_s=TTFB_S, connection_bytes_s=_CONNECTION_SHARE * _PACE_BYTES_S,
        total_bytes_s=_BANDWIDTH * _NODES * _PACE_BYTES_S,
    )  # fmt: skip
    return bucket, stack.enter_context(simulator)


def _job(
    stack: ExitStack, directory: Path, bucket: Bucket, simulator: SimulatorProcess, data: Data, deal: Deal, *,
    held: float = _QUARTER, is_announced: bool = False,
) -> tuple[list[EpochReport], list[Counter[str]]]:  # fmt: skip
    """The job's epochs, and the bytes that its clients got in each, by their source. `held`: the part of the data that
    all nodes hold together."""
    size = data.cache_bytes(held, _NODES, _QUARTER_BLOCK)
    nodes = stack.enter_context(
        Nodes(
            bucket, directory, _NODES, origin=simulator.endpoint, block_size=str(_QUARTER_BLOCK),
            cache_size=str(size), prefetch="epoch",
        )
    )  # fmt: skip
    reports, served = [], []
    for epoch in _EPOCHS:
        orders = deal(epoch)
        before = _counted(nodes, "outrider_served_bytes", "source")
        if is_announced:
            for rank, (node, order) in enumerate(zip(nodes.all, orders, strict=True)):
                _put(node, f"plan/rank-{rank}", json.dumps({"reads": [f"s3://{BUCKET}/{key}" for key in order]}))
        places = [node.endpoint for node in nodes.all]
        reports.append(_epoch(simulator, data, places, orders, _PACE_BYTES_S))
        served.append(_counted(nodes, "outrider_served_bytes", "source") - before)
    return reports, served


def _from_bucket(row: str, order: str, reports: list[EpochReport], data: Data, goal: float) -> list[Measured]:
    """Epochs 2 and 3: what nobody can know in the first one is no goal."""
    shares = [report.bucket_bytes / data.total_bytes for report in reports]
    return [
        Measured(
            row, f"{_QUARTER:.0%} held, {order}, epoch {epoch}: bytes from the bucket / data", shares[epoch - 1], goal,
            detail=f"epoch 1 {shares[0]:.3f}; {_of(reports[epoch - 1], data)}",
        )
        for epoch in _EPOCHS[1:]
    ]  # fmt: skip


def _beside(
    bucket: Bucket, simulator: SimulatorProcess, data: Data, files: Path, ranks: int, pace_bytes_s: float
) -> _Beside:  # fmt: skip
    places: list[Place] = [files, Direct(bucket, simulator.endpoint, data)]
    disk, direct = (_epoch(simulator, data, [place] * ranks, data.dealt(1, ranks), pace_bytes_s) for place in places)
    return _Beside(disk, direct)


def _epoch(
    simulator: SimulatorProcess, data: Data, places: Sequence[Place], orders: list[list[str]], pace_bytes_s: float,
    inside: Sequence[Inside] = (),
) -> EpochReport:  # fmt: skip
    """Raises RowError: a read failed."""
    return checked(
        run_epoch(simulator, data, places, orders, pace_bytes_s=pace_bytes_s, inside=inside, buffer_bytes=_BUFFER_BYTES)
    )


def _counted(nodes: Nodes, family: str, label: str) -> Counter[str]:
    """The counter `family` of all nodes, summed for each value of `label`."""
    sums: Counter[str] = Counter()
    for node in nodes.all:
        with node.inside(), urllib.request.urlopen(f"{node.admin}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        for found in text_string_to_metric_families(text):
            if found.name == family:
                for sample in found.samples:
                    if sample.name.endswith("_total"):
                        sums[sample.labels[label]] += int(sample.value)
    return sums


def _share_here(row: str, served: list[Counter[str]]) -> Measured:
    """The order of the job is known from the second epoch on. `served`: as `_job` returns it."""
    shares = [of["disk"] / of.total() for of in served]
    sources = ", ".join(f"{source} {count / served[-1].total():.3f}" for source, count in served[-1].most_common())
    return Measured(
        row, "bytes that are on the asked node's disk, the less of epochs 2 and 3", min(shares[1:]), 0.98,
        at_least=True, detail=f"epochs 1 to 3: {_all(shares)}; epoch 3: {sources}",
    )  # fmt: skip


def _fullest(node: Node, data: Data) -> float:
    """The part of the data that the owner of most of it owns."""
    owned: Counter[str] = Counter()
    for key in data.keys:
        url = f"{node.admin}/cluster/who?object=s3://{BUCKET}/{key}"
        with node.inside(), urllib.request.urlopen(url, timeout=60) as answer:
            owned.update({name: its["bytes"] for name, its in json.load(answer)["shares"].items()})
    return max(owned.values()) / data.total_bytes


def _warmed_s(node: Node, data: Data) -> float:
    """How long the node says that it warms the data. Raises RowError: not all of it is warm."""
    with node.inside():
        begun = time.monotonic()
        _put(node, "warm/all", f"s3://{BUCKET}/train/\n")
        while True:
            with urllib.request.urlopen(f"{node.endpoint}/_outrider/warm/all", timeout=60) as answer:
                report = json.load(answer)
            took_s = time.monotonic() - begun
            if report["state"] != "running" or took_s > _WARM_DEADLINE_S:
                break
            time.sleep(_WARM_POLL_S)
    if report["state"] != "done" or report["objects"]["on_disk"] != data.count:
        raise RowError(f"the warm-up after {took_s:.0f} s: {report}")
    return took_s


def _put(node: Node, key: str, body: str) -> None:
    """Raises RowError: the control bucket refused it."""
    connection = http.client.HTTPConnection(urlsplit(node.endpoint).netloc, timeout=60)
    try:
        connection.request("PUT", f"/_outrider/{key}", body.encode())
        reply = connection.getresponse()
        if reply.status != 200:
            raise RowError(f"{key}: status {reply.status}: {reply.read()[:200]!r}")
    finally:
        connection.close()


def _of(report: EpochReport, data: Data) -> str:
    return f"{data.total_bytes / 1e6:.0f} MB; epoch {report.took_s:.1f} s, {report.bucket_gets} GETs at the bucket"


def _all(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


ROWS: dict[str, Row] = {
    "fresh": fresh,
    "quarter": quarter,
    "repeated": partial(known, "repeated"),
    "announced": partial(known, "announced"),
    "near": near,
    "static": partial(static, "static", _TWICE, 0.10),
    "static-tight": partial(static, "static-tight", _TIGHT, 0.30),
    "eight": eight,
    "warm": warm,
}
