"""Rows of `tests.bench.cluster`: members that die, join and restart, and writes that all members learn of."""

from __future__ import annotations

import http.client
import json
import secrets
import signal
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench import procs
from tests.bench.cluster_goals import Measured, quantile
from tests.bench.cluster_world import BUCKET, CONNECTION_BYTES_S, MIB, TTFB_S, Data, Row, checked, run_epoch
from tests.bench.fake_members import fake_members
from tests.support.bucket import Bucket
from tests.support.nodes import Node, Nodes
from tests.support.simulator import SimulatorProcess

_BLOCK = MIB
_KILLED_OF = 8
# All readers together read the data once in the ten seconds after the death.
_AFTER_S = 10.0
_KILL_AFTER_S = 0.5
_JOINED = 4
# While one node restarts, a quarter of the data is read in this time.
_RESTART_S = 5.0
_WRITES = 1000
_WRITTEN_NAMES = 50
_NOTIFIED, _MANY = 50, 199
_ALONE, _AT_ONCE, _TURNS = 1, 32, 3


def killed(directory: Path, scale: float) -> list[Measured]:
    """One of eight nodes is killed while the other seven's readers read all."""
    with Bucket() as bucket, ExitStack() as stack:
        data = Data(max(32, int(256 * scale)), 2 * MIB)
        simulator, nodes = _warm(stack, bucket, directory, data, _KILLED_OF)
        others, victim = nodes.all[:-1], nodes.all[-1]
        share = _share_of(nodes[0], victim, data)
        bucket_s = _bucket_first_bytes(bucket, simulator, data)
        timer = threading.Timer(_KILL_AFTER_S, lambda: victim.send(signal.SIGKILL))
        timer.start()
        pace = data.total_bytes / len(others) / _AFTER_S
        report = run_epoch(
            simulator, data, [node.endpoint for node in others], data.dealt(9, len(others)), pace_bytes_s=pace
        )
        timer.join()
        again = run_epoch(simulator, data, [node.endpoint for node in others], data.dealt(10, len(others)))
    errors = report.errors + again.errors
    fetched = report.bucket_bytes + again.bucket_bytes
    first_s, limit_s = quantile(report.first_bytes_s, 0.99), quantile(bucket_s, 0.99)
    return [
        Measured(
            "killed", "one of 8 killed: reads that failed in the next 10 s", len(errors), 0, unit="",
            detail="; ".join(errors[:2]) or f"of {len(report.first_bytes_s)} reads in {report.took_s:.1f} s",
        ),
        Measured(
            "killed", "first byte, p99", first_s, limit_s + 0.3, unit="ms",
            detail=f"the bucket's {limit_s * 1e3:.0f} ms; longest wait {report.pause_s * 1e3:.0f} ms",
        ),
        Measured(
            "killed", "bytes fetched again / (data / 8)", fetched / (data.total_bytes / _KILLED_OF), 1.05,
            detail=f"its share was {share * _KILLED_OF:.2f} of data / 8; of its own share "
            f"{fetched / (share * data.total_bytes):.2f} were fetched again",
        ),
    ]  # fmt: skip


def join(directory: Path, scale: float) -> list[Measured]:
    """A fifth node joins four that hold the data; then all five read it."""
    with Bucket() as bucket, ExitStack() as stack:
        data = Data(max(16, int(128 * scale)), 2 * MIB)
        count = _JOINED + 1
        simulator, nodes = _warm(stack, bucket, directory, data, count, first=_JOINED)
        nodes.list_members(nodes.all)
        nodes.start(nodes.all[_JOINED:])
        endpoints = [node.endpoint for node in nodes.all]
        report = checked(run_epoch(simulator, data, endpoints, data.dealt(9, count)))
    fetched = report.bucket_bytes / (data.total_bytes / count)
    return [
        Measured("join", "bytes fetched again / (data / 5)", fetched, 1.4, detail="0.03 where previous owners give all")
    ]


