"""The live worlds of `tests.bench.ahead`: a training job, its data, and a bucket behind a simulated network."""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import tarfile
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.core.cache.block_file import usual_disk_bytes
from tests.bench.procs import stolen_s
from tests.support.bucket import Bucket
from tests.support.child import Child, clean_environment
from tests.support.conditions import Counts
from tests.support.proxy import ServedProxy
from tests.support.simulator import REPOSITORY, SimulatorProcess

BANDWIDTH = 1.3
# No run takes longer than this, or than twice as long as one that waits for each of its samples.
RUN_DEADLINE_S = 900.0
# The longest that S3 allows: an epoch may take an hour.
URL_S = 7 * 24 * 3600
POLL_S = 0.05
TRACE_S = 0.5


@dataclass(frozen=True, slots=True)
class World:
    """A job's data, cache and network.

    `objects` objects hold `object_bytes` of payload in samples of `sample_bytes`; the accelerator takes `step_us` for
    each sample. `ttfb_s` and `connection_bytes_s` (None: no limit) are the latency and rate of one GET at the bucket.
    """

    kind: str
    objects: int
    object_bytes: int
    sample_bytes: int
    batch: int
    workers: int
    step_us: float
    ttfb_s: float
    connection_share: float | None
    cache: float
    block_bytes: int

    @property
    def samples(self) -> int:
        return self.objects * self.object_bytes // self.sample_bytes

    @property
    def unaided_s(self) -> float:
        """For how long an epoch takes where each sample is waited for."""
        return self.samples * (self.ttfb_s + self.step_us / 1e6)

    @property
    def consumed_bytes_s(self) -> float:
        return self.sample_bytes / self.step_us * 1e6

    @property
    def cache_bytes(self) -> int:
        size = len(_object_bytes(self, 0)[0])
        lengths = [min(self.block_bytes, size - start) for start in range(0, size, self.block_bytes)]
        return int(self.cache * self.objects * sum(map(usual_disk_bytes, lengths)))

    def key(self, number: int) -> str:
        return f"train/{number:06d}.tar" if self.kind == "shards" else f"{self.kind}/{number:06d}.bin"


@dataclass(frozen=True, slots=True)
class Epoch:
    """`wait_s`: the time that the loop was blocked; `counts`: the traffic of the bucket's network meanwhile."""

    samples: int
    digest: int
    wait_s: float
    first_s: float
    took_s: float
    counts: Counts


class RunFailed(Exception):
    """A job failed, or read other data than was written; the message says why."""


