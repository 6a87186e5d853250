"""Loads that measure the receiving path: an origin without limits, so that the proxy itself is the bottleneck.

The origin of most of them is nginx with static files on the tmpfs, over http and over https. Beside Outrider runs nginx
as a cache, which receives, writes and sends in C.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Protocol, Self

from boto3.s3.transfer import TransferConfig

from outrider_sdk import Client
from tests.bench import clients
from tests.bench.clients import Took
from tests.bench.loads import Load, Run
from tests.bench.targets import (
    DIRECT,
    NGINX,
    NGINX_CACHE,
    OUTRIDER,
    RCLONE,
    STATIC,
    Direct,
    NginxCache,
    NginxStatic,
    Outrider,
    Rclone,
    Target,
)
from tests.bench.world import NAME, BenchError, Plan, World
from tests.support.bucket import Bucket
from tests.support.child import Child, free_ports, program, scratch_directory
from tests.support.conditions import Counts
from tests.support.simulator import SimulatorProcess
from tests.support.tls import Certificate, certify

ONE_CORE, TWO_CORES, REVERSE = "Outrider, one core", "Outrider, two cores", "nginx reverse proxy"
BATCHES = "Outrider, batches"
# As many as one batch of a DataLoader.
_SAMPLES, _SAMPLE_BYTES = 256, 10_000
_SMALLEST_BYTES, _LARGEST_BYTES = 4_000, 100_000
_PART_BYTES = 16 * 1024 * 1024
_PARTS_AT_ONCE = 4
# No block is admitted: all bytes pass by the cache.
_NO_CACHE = ("--policy", "none", "--cache-size", "4KiB")
_TMPFS = Path("/dev/shm")
_READY_DEADLINE_S = 60.0


class Origin(Protocol):
    """The part of `SimulatorProcess` that a world needs of its origin."""

    endpoint: str

    def reset(self) -> Counts: ...

    def counts(self) -> Counts: ...

    def set_conditions(self, **knobs: Any) -> None: ...


class Unlimited:
    """An origin at its own speed. Its traffic is not counted: `bucket_bytes` is 0."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def reset(self) -> Counts:
        return self.counts()

    def counts(self) -> Counts:
        return Counts({}, 0, 0, 0, 0)

    def set_conditions(self, **_: Any) -> None:
        pass


class Files:
    """nginx with the world's objects as static files below `directory`; over https where there is a certificate."""

    def __init__(self, directory: Path, certificate: Certificate | None = None) -> None:
        self.directory = directory
        self.root = directory / "files"
        self._certificate = certificate
        (self.port,) = free_ports(1)
        self._child: Child | None = None

    @property
    def endpoint(self) -> str:
        return f"{'http' if self._certificate is None else 'https'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        tls = ""
        if (certificate := self._certificate) is not None:
            tls = f"listen 127.0.0.1:{self.port} ssl; ssl_certificate {certificate.chain};"
            tls += f"ssl_certificate_key {certificate.key}; ssl_session_cache shared:all:10m;"
        listen = tls or f"listen 127.0.0.1:{self.port};"
        # rclone looks objects up in a listing, with or without a slash after the bucket.
        listing = f"location ~ ^/{NAME}/?$ {{ default_type application/xml; try_files /list.xml =404; }}"
        buckets = "location = / { default_type application/xml; try_files /buckets.xml =404; }"
        server = f"{listen} root {self.root}; {buckets} {listing}"
        config = self.directory / "origin.conf"
        text = NGINX.format(directory=self.directory, http="open_file_cache max=10000 inactive=1h;", server=server)
        config.write_text(("user root;\n" if os.geteuid() == 0 else "") + text)
        argv: list[str | Path] = [program("nginx"), "-p", self.directory, "-e", self.directory / "log", "-c", config]
        self._child = Child(argv, log=self.directory / "origin-log", cwd=self.directory)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child is not None
        self._child.stop()

    def fill(self, world: World) -> None:
        def write(key: str, body: bytes) -> None:
            path = self.root / NAME / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)

        world.each_object(write)
        (self.root / "list.xml").write_text(_list_xml(world.sizes))
        (self.root / "buckets.xml").write_text(_BUCKETS_XML)


