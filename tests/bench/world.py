"""The world that all targets share: a bucket with data, and its simulated network with latency and rates."""

from __future__ import annotations

import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tests.support.bucket import ADMIN, READER, Bucket, Identity
from tests.support.simulator import SimulatorProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NAME = "bench"
PROBE = "probe"
"""A small object that is read from every target before the clock starts, so that no first connection is timed."""
_PROBE_BYTES = 1000
TTFB_S = 0.030
CONNECTION_BYTES_S = 40e6
TOTAL_BYTES_S = 250e6
RANGE_BYTES = 64 * 1024
_POOL_BYTES = 32 * 1024 * 1024
_SEED = 7
_SETTLED_S = 0.3
_SETTLE_DEADLINE_S = 20.0
# nginx cannot sign, so the bucket also serves unsigned requests. SeaweedFS knows such clients by this name.
_ANYBODY = Identity("anonymous", "OUTRIDERANYBODY", "nobody-knows", ("Read", "List"))


class BenchError(Exception):
    """This cannot be measured here; the message says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of data to read, and the duration (`wrk_s`: whole seconds, since wrk takes no others)."""

    big_bytes: int = 256 * 1024 * 1024
    stream_bytes: int = 2 * 1024**3
    shards: int = 8
    shard_bytes: int = 100_000_000
    smalls: int = 2000
    small_bytes: int = 110_000
    cold_smalls: int = 600
    firsts: int = 12
    first_bytes: int = 9_000_000
    wrk_s: int = 3
    blocks: int = 100_000
    pipeline_shards: int = 24
    pipeline_samples: int = 260
    pipeline_step_ms: float = 150.0


# This size tests the harness, and measures no speed.
SHORT = Plan(
    big_bytes=16 * 1024 * 1024,
    stream_bytes=64 * 1024 * 1024,
    shards=4,
    shard_bytes=10_000_000,
    smalls=64,
    cold_smalls=16,
    firsts=2,
    wrk_s=1,
    blocks=500,
    pipeline_shards=2,
    pipeline_samples=128,
    pipeline_step_ms=20.0,
)


class World:
    """Owns the bucket's contents and the simulator. Each target makes a directory of its own under `directory`."""

    authority: Path | None = None
    """The certificate that clients have to trust; None: those of the system."""

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        bucket: Bucket,
        simulator: SimulatorProcess,
        outrider_flags: Sequence[str] = (),
    ) -> None:
        self.plan = plan
        self.directory = directory
        self.bucket = bucket
        self.simulator = simulator
        self.outrider_flags = outrider_flags
        self._pool = Random(_SEED).randbytes(_POOL_BYTES)

    @property
    def big(self) -> str:
        return "big.bin"

    @property
    def shards(self) -> list[str]:
        return [f"shard-{number:03d}.tar" for number in range(self.plan.shards)]

    @property
    def smalls(self) -> list[str]:
        return [f"small/{number:06d}.jpg" for number in range(self.plan.smalls)]

    @property
    def firsts(self) -> list[str]:
        """Each in a folder of its own, and without a number, so that no planner can predict the next one."""
        return [f"{chr(ord('a') + number)}/alone.bin" for number in range(self.plan.firsts)]

    @property
    def sizes(self) -> dict[str, int]:
        """All objects, by key."""
        plan = self.plan
        return {
            PROBE: _PROBE_BYTES,
            self.big: plan.big_bytes,
            **dict.fromkeys(self.shards, plan.shard_bytes),
            **dict.fromkeys(self.smalls, plan.small_bytes),
            **dict.fromkeys(self.firsts, plan.first_bytes),
        }

    def body(self, key: str) -> bytes:
        """Random bytes, the same each time, others for each key."""
        size, start = self.sizes[key], zlib.crc32(key.encode()) % _POOL_BYTES
        turned = self._pool[start : start + size]
        while len(turned) < size:
            turned += self._pool[: size - len(turned)]
        return turned

    def each_object(self, act: Callable[[str, bytes], object]) -> None:
        """Call `act` with each key and body, several at once."""
        with ThreadPoolExecutor(8) as threads:
            for _ in threads.map(lambda key: act(key, self.body(key)), self.sizes):
                pass

    def upload(self, endpoint: str, bucket: str = NAME) -> None:
        client = self.bucket.client(endpoint, max_pool_connections=16, retries={"max_attempts": 3})
        try:
            self.each_object(lambda key, body: client.put_object(Bucket=bucket, Key=key, Body=body))
        finally:
            client.close()

    def calm(self) -> None:
        self.simulator.set_conditions(ttfb_s=0.0, connection_bytes_s=None, total_bytes_s=None)

    def far_away(self) -> None:
        """A bucket over a network: the latency and rates of all cold loads."""
        self.simulator.set_conditions(ttfb_s=TTFB_S, connection_bytes_s=CONNECTION_BYTES_S, total_bytes_s=TOTAL_BYTES_S)

    def settle(self) -> None:
        """Wait until nothing more comes from the bucket: fills that outlive their readers count too."""
        until = time.monotonic() + _SETTLE_DEADLINE_S
        seen, since = self.simulator.counts(), time.monotonic()
        while time.monotonic() - since < _SETTLED_S and time.monotonic() < until:
            time.sleep(0.05)
            if (now := self.simulator.counts()) != seen:
                seen, since = now, time.monotonic()


def make_bucket() -> Bucket:
    return Bucket((ADMIN, READER, _ANYBODY))


def pieces(values: list[str], count: int) -> Iterator[list[str]]:
    """Deal `values` out to `count` readers; readers that get none are left out."""
    dealt = (values[number::count] for number in range(count))
    return (part for part in dealt if part)