class Live:
    """One world's data in a bucket and on local disk, and jobs over it."""

    def __init__(
        self, world: World, bucket: Bucket, directory: Path, progress: Callable[[str], None], *, name: str = ""
    ) -> None:  # fmt: skip
        """`name`: of this world, where a bucket has several of one kind."""
        self.world = world
        self.digest = 0
        self._bucket = bucket
        self._directory = directory
        self._progress = progress
        self._name = f"ahead-{name or world.kind}"
        self._stolen_s = 0.0

    def make(self) -> None:
        """Write the data here and into the bucket, past its network."""
        self._progress(f"writing {self.world.objects} {self.world.kind}")
        self._bucket.make_bucket(self._name)
        client = self._bucket.client(max_pool_connections=4)

        def write(number: int) -> int:
            body, digest = _object_bytes(self.world, number)
            path = self._directory / self.world.key(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
            client.put_object(Bucket=self._name, Key=self.world.key(number), Body=body)
            return digest

        with contextlib.closing(client), ThreadPoolExecutor(4) as pool:
            self.digest = sum(pool.map(write, range(self.world.objects))) % 2**32

    def local(self, run: str, epochs: int, **job: Any) -> list[Epoch]:
        urls = [f"file://{self._directory}/{self.world.key(number)}" for number in range(self.world.objects)]
        with self._network() as simulator:
            return self._train(run, urls, simulator, None, epochs, job)

    def direct(self, run: str, epochs: int, **job: Any) -> list[Epoch]:
        with self._network() as simulator:
            return self._train(run, self._urls(simulator.endpoint), simulator, None, epochs, job)

    def outrider(self, run: str, epochs: int, policy: dict[str, str], **job: Any) -> list[Epoch]:
        """`policy`: flags of `serve`."""
        directory = self._directory / f"proxy-{run}"
        directory.mkdir()
        flags = {"cache_size": str(self.world.cache_bytes), "block_size": str(self.world.block_bytes), **policy}
        with (
            self._network() as simulator,
            ServedProxy(self._bucket, directory, simulator.endpoint, **flags) as proxy,
            _trace(proxy, self._directory / f"{run}.trace"),
        ):
            return self._train(run, self._urls(proxy.endpoint), simulator, proxy.endpoint, epochs, job)

    @contextlib.contextmanager
    def _network(self) -> Iterator[SimulatorProcess]:
        world = self.world
        share = world.connection_share
        with SimulatorProcess(
            self._bucket.address, ttfb_s=world.ttfb_s, total_bytes_s=BANDWIDTH * world.consumed_bytes_s,
            connection_bytes_s=None if share is None else share * world.consumed_bytes_s,
        ) as simulator:  # fmt: skip
            yield simulator

    def _urls(self, endpoint: str) -> list[str]:
        """Presigned, so that the bucket accepts them; a proxy on loopback accepts any URL. s3torchconnector signs its
        requests, and lists the names itself."""
        if self.world.kind == "connector":
            return [f"s3://{self._name}/connector/"]
        client = self._bucket.client(endpoint)
        with contextlib.closing(client):
            return [
                client.generate_presigned_url(
                    "get_object", Params={"Bucket": self._name, "Key": self.world.key(number)}, ExpiresIn=URL_S
                )
                for number in range(self.world.objects)
            ]

    def _train(
        self, run: str, urls: list[str], simulator: SimulatorProcess, endpoint: str | None, epochs: int,
        job: dict[str, Any],
    ) -> list[Epoch]:  # fmt: skip
        world = self.world
        file, report = self._directory / f"{run}.urls", self._directory / f"{run}.jsonl"
        file.write_text("\n".join(urls))
        flags = {"kind": world.kind, "urls": file, "report": report, "workers": world.workers, "batch": world.batch,
                 "step-us": world.step_us, "epochs": epochs, **job}  # fmt: skip
        argv = [sys.executable, "-m", "tests.bench.ahead_job"]
        for name, value in flags.items():
            argv += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        env = clean_environment() | self._bucket.environment()
        if endpoint is not None:
            env["AWS_ENDPOINT_URL"] = endpoint
        elif urls[0].startswith("s3:"):
            env["AWS_ENDPOINT_URL"] = simulator.endpoint
        simulator.reset()
        self._stolen_s = stolen_s()
        child = Child(argv, log=self._directory / f"{run}.log", env=env, cwd=REPOSITORY)
        epochs_run: list[Epoch] = []
        try:
            until = time.monotonic() + max(RUN_DEADLINE_S, 2 * epochs * world.unaided_s)
            while len(epochs_run) < epochs:
                running = child.running
                lines = report.read_text().splitlines(keepends=True) if report.exists() else []
                new = [line for line in lines[len(epochs_run) :] if line.endswith("\n")]
                epochs_run += [self._epoch(run, json.loads(line), simulator.reset()) for line in new]
                if len(epochs_run) < epochs and (not running or time.monotonic() > until):
                    raise RunFailed(f"{run} failed, or took too long:\n{child.log_tail()}")
                time.sleep(POLL_S)
        finally:
            child.stop()
        return epochs_run

    def _epoch(self, run: str, line: dict[str, Any], counts: Counts) -> Epoch:
        epoch = Epoch(**line, counts=counts)
        if (epoch.samples, epoch.digest) != (self.world.samples, self.digest):
            raise RunFailed(f"{run} read {epoch.samples} samples of {self.world.samples}, or other bytes than written")
        before, self._stolen_s = self._stolen_s, stolen_s()
        # Where this is much, the epoch cannot be compared with others: reads then wait for a core, too.
        self._progress(
            f"{run}: waited {epoch.wait_s:.2f} s of {epoch.took_s:.1f} s ({epoch.first_s:.2f} s for the first batch), "
            f"{counts.body_bytes / 2**20:.0f} MiB from the bucket in {counts.gets} GETs; the host took "
            f"{self._stolen_s - before:.1f} s of the cores"
        )
        return epoch


def _object_bytes(world: World, number: int) -> tuple[bytes, int]:
    """An object, and the sum of its samples' CRCs."""
    count = world.object_bytes // world.sample_bytes
    samples = [random.Random(number * count + i).randbytes(world.sample_bytes) for i in range(count)]
    digest = sum(map(zlib.crc32, samples))
    if world.kind != "shards":
        return samples[0], digest
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as tar:
        for index, sample in enumerate(samples):
            member = tarfile.TarInfo(f"{number:06d}{index:04d}.bin")
            member.size = len(sample)
            tar.addfile(member, io.BytesIO(sample))
    return into.getvalue(), digest


@contextlib.contextmanager
def _trace(proxy: ServedProxy, file: Path) -> Iterator[None]:
    """Writes the proxy's metrics every now and then, as lines of JSON."""
    ended = threading.Event()

    def follow() -> None:
        with file.open("w", buffering=1) as out:
            while not ended.wait(TRACE_S):
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{proxy.admin}/metrics") as answer:
                    lines = answer.read().decode().splitlines()
                    found = dict(line.rsplit(" ", 1) for line in lines if line.startswith("outrider_"))
                    out.write(json.dumps({"at": time.monotonic(), **found}) + "\n")

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