_BUCKETS_XML = (
    "<ListAllMyBucketsResult><Owner><ID>0</ID></Owner><Buckets><Bucket>"
    f"<Name>{NAME}</Name><CreationDate>2026-01-01T00:00:00.000Z</CreationDate>"
    "</Bucket></Buckets></ListAllMyBucketsResult>"
)


def _list_xml(sizes: dict[str, int]) -> str:
    """A LIST of all objects."""
    rows = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;0&quot;</ETag>"
        f"<Size>{size}</Size></Contents>"
        for key, size in sizes.items()
    )
    head = '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>false</IsTruncated>'
    return f"{head}<Name>{NAME}</Name><Prefix></Prefix>{rows}</ListBucketResult>"


class LineWorld(World):
    """Objects of one kind of load, and an origin without limits. `tmpfs`: where its targets keep their caches."""

    def __init__(
        self, plan: LinePlan, directory: Path, bucket: Bucket, origin: Origin, sizes: dict[str, int],
        *, authority: Path | None = None, far: bool = False, outrider_flags: list[str] | None = None,
    ) -> None:  # fmt: skip
        """`far`: a first byte takes as long as from a bucket over a network."""
        super().__init__(Plan(), directory, bucket, origin, outrider_flags or [])  # type: ignore[arg-type]
        self.line = plan
        self.authority = authority
        self._sizes = sizes
        self._far = far

    @property
    def sizes(self) -> dict[str, int]:
        return self._sizes

    def far_away(self) -> None:
        if self._far:
            super().far_away()


@dataclass(frozen=True, slots=True)
class LinePlan:
    """The amount of data."""

    objects: int = 16
    object_bytes: int = 128 * 1024 * 1024
    smalls: int = 1200
    hit_bytes: int = 64 * 1024 * 1024
    upload_bytes: int = 600 * 1024 * 1024
    wrk_s: int = 3
    batches: int = 100
    # Each is as many reads as a batch.
    singles: int = 8


SHORT = LinePlan(
    objects=2,
    object_bytes=17 * 1024 * 1024,
    smalls=24,
    hit_bytes=1024 * 1024,
    upload_bytes=34 * 1024 * 1024,
    wrk_s=1,
    batches=2,
    singles=1,
)


# -- targets -----------------------------------------------------------------------------------------------------


class LineOutrider(Outrider):
    def env(self) -> dict[str, str]:
        world = self.world
        assert isinstance(world, LineWorld)
        authority = {} if world.authority is None else {"AWS_CA_BUNDLE": str(world.authority)}
        return super().env() | authority


class OneCore(LineOutrider):
    """The server may run on one core; the clients and the origin have both."""

    name, slug, peer = ONE_CORE, "outrider-one-core", False
    cores: ClassVar[str] = "0"

    def argv(self) -> list[str | Path]:
        return [program("taskset"), "--cpu-list", self.cores, *super().argv()]


class TwoCores(OneCore):
    name, slug = TWO_CORES, "outrider-two-cores"
    cores = "0,1"


class Batched(LineOutrider):
    """Its clients read by batches."""

    name, slug, peer = BATCHES, "outrider-batches", False


class Reverse(NginxStatic):
    """nginx hands requests on as they come, and keeps nothing. Signatures are the clients', and hold for their Host."""

    name, slug, peer, caches = REVERSE, "nginx-reverse", False, False

    def http(self) -> str:
        address = self.world.simulator.endpoint.removeprefix("http://")
        return f"upstream origin {{ server {address}; keepalive 64; }}"

    def server(self) -> str:
        return """location / {
            proxy_pass http://origin;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_request_buffering off;
            client_max_body_size 0;
        }"""

    def populate(self) -> None:
        pass


ALL: tuple[type[Target], ...] = (
    LineOutrider,
    OneCore,
    TwoCores,
    Batched,
    Direct,
    Rclone,
    NginxCache,
    Reverse,
    NginxStatic,
)


# -- loads -------------------------------------------------------------------------------------------------------


