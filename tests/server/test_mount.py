"""`outrider mount` with a real kernel, by rclone and by its own client; left out where FUSE is not to be had."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.adapters.origin.endpoint import Endpoint
from outrider.cli.mount.missing import complaint, facts
from outrider.cli.mount.mounting import is_mounted
from outrider.cli.mount.running_proxy import Who, asked
from outrider.core.cache.freshness import Freshness
from outrider.mount.listed import Version
from outrider.mount.plain_gets import PlainGets
from outrider.mount.target import Target
from tests.support.child import program
from tests.support.command import Command
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from tests.support.bucket import Bucket

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
        there = asked(proxy.endpoint, {})
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


async def test_bytes_come_without_a_signature_where_none_is_asked_for(bucket: Bucket, tmp_path: Path) -> None:
    # Strangers may read buckets whose names begin so.
    name = bucket.make_bucket("open-plain")
    client = bucket.client()
    etag = client.put_object(Bucket=name, Key="a b/0.jpg", Body=IMAGE)["ETag"].strip('"')
    client.close()

    async def came(gets: PlainGets, start: int, size: int) -> bytes:
        target = Target(size)
        await gets.fill(target, "a b/0.jpg", start, Version(len(IMAGE), etag, is_settled=True))
        return bytes(target.bytes[: target.came])

    def gets(proxy: Proxy) -> PlainGets:
        return PlainGets(Endpoint.at(proxy.endpoint, "eu-west-1"), name, connections=2, reply_s=60.0)

    with Proxy(bucket) as proxy:
        plain = gets(proxy)
        for _ in ("from the bucket", "from the cache"):
            assert await came(plain, 0, len(IMAGE)) == IMAGE
            assert await came(plain, 1000, 500) == IMAGE[1000:1500]
        plain.close()
    clients = tmp_path / "clients.toml"
    clients.write_text(CLIENTS)
    with Proxy(bucket, auth="sigv4", clients=clients) as proxy:
        plain = gets(proxy)
        assert await came(plain, 0, len(IMAGE)) == b""
        plain.close()
    clients.write_text(f'{CLIENTS}[[client]]\nanonymous = true\ngrants = [{{bucket = "{name}", access = "read"}}]\n')
    with Proxy(bucket, auth="sigv4", clients=clients) as proxy:
        plain = gets(proxy)
        # Strangers are served past the cache, so the mount signs from then on.
        assert await came(plain, 0, len(IMAGE)) == IMAGE
        assert await came(plain, 0, len(IMAGE)) == b""
        plain.close()
