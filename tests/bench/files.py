"""Loads of jobs that open paths: an ImageFolder in random order, and shards that are read as files.

A warm epoch was read before over the same mount, so the kernel may have kept it. The other mounts are those that such a
job would use without Outrider.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random

from tests.bench import clients
from tests.bench.clients import Took
from tests.bench.loads import Load, Run
from tests.bench.targets import JuiceFSMount, OutriderMount, RcloneMount, S3fs, Target
from tests.bench.world import NAME, PROBE, BenchError, Plan, World
from tests.support.bucket import Bucket
from tests.support.child import clean_environment, scratch_directory
from tests.support.simulator import SimulatorProcess

LOCAL = "local files"
_IMAGE_BYTES = 110_000
_CLASSES = 100
_READERS = 8
_SEED = 5
# s3fs reads some forty images a second from a bucket that is far away.
_COLD_PART = 10


@dataclass(frozen=True, slots=True)
class FilesPlan:
    """The amount of data. A cold epoch reads a tenth of the images."""

    images: int = 10_000
    shards: int = 8
    shard_bytes: int = 64 * 1024 * 1024


SHORT = FilesPlan(images=80, shards=2, shard_bytes=9 * 1024 * 1024)


class FilesWorld(World):
    def __init__(
        self, plan: FilesPlan, directory: Path, bucket: Bucket, simulator: SimulatorProcess, flags: list[str]
    ) -> None:
        super().__init__(Plan(), directory, bucket, simulator, flags)
        self.files = plan

    # Kept: who looks up the size of each of ten thousand images would make as many lists of them.
    @cached_property
    def images(self) -> list[str]:
        return [f"train/{number % _CLASSES:03d}/{number:06d}.jpg" for number in range(self.files.images)]

    @cached_property
    def shards(self) -> list[str]:
        return [f"shards/{number:03d}.tar" for number in range(self.files.shards)]

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {
            PROBE: 1000,
            **dict.fromkeys(self.images, _IMAGE_BYTES),
            **dict.fromkeys(self.shards, self.files.shard_bytes),
        }


# -- targets -----------------------------------------------------------------------------------------------------


class RcloneByOutrider(OutriderMount):
    """The same command with rclone as its FUSE client."""

    name, slug = "outrider mount, rclone", "outrider-mount-rclone"
    client = "rclone"

    @classmethod
    def lacks(cls) -> str | None:
        return RcloneMount.lacks()

    def env(self) -> dict[str, str]:
        return super().env() | {"PATH": clean_environment()["PATH"]}


class CachingRcloneMount(RcloneMount):
    """With its cache on disk, as it has to be for a second epoch."""

    def argv(self) -> list[str | Path]:
        cache = ("--vfs-cache-mode", "full", "--vfs-cache-max-size", "100G", "--cache-dir", self.cache)
        return [*super().argv(), *cache, "--attr-timeout", "1h"]


class LocalFiles(Target):
    """The upper limit."""

    name, slug, peer, caches = LOCAL, "local-files", False, False

    @property
    def endpoint(self) -> None:
        return None

    @property
    def session(self) -> None:
        return None

    def start(self) -> None:
        pass

    def url(self, key: str) -> str:
        return f"file://{self.cache}/{key}"

    def populate(self) -> None:
        def write(key: str, body: bytes) -> None:
            path = self.cache / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)

        self.world.each_object(write)


ALL: tuple[type[Target], ...] = (
    OutriderMount, RcloneByOutrider, S3fs, CachingRcloneMount, JuiceFSMount, LocalFiles
)  # fmt: skip


# -- loads -------------------------------------------------------------------------------------------------------


def _images(part: int) -> Run:
    """One of `part` images is read."""

    def run(world: World, target: Target) -> Took:
        assert isinstance(world, FilesWorld)
        keys = world.images[: max(_READERS, len(world.images) // part)]
        return _read(world, target, Random(_SEED).sample(keys, len(keys)))

    return run


def _dropped(world: World, target: Target) -> Took:
    """The images, whose pages the kernel has dropped, as it does when memory is short."""
    assert isinstance(world, FilesWorld)
    for key in world.images:
        file = os.open(target.url(key).removeprefix("file://"), os.O_RDONLY)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
    return _images(1)(world, target)


def _shards(world: World, target: Target) -> Took:
    return _read(world, target, world.shards)


def _read(world: World, target: Target, keys: list[str]) -> Took:
    root = Path(target.url("").removeprefix("file://"))
    # A data set class walks the folder as it is made.
    for folder in {key.partition("/")[0] for key in keys}:
        for _ in os.walk(root / folder):
            pass
    took = clients.files(world, [root / key for key in keys], _READERS)
    if took.bytes != sum(world.sizes[key] for key in keys):
        raise BenchError(f"{took.bytes} bytes were read, not {sum(world.sizes[key] for key in keys)}")
    return took


_EVERY = tuple(target.name for target in ALL)
_MOUNTS = _EVERY[:-1]

LOADS = (
    Load("files-cold", "images as files, first epoch, readers: 8", "req_s", _MOUNTS, S3fs.name, _images(_COLD_PART)),
    Load("files-warm", "images as files, second epoch, readers: 8", "req_s", _EVERY, LOCAL, _images(1),
         lambda world: world.images if isinstance(world, FilesWorld) else [], warmed_anew=True),
    Load("files-dropped", "images as files, pages dropped, readers: 8", "req_s", _MOUNTS, JuiceFSMount.name, _dropped,
         lambda world: world.images if isinstance(world, FilesWorld) else [], warmed_anew=True),
    Load("files-restarted", "images as files, after a new start of the mount, readers: 8", "req_s", _MOUNTS,
         JuiceFSMount.name, _images(1), lambda world: world.images if isinstance(world, FilesWorld) else [],
         warmed_anew=True, restarted=True),
    Load("file-shards-cold", "shards as files, first epoch, readers: 8", "mb_s", _MOUNTS, S3fs.name, _shards),
    Load("file-shards-warm", "shards as files, second epoch, readers: 8", "mb_s", _EVERY, LOCAL, _shards,
         lambda world: world.shards, warmed_anew=True),
)  # fmt: skip
NAMES = tuple(load.name for load in LOADS)


@contextlib.contextmanager
def world_of(bucket: Bucket, flags: list[str], *, images: int | None, short: bool) -> Iterator[FilesWorld]:
    """`images` None: as many as the plan has."""
    plan = SHORT if short else FilesPlan()
    if images is not None:
        plan = FilesPlan(images, plan.shards, plan.shard_bytes)
    with (
        scratch_directory("outrider-files-") as directory,
        SimulatorProcess(bucket.address) as simulator,
    ):
        world = FilesWorld(plan, directory, bucket, simulator, flags)
        bucket.make_bucket(NAME)
        world.upload(bucket.endpoint)
        yield world
