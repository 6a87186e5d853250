"""A job on several nodes: its data, the bucket behind a simulated network, and readers that take bytes at a pace."""

from __future__ import annotations

import http.client
import os
import random
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import urlsplit

from outrider.core.cache.block_file import usual_disk_bytes
from tests.bench.cluster_goals import Measured
from tests.support.bucket import Bucket
from tests.support.simulator import SimulatorProcess

BUCKET = "cluster"
MIB = 2**20
# The bucket as the jobs meet it.
TTFB_S = 0.030
CONNECTION_BYTES_S = 40e6
TOTAL_BYTES_S = 250e6
_PIECE_BYTES = 256 * 1024
_READ_TIMEOUT_S = 60.0
# One number for all runs: the orders that are compared have to be the same.
_SEED = 11

Inside = Callable[[], AbstractContextManager[None]]
"""The sockets of a thread are made on some host within it."""


@dataclass(frozen=True, slots=True)
class Data:
    """`count` objects of `size_bytes` each. `crcs`: the CRC-32 of each, by key."""

    count: int
    size_bytes: int
    crcs: dict[str, int] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        return self.count * self.size_bytes

    @property
    def keys(self) -> list[str]:
        return sorted(self.crcs)

    def upload(
        self, bucket: Bucket, progress: Callable[[int], object] = lambda done: None, *, files: Path | None = None
    ) -> None:  # fmt: skip
        """Write the objects past the simulated network. `progress` gets how many are there. `files`: a directory that
        also gets them, as files."""
        bucket.make_bucket(BUCKET)
        client = bucket.client()
        try:
            for number in range(self.count):
                body = os.urandom(self.size_bytes)
                key = f"train/{number:05d}.tar"
                client.put_object(Bucket=BUCKET, Key=key, Body=body)
                self.crcs[key] = zlib.crc32(body)
                if files is not None:
                    (files / key).parent.mkdir(parents=True, exist_ok=True)
                    (files / key).write_bytes(body)
                progress(number + 1)
        finally:
            client.close()

    def cache_bytes(self, share: float, nodes: int, block_bytes: int) -> int:
        """The size of the cache of each of `nodes` that hold `share` of the data together."""
        starts = range(0, self.size_bytes, block_bytes)
        lengths = [min(block_bytes, self.size_bytes - start) for start in starts]
        return int(share / nodes * self.count * sum(map(usual_disk_bytes, lengths)))

    def dealt(self, epoch: int, ranks: int) -> list[list[str]]:
        """The shards of each rank, dealt anew in each epoch, as a distributed sampler with `set_epoch` deals them."""
        keys = self.keys
        random.Random(f"{_SEED} {epoch}").shuffle(keys)
        return [keys[rank::ranks] for rank in range(ranks)]

    def shuffled(self, epoch: int, rank: int) -> list[str]:
        """All shards, in an order of the rank's own."""
        keys = self.keys
        random.Random(f"{_SEED} {epoch} {rank}").shuffle(keys)
        return keys


@dataclass(slots=True)
class RankReport:
    """`wait_s`: how long the rank waited for bytes; `idle_s`: how long its accelerator had nothing to do; `pause_s`:
    the longest single wait; `first_bytes_s`: the wait for the first byte of each object. `errors`: reads that failed,
    or whose bytes were not those written."""

    read_bytes: int = 0
    wait_s: float = 0.0
    idle_s: float = 0.0
    pause_s: float = 0.0
    took_s: float = 0.0
    first_bytes_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One epoch of all ranks, and the bytes that the bucket's network carried meanwhile."""

    bucket_bytes: int
    bucket_gets: int
    ranks: list[RankReport]

    @property
    def wait_s(self) -> float:
        return sum(rank.wait_s for rank in self.ranks)

    @property
    def idle_s(self) -> float:
        return sum(rank.idle_s for rank in self.ranks)

    @property
    def idle_share(self) -> float:
        """The part of the ranks' time for which their accelerators had nothing to do."""
        return self.idle_s / sum(rank.took_s for rank in self.ranks)

    @property
    def pause_s(self) -> float:
        return max(rank.pause_s for rank in self.ranks)

    @property
    def took_s(self) -> float:
        return max(rank.took_s for rank in self.ranks)

    @property
    def first_bytes_s(self) -> list[float]:
        return sorted(first for rank in self.ranks for first in rank.first_bytes_s)

    @property
    def errors(self) -> list[str]:
        return [error for rank in self.ranks for error in rank.errors]


def checked(report: EpochReport) -> EpochReport:
    """Raises RowError: a read failed."""
    if report.errors:
        raise RowError("\n".join(report.errors[:5]))
    return report


class RowError(Exception):
    """Nothing can be measured; the message says why."""


Row = Callable[[Path, float], list[Measured]]
"""Measures in a new directory, with data of its usual size times a number."""


class Pace:
    """An accelerator that takes `bytes_s` (None: as fast as they come). `buffer_bytes` are read while those before are
    worked on, as a data loader's workers do."""

    def __init__(self, bytes_s: float | None, buffer_bytes: int = _PIECE_BYTES) -> None:
        self._bytes_s = bytes_s
        self._buffer_bytes = buffer_bytes
        self._free_at = time.perf_counter()
        self.idle_s = 0.0

    def take(self, count: int) -> None:
        """Hand over `count` bytes; returns when the accelerator wants the next."""
        if self._bytes_s is None:
            return
        now = time.perf_counter()
        self.idle_s += max(0.0, now - self._free_at)
        self._free_at = max(now, self._free_at) + count / self._bytes_s
        ahead_s = self._free_at - now - self._buffer_bytes / self._bytes_s
        if ahead_s > 0:
            time.sleep(ahead_s)


