"""Rows of `tests.bench.cluster`: a byte from a peer beside a byte from the own disk, in time and in CPU."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import statistics
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench import procs
from tests.bench.cluster_goals import Measured, quantile
from tests.bench.cluster_world import BUCKET, MIB, Data, Row, RowError
from tests.support.bucket import Bucket
from tests.support.nodes import Node, Nodes
from tests.support.proxy import ServedProxy
from tests.support.simulator import SimulatorProcess

_KIB = 2**10
_ROUNDS = 3
_TRIPS = 300
_HIT_BYTES = 64 * _KIB


def first_byte(directory: Path, scale: float) -> list[Measured]:
    """Each object is read once through a node that has not read it. The owners of half of them are here, and those of
    the other half are a peer; all have them on disk."""
    measured: list[Measured] = []
    for size, count in ((64 * _KIB, 1500), (MIB, 400)):
        place = directory / str(size)
        place.mkdir()
        with Bucket() as bucket:
            data = Data(max(20, int(count * scale)), size)
            data.upload(bucket)
            with Nodes(bucket, place, 2, prefetch="off") as nodes:
                edge, owner = nodes.all
                _read(owner.endpoint, data.keys)
                for node in nodes.all:
                    node.settle()
                trips = _round_trips(owner)
                waits = _first_bytes(edge, data.keys)
        local, peer = waits.get("HIT", []), waits.get("PEER", [])
        if min(len(local), len(peer)) < 5:
            raise RowError(f"answers by x-cache: { {way: len(took) for way, took in waits.items()} }")
        for share, more_s in ((0.50, 0.001), (0.99, 0.005)):
            hit_s, trip_s = quantile(local, share), quantile(trips, share)
            measured.append(
                Measured(
                    "first-byte", f"{size // _KIB} KiB of a peer, p{share * 100:.0f}", quantile(peer, share),
                    hit_s + trip_s + more_s, unit="ms",
                    detail=f"local hit {hit_s * 1e3:.2f} ms, round trip {trip_s * 1e3:.2f} ms; {len(peer)} and "
                    f"{len(local)} reads",
                )
            )  # fmt: skip
    return measured


def cpu(directory: Path, scale: float) -> list[Measured]:
    """The same objects, all owned by one of two nodes: its clients read them (hits), the other node's clients do (the
    owner sends, the edge receives and keeps), and a node alone gets them from the bucket (the receiving path)."""
    s_per_gb: dict[str, list[float]] = {"hit": [], "owner": [], "edge": [], "alone": []}
    with Bucket() as bucket, SimulatorProcess(bucket.address) as simulator, ExitStack() as stack:
        data = Data(max(8, int(80 * scale)), 8 * MIB)
        data.upload(bucket)
        block, size = str(8 * MIB), "4GiB"
        nodes = stack.enter_context(
            Nodes(
                bucket, directory, 2, origin=simulator.endpoint, prefetch="off", block_size=block, cache_size=size
            )
        )  # fmt: skip
        edge, owner = nodes.all
        (directory / "alone").mkdir()
        alone = ServedProxy(
            bucket, directory / "alone", simulator.endpoint, prefetch="off", block_size=block, cache_size=size
        )  # fmt: skip
        keys = [key for key in data.keys if _owner_of(owner, key) == owner.name]
        gb = len(keys) * data.size_bytes / 1e9
        _read(owner.endpoint, keys)
        for _ in range(_ROUNDS):
            nodes.all[0].stop()
            _emptied(edge)
            nodes.wait_for_all()
            _emptied(alone)
            stack.callback(lambda: alone.stop() if alone.is_started else None)
            for node in (edge, owner, alone):
                node.settle()
            # None of the reads that are compared asks the bucket whether its version is still the newest.
            _read(owner.endpoint, keys)
            owner.settle()
            before = procs.cpu_s(owner.pid)
            s_per_gb["edge"].append(_cpu_of(edge, keys) / gb)
            owner.settle()
            s_per_gb["owner"].append((procs.cpu_s(owner.pid) - before) / gb)
            s_per_gb["hit"].append(_cpu_of(owner, keys) / gb)
            s_per_gb["alone"].append(_cpu_of(alone, keys) / gb)
            alone.stop()
    median = {name: statistics.median(values) for name, values in s_per_gb.items()}
    beside = {name: " ".join(f"{value:.2f}" for value in values) for name, values in s_per_gb.items()}
    return [
        Measured(
            "cpu", "owner to a peer, beside a client's hit", median["owner"] / median["hit"], 1.1,
            detail=f"s/GB: owner {beside['owner']}; hit {beside['hit']}; {gb:.2f} GB a round",
        ),
        Measured(
            "cpu", "edge, beside a cold read from the bucket", median["edge"] / median["alone"], 1.0,
            detail=f"s/GB: edge {beside['edge']}; from the bucket {beside['alone']}",
        ),
    ]  # fmt: skip


def alone(directory: Path, scale: float) -> list[Measured]:
    """A hit's CPU at the only member of a cluster, beside that of a node without `--peers`; in turns."""
    us_per_hit: dict[bool, list[float]] = {True: [], False: []}
    count = max(100, int(12000 * scale))
    with Bucket() as bucket, ExitStack() as stack:
        data = Data(64, _HIT_BYTES)
        data.upload(bucket)
        running: dict[bool, Node] = {}
        for together in us_per_hit:
            place = directory / str(together)
            place.mkdir()
            running[together] = stack.enter_context(Nodes(bucket, place, 1, together=together, prefetch="off"))[0]
            _read(running[together].endpoint, data.keys)
        for turn in range(2 * _ROUNDS):
            for together in (True, False) if turn % 2 else (False, True):
                keys = (data.keys * (count // len(data.keys) + 1))[:count]
                us_per_hit[together].append(_cpu_of(running[together], keys) / count * 1e6)
    # Together the ticks of the CPU's clock weigh less than in each round.
    mean = {together: statistics.fmean(values) for together, values in us_per_hit.items()}
    beside = {together: " ".join(f"{value:.0f}" for value in values) for together, values in us_per_hit.items()}
    return [
        Measured(
            "alone", f"a hit of {_HIT_BYTES // _KIB} KiB with --peers, beside without", mean[True] / mean[False],
            1.01, detail=f"us: with {beside[True]}; without {beside[False]}",
        )
    ]  # fmt: skip


def _emptied(proxy: ServedProxy) -> None:
    """Start it with an empty cache."""
    shutil.rmtree(proxy.cache_dir, ignore_errors=True)
    proxy.start()


def _cpu_of(proxy: ServedProxy, keys: Sequence[str]) -> float:
    before = procs.cpu_s(proxy.pid)
    _read(proxy.endpoint, keys)
    proxy.settle()
    return procs.cpu_s(proxy.pid) - before


def _owner_of(node: Node, key: str) -> str:
    with urllib.request.urlopen(f"{node.admin}/cluster/who?object=s3://{BUCKET}/{key}", timeout=60) as answer:
        return str(json.load(answer)["owners"][0]["owners"][0])


def _round_trips(node: Node) -> list[float]:
    """How long connections to the node's peer port take: one round trip each."""
    host, _, port = node.peer_address.rpartition(":")
    took = []
    for _ in range(_TRIPS):
        begun = time.perf_counter()
        with socket.create_connection((host, int(port))):
            took.append(time.perf_counter() - begun)
    return took


def _first_bytes(node: Node, keys: Sequence[str]) -> dict[str, list[float]]:
    """The waits for the first byte of each object, by the `x-cache` of its answer."""
    waits: dict[str, list[float]] = {}
    for way, first_s in _timed(node.endpoint, keys):
        waits.setdefault(way, []).append(first_s)
    return waits


def _read(endpoint: str, keys: Sequence[str]) -> None:
    """Read the objects whole. Raises RowError: an answer was no 200, or short."""
    _timed(endpoint, keys)


def _timed(endpoint: str, keys: Sequence[str]) -> list[tuple[str, float]]:
    """The `x-cache` and the seconds to the first byte of each object, read one after the other on one connection."""
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=60)
    buffer, replies = bytearray(MIB), []
    try:
        for key in keys:
            begun = time.perf_counter()
            connection.request("GET", f"/{BUCKET}/{key}")
            reply = connection.getresponse()
            first = reply.read(1)
            replies.append((reply.headers.get("x-cache", ""), time.perf_counter() - begun))
            while reply.readinto(buffer):
                pass
            if reply.status != 200 or not first or reply.length:
                raise RowError(f"{key}: status {reply.status}, {reply.length} bytes are missing")
    finally:
        connection.close()
    return replies


ROWS: dict[str, Row] = {"first-byte": first_byte, "cpu": cpu, "alone": alone}