def rolling(directory: Path, scale: float) -> list[Measured]:
    """Each of four nodes restarts in turn, and keeps its disk. The others' readers read on meanwhile."""
    with Bucket() as bucket, ExitStack() as stack:
        data = Data(max(16, int(128 * scale)), 2 * MIB)
        simulator, nodes = _warm(stack, bucket, directory, data, _JOINED)
        fetched = 0
        pace = data.total_bytes / _JOINED / (_JOINED - 1) / _RESTART_S
        for number, victim in enumerate(nodes.all):
            others = [node for node in nodes.all if node is not victim]
            keys = data.keys[number::_JOINED]
            with ThreadPoolExecutor(1) as pool:
                restart = pool.submit(_restart, victim)
                report = run_epoch(
                    simulator, data, [node.endpoint for node in others],
                    [keys[rank :: len(others)] for rank in range(len(others))], pace_bytes_s=pace,
                )  # fmt: skip
                restart.result()
            fetched += checked(report).bucket_bytes
            nodes.wait_for_all()
        report = run_epoch(simulator, data, [node.endpoint for node in nodes.all], data.dealt(9, _JOINED))
        fetched += checked(report).bucket_bytes
    share = fetched / data.total_bytes
    return [Measured("rolling", "restart of all 4, disks stay: bytes fetched again / data", share, 0.25)]


def _restart(node: Node) -> None:
    node.stop()
    node.start()


def write(directory: Path, scale: float) -> list[Measured]:
    """Objects that all nodes know are overwritten through one, and read through all others right after the answer."""
    writes = max(20, int(_WRITES * scale))
    with Bucket() as bucket, ExitStack() as stack:
        data = Data(_WRITTEN_NAMES, 1024)
        data.upload(bucket)
        nodes = stack.enter_context(Nodes(bucket, directory, _JOINED, freshness="ttl:3600", prefetch="off"))
        connections = [
            http.client.HTTPConnection(urlsplit(node.endpoint).netloc, timeout=60) for node in nodes.all
        ]  # fmt: skip
        for connection in connections:
            stack.callback(connection.close)
        for key in data.keys:
            _through(connections, key)
        stale, known_s = 0, []
        for number in range(writes):
            key, body = data.keys[number % len(data.keys)], secrets.token_hex(512).encode()
            writer = number % len(connections)
            connections[writer].request("PUT", f"/{BUCKET}/{key}", body)
            _body_of(connections[writer])
            others = [connection for connection in connections if connection is not connections[writer]]
            answered = time.perf_counter()
            bodies = _through(others, key)
            stale += sum(each != body for each in bodies)
            while any(each != body for each in bodies):
                bodies = _through(others, key)
            known_s.append(time.perf_counter() - answered)
    return [
        Measured("write", f"stale reads after {writes} writes", stale, 0, unit="", detail=f"of {3 * writes} reads"),
        Measured(
            "write", "known everywhere after the 2xx, p99", quantile(known_s, 0.99), 0.3, unit="ms",
            detail=f"p50 {quantile(known_s, 0.5) * 1e3:.1f} ms: three reads at once that ask the bucket",
        ),
    ]  # fmt: skip