def _cold(readers: int, objects: int) -> Run:
    def run(world: World, target: Target) -> Took:
        assert isinstance(world, LineWorld)
        keys = _big_keys(world.line)[:objects]
        urls = [target.url(key) for key in keys]
        return clients.curl(urls, world.line.object_bytes, readers, authority=world.authority)

    return run


def _small(world: World, target: Target) -> Took:
    return clients.one_by_one_of({target.url(key): size for key, size in world.sizes.items() if key != "probe"}, 8)


def _hits(key: str, extent: tuple[int, int] | None) -> Run:
    def run(world: World, target: Target) -> Took:
        assert isinstance(world, LineWorld)
        size = world.sizes[key] if extent is None else extent[1] - extent[0]
        return clients.wrk_fixed(target.url(key), extent, size, connections=16, seconds=world.line.wrk_s)

    return run


def _upload(world: World, target: Target) -> Took:
    assert isinstance(world, LineWorld)
    assert target.endpoint is not None
    client = world.bucket.client(target.endpoint, max_pool_connections=_PARTS_AT_ONCE)
    piece = Random(1).randbytes(1024 * 1024)  # it cannot make 600 MB at once
    body = io.BytesIO(piece * (world.line.upload_bytes // len(piece)))
    config = TransferConfig(multipart_chunksize=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
    begun = time.monotonic()
    client.upload_fileobj(body, NAME, "checkpoint.pt", Config=config)
    seconds = time.monotonic() - begun
    size = client.head_object(Bucket=NAME, Key="checkpoint.pt")["ContentLength"]
    client.close()
    return Took(seconds, size, 1)


def _samples(world: World, target: Target) -> Took:
    """One process reads all samples again and again: by the SDK's batches, or one after the other by boto3."""
    assert isinstance(world, LineWorld)
    assert target.endpoint is not None
    keys = _sample_keys()
    if isinstance(target, Batched):
        rounds, batches = world.line.batches, Client(target.endpoint)
        begun = time.monotonic()
        sizes = [
            len(body) for _ in range(rounds) for _, body in batches.get_batch(NAME, keys) if isinstance(body, bytes)
        ]
        seconds = time.monotonic() - begun
    else:
        rounds, client = world.line.singles, world.bucket.client(target.endpoint)
        begun = time.monotonic()
        sizes = [len(client.get_object(Bucket=NAME, Key=key)["Body"].read()) for _ in range(rounds) for key in keys]
        seconds = time.monotonic() - begun
        client.close()
    if sizes != [_SAMPLE_BYTES] * rounds * len(keys):
        raise BenchError(f"{len(sizes)} samples of {sum(sizes)} bytes, not {rounds * len(keys)}")
    return Took(seconds, sum(sizes), len(sizes))


@dataclass(frozen=True, slots=True)
class LineLoad(Load):
    """`kind`: which world it runs in, see `world_of`."""

    kind: str = "http"


_COLD = (OUTRIDER, DIRECT, RCLONE, NGINX_CACHE)
_HITS = (OUTRIDER, STATIC)


def _line(kind: str, readers: int, objects: int, targets: tuple[str, ...] = _COLD) -> LineLoad:
    title = f"cold objects over {kind.replace('-disk', ', cache on disk')}, readers: {readers} (curl)"
    return LineLoad(f"line-{kind}-{readers}", title, "mb_s", targets, NGINX_CACHE, _cold(readers, objects), kind=kind)


LOADS: tuple[LineLoad, ...] = (
    _line("http", 1, 2), _line("http", 4, 8), _line("http", 16, 16),
    _line("https", 1, 2), _line("https", 4, 8), _line("https", 16, 16, (*_COLD, ONE_CORE, TWO_CORES)),
    _line("http-disk", 4, 8), _line("https-disk", 4, 8),
    LineLoad("line-small", "first pass over objects of 4 to 100 kB, 8 threads", "req_s",
             (OUTRIDER, DIRECT, NGINX_CACHE), NGINX_CACHE, _small, kind="small"),
    LineLoad("hit-4k", "hits of 4 KiB, 16 connections (wrk, fixed header)", "req_s", _HITS, STATIC,
             _hits("big", (0, 4096)), lambda _: ["big", "small"], kind="hit"),
    LineLoad("hit-64k", "hits of 64 KiB, 16 connections (wrk, fixed header)", "req_s", _HITS, STATIC,
             _hits("big", (0, 65_536)), lambda _: ["big", "small"], kind="hit"),
    LineLoad("hit-50kb", "hits of whole objects of 50 kB, 16 connections (wrk, fixed header)", "req_s", _HITS, STATIC,
             _hits("small", None), lambda _: ["big", "small"], kind="hit"),
    LineLoad("samples-batch", "warm samples of 10 kB, one process: boto3, and batches of 256 by the SDK", "req_s",
             (OUTRIDER, BATCHES), OUTRIDER, _samples, lambda _: _sample_keys(), kind="samples"),
    LineLoad("upload", "upload of 600 MB in parts of 16 MiB, 4 at once (boto3)", "mb_s", (OUTRIDER, DIRECT, REVERSE),
             DIRECT, _upload, lambda _: [], kind="upload"),
    LineLoad("relay", "objects that are not cached, readers: 4 (curl)", "mb_s", (OUTRIDER, DIRECT, REVERSE),
             REVERSE, _cold(4, 8), kind="relay"),
)  # fmt: skip
NAMES = tuple(load.name for load in LOADS)


def _big_keys(plan: LinePlan) -> list[str]:
    return [f"{chr(ord('a') + number)}.bin" for number in range(plan.objects)]


def _sample_keys() -> list[str]:
    return [f"samples/{number:04}.jpg" for number in range(_SAMPLES)]


def _sizes(kind: str, plan: LinePlan) -> dict[str, int]:
    probe = {"probe": 1000}
    if kind == "small":
        chance = Random(3)
        return probe | {
            f"{chance.randbytes(6).hex()}.jpg": chance.randint(_SMALLEST_BYTES, _LARGEST_BYTES)
            for _ in range(plan.smalls)
        }
    if kind == "samples":
        return probe | dict.fromkeys(_sample_keys(), _SAMPLE_BYTES)
    if kind == "hit":
        return probe | {"big": plan.hit_bytes, "small": 50_000}
    return probe | ({} if kind == "upload" else dict.fromkeys(_big_keys(plan), plan.object_bytes))


@contextlib.contextmanager
def world_of(kind: str, bucket: Bucket, outrider_flags: list[str], *, short: bool) -> Iterator[LineWorld]:
    """The world of the loads of one kind: `http`, `https` (each also with `-disk`: caches on the disk), `small`, `hit`,
    `samples`, `upload`, `relay`. Caches lie on the tmpfs where there is one, so that no disk is measured."""
    plan = SHORT if short else LinePlan()
    with contextlib.ExitStack() as stack:
        tmpfs = _TMPFS if _TMPFS.is_dir() else Path(tempfile.gettempdir())
        files_in = stack.enter_context(scratch_directory("outrider-line-origin-", tmpfs))
        caches = stack.enter_context(scratch_directory("outrider-line-", None if kind.endswith("-disk") else tmpfs))
        sizes = _sizes(kind, plan)
        if kind in ("upload", "samples"):
            bucket.make_bucket(NAME)
            world = LineWorld(plan, caches, bucket, Unlimited(bucket.endpoint), sizes, outrider_flags=outrider_flags)
            world.upload(bucket.endpoint)
            yield world
            return
        if kind == "relay":
            outrider_flags = [*outrider_flags, *_NO_CACHE]
        certificate = certify(files_in) if kind.startswith("https") else None
        files = stack.enter_context(Files(files_in, certificate))
        origin: Origin = Unlimited(files.endpoint)
        if kind == "small":
            origin = stack.enter_context(SimulatorProcess(f"127.0.0.1:{files.port}"))
        world = LineWorld(
            plan, caches, bucket, origin, sizes, authority=None if certificate is None else certificate.authority,
            far=kind == "small", outrider_flags=outrider_flags,
        )  # fmt: skip
        files.fill(world)
        yield world
