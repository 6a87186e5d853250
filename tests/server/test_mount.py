"""`outrider mount` with a real kernel, by rclone and by its own client; left out where FUSE is not to be had."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.adapters.origin.endpoint import Endpoint
from outrider.cli.mount.missing import complaint, facts
from outrider.cli.mount.mounting import is_mounted
from outrider.cli.mount.running_proxy import Who, look_up_proxy
from outrider.core.cache.freshness import Freshness
from outrider.mount.listed import FileVersion
from outrider.mount.plain_gets import PlainGets
from outrider.mount.target import Target
from tests.support.child import program
from tests.support.odd_origin import OddOrigin
from tests.support.oddities import ListETag, ListSize, Oddities
from tests.support.proxy import Command, Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.bucket import Bucket

MIB = 1024 * 1024
IMAGE = bytes(range(251)) * 440
SHARD = bytes(range(251)) * 40_000
CLIENTS = """
[[client]]
name = "reader"
access_key = "AKREADER"
secret_key = "the reader's secret"
grants = [{bucket = "open-*", access = "read"}]
"""


def lacks() -> str | None:
    try:
        program("rclone")
    except FileNotFoundError as error:
        return str(error)
    return complaint(facts())


def child_of(pid: int) -> int:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The name of a process may hold anything, a bracket too.
            if path.read_text().rpartition(")")[2].split()[1] == str(pid):
                return int(path.parent.name)
    raise AssertionError(f"{pid} has no child")


@pytest.mark.skipif(lacks() is not None, reason=str(lacks()))
def test_a_command_reads_files_and_a_mount_whose_client_died_is_gone(bucket: Bucket, tmp_path: Path) -> None:
    name = bucket.make_bucket("mounted")
    client = bucket.client()
    client.put_object(Bucket=name, Key="train/cat/0.jpg", Body=IMAGE)
    client.put_object(Bucket=name, Key="train/big.tar", Body=SHARD)
    client.close()
    command = Command(bucket, tmp_path)
    command.environ["OUTRIDER_ORIGIN"] = bucket.endpoint
    place = tmp_path / "mount"
    place.mkdir()
    with Proxy(bucket, freshness="ttl:7") as proxy:
        there = look_up_proxy(proxy.endpoint, {})
        assert (there.who, there.freshness) == (Who.OUTRIDER, Freshness(7.0))
        words = ("--client", "rclone", "--endpoint", proxy.endpoint, f"s3://{name}/train", place)
        done = command.run("mount", *words, "--", "sh", "-c", f"sha256sum < {place}/cat/0.jpg; exit 3")
    assert (done.returncode, done.stdout.split()[:1]) == (3, [hashlib.sha256(IMAGE).hexdigest()]), done.stderr
    assert not is_mounted(str(place))

    with command.start("mount", f"s3://{name}", place) as process:
        assert process.stderr is not None
        assert "Ctrl-C" in process.stderr.readline()
        assert sorted(path.name for path in (place / "train").iterdir()) == ["big.tar", "cat"]
        assert (place / "train" / "cat" / "0.jpg").read_bytes() == IMAGE
        assert (place / "train" / "big.tar").read_bytes() == SHARD
        with pytest.raises(OSError, match="Read-only"):
            (place / "new").touch()
        os.kill(child_of(process.pid), signal.SIGKILL)
        assert process.wait() == 1
        assert "all reads of the mount fail" in process.stderr.read()
    assert not is_mounted(str(place))


@pytest.mark.skipif(complaint(facts()) is not None, reason=str(complaint(facts())))
@pytest.mark.parametrize(
    ("at", "warning"),
    [
        ("train/", ""),
        ("train/dgo/2026/", "outrider: s3://{name}/train/dgo/2026/ holds no object; s3://{name}/train/ does.\n"),
        ("trian/", "outrider: s3://{name}/trian/ holds no object; s3://{name}/ does.\n"),
        (
            "other/",
            "outrider: s3://{name}/other/ is not listed: there is no bucket {name}: check its name, and the proxy's "
            "--origin\n",
        ),
    ],
)
def test_a_mount_of_nothing_is_reported_with_the_nearest_prefix_that_has_objects(
    bucket: Bucket, tmp_path: Path, at: str, warning: str
) -> None:
    name = bucket.make_bucket("mounted-prefixes")
    client = bucket.client()
    client.put_object(Bucket=name, Key="train/cat/0.jpg", Body=IMAGE)
    client.close()
    if at == "other/":
        name = "no-such-bucket"
    command = Command(bucket, tmp_path)
    command.environ["OUTRIDER_ORIGIN"] = bucket.endpoint
    (tmp_path / "mount").mkdir()
    done = command.run("mount", "--summary", "none", f"s3://{name}/{at}", tmp_path / "mount", "--", "true")
    assert (done.returncode, done.stderr) == (0, warning.format(name=name))


# The command, the proxy that waits for it, and the FUSE client.
NICENESS = """
import os
from pathlib import Path
stats = {path.parent.name: path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat")}
mount = os.getppid()
client = [pid for pid, stat in stats.items() if stat[1] == str(mount) and int(pid) != os.getpid()]
print(*(os.getpriority(os.PRIO_PROCESS, int(pid)) for pid in (os.getpid(), mount, *client)))
"""


@pytest.mark.skipif(complaint(facts()) is not None, reason=str(complaint(facts())))
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may come first")
def test_readers_wait_for_processes_that_come_first(bucket: Bucket, tmp_path: Path) -> None:
    name = bucket.make_bucket("mounted-first")
    command = Command(bucket, tmp_path)
    command.environ["OUTRIDER_ORIGIN"] = bucket.endpoint
    (tmp_path / "mount").mkdir()
    done = command.run("mount", f"s3://{name}", tmp_path / "mount", "--", sys.executable, "-c", NICENESS)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert done.stdout.split() == [str(each) for each in (own, max(-20, own - 10), max(-20, own - 10))], done.stderr


@pytest.mark.skipif(complaint(facts()) is not None, reason=str(complaint(facts())))
def test_files_of_a_cache_on_the_same_machine_are_read_without_a_get(bucket: Bucket, tmp_path: Path) -> None:
    name = bucket.make_bucket("mounted-lent")
    bodies = {"train/0.jpg": IMAGE, "train/1.jpg": IMAGE[::-1], "train/big.tar": SHARD}
    place = tmp_path / "mount"
    place.mkdir()
    command = Command(bucket, tmp_path)
    with Proxy(bucket, freshness="immutable") as proxy:
        client = proxy.client()
        for key, body in bodies.items():
            client.put_object(Bucket=name, Key=key, Body=body)
            assert client.get_object(Bucket=name, Key=key)["Body"].read() == body
        proxy.settle()
        gets = proxy.metric("outrider_requests_total", op="get")
        with command.start("mount", "--endpoint", proxy.endpoint, f"s3://{name}", place) as process:
            assert process.stderr is not None
            assert "Ctrl-C" in process.stderr.readline()
            for _ in ("by a question for each", "by their descriptors"):
                for key, body in bodies.items():
                    assert (place / key).read_bytes() == body
                    with (place / key).open("rb") as file:
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            # A file system that nothing can be written to, as large as its files.
            found = os.statvfs(place)
            assert (found.f_blocks, found.f_bavail) == (-(-sum(map(len, bodies.values())) // found.f_frsize), 0)
            assert proxy.metric("outrider_requests_total", op="get") == gets

            client.put_object(Bucket=name, Key="train/0.jpg", Body=IMAGE * 2)
            with pytest.raises(OSError, match="Stale"):
                (place / "train/0.jpg").read_bytes()
            assert (place / "train/0.jpg").read_bytes() == IMAGE * 2
            process.terminate()
            assert process.wait() == 0
        assert proxy.metric("outrider_requests_total", op="descriptor") > 0


@contextlib.contextmanager
def mounted(bucket: Bucket, origin: OddOrigin, directory: Path) -> Iterator[Path]:
    place = directory / "mount"
    place.mkdir(parents=True)
    command = Command(bucket, directory)
    command.environ["OUTRIDER_ORIGIN"] = origin.endpoint
    with command.start("mount", "--freshness", "immutable", "s3://pets", place) as process:
        assert process.stderr is not None
        assert "Ctrl-C" in process.stderr.readline()
        yield place
        process.terminate()
        assert process.wait() == 0


# In a process of its own: a page fault of a map holds the interpreter, and with it an origin on a thread.
READER = """
import hashlib, mmap, os, sys, tempfile

def by_read(path):
    with open(path, "rb", buffering=0) as file:
        return b"".join(iter(lambda: file.read(1 << 20), b""))

def by_map(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return bytes(mapped)

def by_sendfile(path):
    with open(path, "rb") as file, tempfile.TemporaryFile() as copy:
        while os.sendfile(copy.fileno(), file.fileno(), None, 1 << 20):
            pass
        copy.seek(0)
        return copy.read()

for path in sys.argv[2:]:
    print(hashlib.sha256(globals()[sys.argv[1]](path)).hexdigest(), os.stat(path).st_size)
"""
WAYS = ("by_read", "by_map", "by_sendfile")


def read(way: str, paths: Sequence[Path]) -> list[str]:
    """The digest and the size of each file."""
    argv = [sys.executable, "-c", READER, way, *(str(path) for path in paths)]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout.splitlines()


def shown(body: bytes) -> str:
    return f"{hashlib.sha256(body).hexdigest()} {len(body)}"


LIES = [
    Oddities(list_size=ListSize.SMALLER),
    Oddities(list_size=ListSize.LARGER),
    Oddities(list_size=ListSize.ZERO),
    Oddities(list_size=ListSize.MISSING),
    Oddities(list_etag=ListETag.OTHER),
    Oddities(list_etag=ListETag.MISSING),
    Oddities(list_etag=ListETag.OTHER, list_size=ListSize.SMALLER),
]


@pytest.mark.skipif(lacks() is not None, reason=str(lacks()))
def test_files_are_whole_whatever_a_list_says_of_them(bucket: Bucket, tmp_path: Path) -> None:
    # More than one part of a stream, too.
    cases = [(lie, IMAGE) for lie in LIES] + [(lie, IMAGE * (9 * MIB // len(IMAGE))) for lie in LIES[:2]]
    with OddOrigin().on_thread() as origin:
        for way in WAYS:
            for number, (lie, body) in enumerate(cases):
                origin.put("pets", f"{way}/{number}", body)
                origin.odd_objects["pets", f"{way}/{number}"] = lie
        with mounted(bucket, origin, tmp_path) as place:
            for way in WAYS:
                found = read(way, [place / way / str(number) for number in range(len(cases))])
                for (lie, body), digest in zip(cases, found, strict=True):
                    assert digest == shown(body), (way, lie, len(body))


@pytest.mark.skipif(lacks() is not None, reason=str(lacks()))
def test_a_list_that_was_right_of_such_objects_and_then_is_wrong(bucket: Bucket, tmp_path: Path) -> None:
    wrong = {"longer": (ListSize.SMALLER, IMAGE * 2), "shorter": (ListSize.LARGER, IMAGE[: len(IMAGE) // 2])}
    for name, (size, body) in wrong.items():
        with OddOrigin().on_thread() as origin:
            for number in range(8):
                origin.put("pets", f"true/{number}", IMAGE)
            for number in range(3):
                origin.put("pets", f"wrong/{number}", body)
                # Listed as large as those above.
                origin.odd_objects["pets", f"wrong/{number}"] = Oddities(list_size=size)
            with mounted(bucket, origin, tmp_path / name) as place:
                assert set(read("by_read", sorted((place / "true").iterdir()))) == {shown(IMAGE)}
                paths, heads = [place / "wrong" / str(number) for number in range(3)], origin.count("HEAD")
                assert {path.stat().st_size for path in paths} == {len(IMAGE)}
                assert origin.count("HEAD") == heads, "a LIST is believed"
                if size is ListSize.LARGER:
                    with pytest.raises(OSError, match="Stale"):
                        paths[0].read_bytes()
                assert read("by_read", paths[:1]) == [shown(body)]
                assert read("by_map", paths[1:]) == [shown(body)] * 2, "it is not believed any more"


@pytest.mark.skipif(lacks() is not None, reason=str(lacks()))
def test_directories_of_a_store_that_knows_version_1_of_list_alone(bucket: Bucket, tmp_path: Path) -> None:
    old = Oddities(list_refuses=frozenset(["list-type", "encoding-type"]), list_without_token=True, list_page=3)
    with OddOrigin(old).on_thread() as origin:
        names = [f"{number:02}+ &\u00e4" for number in range(5)]
        for name in names:
            origin.put("pets", f"{name}.jpg", IMAGE)
            origin.put("pets", f"{name}/{name}", IMAGE)
        with mounted(bucket, origin, tmp_path) as place:
            found = sorted(str(path.relative_to(place)) for path in place.rglob("*"))
            assert found == sorted([name + end for name in names for end in (".jpg", "", f"/{name}")])


async def test_bytes_come_without_a_signature_where_none_is_asked_for(bucket: Bucket, tmp_path: Path) -> None:
    # Strangers may read buckets whose names begin so.
    name = bucket.make_bucket("open-plain")
    client = bucket.client()
    etag = client.put_object(Bucket=name, Key="a b/0.jpg", Body=IMAGE)["ETag"].strip('"')
    client.close()

    async def read(gets: PlainGets, start: int, size: int) -> bytes:
        target = Target(size)
        await gets.fill(target, "a b/0.jpg", start, FileVersion(len(IMAGE), etag, is_settled=True))
        return bytes(target.bytes[: target.received])

    def gets(proxy: Proxy) -> PlainGets:
        return PlainGets(Endpoint.at(proxy.endpoint, "eu-west-1"), name, connections=2, reply_s=60.0)

    with Proxy(bucket) as proxy:
        plain = gets(proxy)
        for _ in ("from the bucket", "from the cache"):
            assert await read(plain, 0, len(IMAGE)) == IMAGE
            assert await read(plain, 1000, 500) == IMAGE[1000:1500]
        plain.close()
    clients = tmp_path / "clients.toml"
    clients.write_text(CLIENTS)
    with Proxy(bucket, auth="sigv4", clients=clients) as proxy:
        plain = gets(proxy)
        assert await read(plain, 0, len(IMAGE)) == b""
        plain.close()
    clients.write_text(f'{CLIENTS}[[client]]\nanonymous = true\ngrants = [{{bucket = "{name}", access = "read"}}]\n')
    with Proxy(bucket, auth="sigv4", clients=clients) as proxy:
        plain = gets(proxy)
        # Strangers are served past the cache, so the mount signs from then on.
        assert await read(plain, 0, len(IMAGE)) == IMAGE
        assert await read(plain, 0, len(IMAGE)) == b""
        plain.close()