class _Source(Protocol):
    """Where a rank reads its objects. `open` returns the size, and a call that reads the next bytes into a buffer, as
    `io.RawIOBase.readinto` does."""

    def open(self, key: str) -> tuple[int, Callable[[memoryview], int | None]]: ...

    def close(self) -> None: ...


class Direct:
    """The endpoint of a bucket, past all caches, by one connection of each rank."""

    def __init__(self, bucket: Bucket, endpoint: str, data: Data) -> None:
        self.endpoint = endpoint
        client = bucket.client(endpoint)
        try:
            self.targets = {
                key: client.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key})
                for key in data.keys
            }
        finally:
            client.close()


Place = str | Direct | Path
"""Where a rank reads: the endpoint of a node, the bucket, or a directory with the objects as files."""


def run_epoch(
    simulator: SimulatorProcess, data: Data, places: Sequence[Place], orders: Sequence[Sequence[str]],
    *, pace_bytes_s: float | None = None, at_half: Callable[[], object] | None = None,
    inside: Sequence[Inside] = (), buffer_bytes: int = _PIECE_BYTES,
) -> EpochReport:  # fmt: skip
    """Each rank reads its shards from its node. `at_half`: called once, when half of all shards have been read.
    `inside`: the hosts of the ranks, where they are on a switch. `buffer_bytes`: what a rank reads ahead of its
    accelerator."""
    simulator.reset()
    left = sum(map(len, orders)) // 2
    lock = threading.Lock()

    def one_more() -> None:
        nonlocal left
        with lock:
            left -= 1
            is_half = left == 0
        if is_half and at_half is not None:
            at_half()

    def one(rank: int) -> RankReport:
        with inside[rank]() if inside else nullcontext():
            return _read_all(data, _source_of(places[rank]), orders[rank], Pace(pace_bytes_s, buffer_bytes), one_more)

    with ThreadPoolExecutor(len(orders)) as pool:
        ranks = list(pool.map(one, range(len(orders))))
    counts = simulator.counts()
    return EpochReport(counts.body_bytes, counts.gets, ranks)


def _read_all(
    data: Data, source: _Source, keys: Sequence[str], pace: Pace, one_more: Callable[[], object]
) -> RankReport:  # fmt: skip
    report, began = RankReport(), time.perf_counter()
    for key in keys:
        try:
            crc = _read(source, key, pace, report)
        except (OSError, http.client.HTTPException, ValueError) as error:
            report.errors.append(f"{key}: {error!r}")
            source.close()
        else:
            if crc != data.crcs[key]:
                report.errors.append(f"{key}: other bytes than were written")
        one_more()
    source.close()
    report.took_s = time.perf_counter() - began
    report.idle_s = pace.idle_s
    return report


def _read(source: _Source, key: str, pace: Pace, report: RankReport) -> int:
    """The CRC-32 of the object. Raises ValueError: another status than 200."""
    whole, crc = memoryview(bytearray(_PIECE_BYTES)), 0
    begun = since = time.perf_counter()
    size, read_into = source.open(key)
    left = size
    while left:
        # More than one byte would be waited for until the buffer is full.
        count = read_into(whole if left < size else whole[:1])
        if left == size:
            report.first_bytes_s.append(time.perf_counter() - begun)
        waited_s = time.perf_counter() - since
        report.wait_s += waited_s
        report.pause_s = max(report.pause_s, waited_s)
        if not count:
            raise ValueError(f"the body ended {left} bytes early")
        crc = zlib.crc32(whole[:count], crc)
        left -= count
        report.read_bytes += count
        pace.take(count)
        since = time.perf_counter()
    return crc


class _Http:
    """One connection. `targets`: the target of each key, if it is not the plain path."""

    def __init__(self, endpoint: str, targets: dict[str, str] | None = None) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=_READ_TIMEOUT_S)
        self._targets = targets

    def open(self, key: str) -> tuple[int, Callable[[memoryview], int | None]]:
        """Raises ValueError: another status than 200."""
        target = f"/{BUCKET}/{key}" if self._targets is None else self._targets[key]
        self._connection.request("GET", target)
        reply = self._connection.getresponse()
        if reply.status != 200:
            raise ValueError(f"status {reply.status}: {reply.read()[:200]!r}")
        return reply.length or 0, reply.readinto

    def close(self) -> None:
        self._connection.close()


class _Files:
    """The files of a directory, one after the other."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: BinaryIO | None = None

    def open(self, key: str) -> tuple[int, Callable[[memoryview], int | None]]:
        self.close()
        self._file = file = (self._directory / key).open("rb", buffering=0)
        return os.fstat(file.fileno()).st_size, file.readinto

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _source_of(place: Place) -> _Source:
    match place:
        case Direct():
            return _Http(place.endpoint, place.targets)
        case Path():
            return _Files(place)
        case str():
            return _Http(place)