def notified(directory: Path, scale: float) -> list[Measured]:
    """PUTs through a node whose writes fifty members learn of, beside PUTs through a node without any; one at a time,
    and many at once."""
    count = 2 * _TURNS * max(32, int(100 * scale))
    measured: list[Measured] = []
    with Bucket() as bucket, ExitStack() as stack:
        bucket.make_bucket(BUCKET)
        ways: dict[bool, Node] = {}
        for together in (False, True):
            place = directory / str(together)
            place.mkdir()
            nodes = stack.enter_context(Nodes(bucket, place, 1, together=together, prefetch="off"))
            if together:
                stack.enter_context(fake_members(nodes, place, _NOTIFIED))
            ways[together] = nodes[0]
        for at_once, goal in ((_ALONE, None), (_AT_ONCE, 25.0)):
            cpu_and_took_s: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
            for turn in range(2 * _TURNS):
                for together in (True, False) if turn % 2 else (False, True):
                    cpu_and_took_s[together].append(_puts(ways[together], count // (2 * _TURNS), at_once))
            cpu_s = {way: sum(cpu for cpu, _ in values) for way, values in cpu_and_took_s.items()}
            a_second = count / sum(took for _, took in cpu_and_took_s[True])
            alone = count / sum(took for _, took in cpu_and_took_s[False])
            detail = f"ms a PUT: {cpu_s[True] / count * 1e3:.1f}, and {cpu_s[False] / count * 1e3:.1f} by itself"
            measured.append(
                Measured(
                    "notified", f"CPU of a PUT with {_NOTIFIED} members beside none, {at_once} at once",
                    cpu_s[True] / cpu_s[False], 3.0, detail=detail,
                )
            )  # fmt: skip
            if goal is not None:
                measured.append(
                    Measured(
                        "notified", f"PUTs a second, {at_once} at once", a_second, goal, unit="", at_least=True,
                        detail=f"{alone:.0f} by itself",
                    )
                )  # fmt: skip
        lost = _NOTIFIED + 1 - len(ways[True].alive())
    return [*measured, Measured("notified", "members that are thought away after them", lost, 0, unit="")]


def status(directory: Path, scale: float) -> list[Measured]:
    """The status of a node with 199 members, and a PUT that all of them learn of."""
    with Bucket() as bucket, ExitStack() as stack:
        bucket.make_bucket(BUCKET)
        nodes = stack.enter_context(Nodes(bucket, directory, 1, prefetch="off"))
        stack.enter_context(fake_members(nodes, directory, _MANY))
        _puts(nodes[0], _AT_ONCE, _AT_ONCE)
        took_s = []
        for _ in range(max(3, int(20 * scale))):
            began = time.perf_counter()
            alive = len(nodes[0].alive())
            took_s.append(time.perf_counter() - began)
    return [
        Measured(
            "status", f"/status with {_MANY} members, p50", quantile(took_s, 0.5), 0.2, unit="ms",
            detail=f"the longest {max(took_s) * 1e3:.0f} ms",
        ),
        Measured("status", f"of {_MANY} members alive after {_AT_ONCE} PUTs at once", alive - 1, _MANY, unit="",
                 at_least=True),
    ]  # fmt: skip


def _puts(node: Node, count: int, at_once: int) -> tuple[float, float]:
    """The seconds of CPU that so many PUTs take, and the seconds until all are answered."""

    def put(first: int) -> None:
        connection = http.client.HTTPConnection(urlsplit(node.endpoint).netloc, timeout=60)
        try:
            for number in range(first, count, at_once):
                connection.request("PUT", f"/{BUCKET}/put/{number}", b"written")
                _body_of(connection)
        finally:
            connection.close()

    before, began = procs.cpu_s(node.pid), time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(put, range(at_once)))
    return procs.cpu_s(node.pid) - before, time.perf_counter() - began


def _warm(
    stack: ExitStack, bucket: Bucket, directory: Path, data: Data, count: int, *, first: int | None = None
) -> tuple[SimulatorProcess, Nodes]:  # fmt: skip
    """Nodes that hold the data together; of `count` only the `first` ones run."""
    data.upload(bucket)
    simulator = stack.enter_context(
        SimulatorProcess(bucket.address, ttfb_s=TTFB_S, connection_bytes_s=CONNECTION_BYTES_S)
    )
    nodes = Nodes(
        bucket, directory, count, origin=simulator.endpoint, block_size=str(_BLOCK), prefetch="off",
        cache_size=str(int(0.5 * data.total_bytes)),
    )  # fmt: skip
    stack.callback(nodes.stop)
    running = nodes.all[:first]
    nodes.list_members(running)
    nodes.start(running)
    checked(run_epoch(simulator, data, [node.endpoint for node in running], data.dealt(1, len(running))))
    for node in running:
        node.settle()
    return simulator, nodes


def _share_of(node: Node, owner: Node, data: Data) -> float:
    """The share of the data that `owner` owns."""
    owned = 0
    for key in data.keys:
        with urllib.request.urlopen(f"{node.admin}/cluster/who?object=s3://{BUCKET}/{key}", timeout=60) as answer:
            owned += json.load(answer)["shares"][owner.name]["bytes"]
    return owned / data.total_bytes


def _bucket_first_bytes(bucket: Bucket, simulator: SimulatorProcess, data: Data) -> list[float]:
    """The waits for the first byte of the bucket itself, without a cache."""
    client, waits = bucket.client(simulator.endpoint), []
    try:
        for key in data.keys[:100]:
            begun = time.perf_counter()
            body = client.get_object(Bucket=BUCKET, Key=key)["Body"]
            body.read(1)
            waits.append(time.perf_counter() - begun)
            body.close()
    finally:
        client.close()
    return waits


def _through(connections: list[http.client.HTTPConnection], key: str) -> list[bytes]:
    """The object as each node gives it, all asked at once."""
    for connection in connections:
        connection.request("GET", f"/{BUCKET}/{key}")
    return [_body_of(connection) for connection in connections]


def _body_of(connection: http.client.HTTPConnection) -> bytes:
    reply = connection.getresponse()
    body = reply.read()
    if reply.status != 200:
        raise RuntimeError(f"status {reply.status}: {body[:200]!r}")
    return body


ROWS: dict[str, Row] = {
    "killed": killed,
    "join": join,
    "rolling": rolling,
    "write": write,
    "notified": notified,
    "status": status,
}
