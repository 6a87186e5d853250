"""The life of an `outrider serve` process: start, drain and stop, crashes, damaged caches, TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from outrider.adapters.process.listening import bind
from outrider.http.s3.connection import Connection
from tests.support import forkserver
from tests.support.logs import logged
from tests.support.proxy import Proxy, ServedProxy, s3_client
from tests.support.rawhttp import RawConnection, ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.tls import Certificate

MIB = 1024 * 1024
RAMP = (bytes(range(251)) * (20 * MIB // 251 + 1))[: 20 * MIB]
NAME = "lifecycle"
TARGET = f"/{NAME}/ramp"
START_DEADLINE_S = 60


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, {"ramp": RAMP})


def _has_ipv6() -> bool:
    try:
        bind("::1", 0).close()
    except OSError:
        return False
    return True


def test_all_addresses_are_those_of_both_families(bucket: Bucket, tmp_path: Path) -> None:
    """A pod's address may be of either."""
    (tmp_path / "clients.toml").write_text('[[client]]\naccess_key = "A"\nsecret_key = "B"\n')
    settings: dict[str, Any] = {
        "listen": "[::]:0",
        "admin": "[::]:0",
        "auth": "sigv4",
        "clients": str(tmp_path / "clients.toml"),
    }
    hosts = ["127.0.0.1", *(["::1"] if _has_ipv6() else [])]
    with logged("outrider") as seen, Proxy(bucket, **settings, admin_token="open sesame") as running:
        ports = [int(address.rpartition(":")[2]) for address in (running.outrider.listen, running.outrider.admin)]
        for host in hosts:
            assert [ask((host, port), "GET", "/healthz").status for port in ports] == [403, 200]
    # Not ::ffff:127.0.0.1: a log of one family stays as it was.
    assert {vars(record)["address"] for record in seen if "address" in vars(record)} == set(hosts)


def test_a_retired_setting_is_one_warning_and_no_more(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("workers = 2\n")
    with ServedProxy(bucket, tmp_path, workers="4", config=str(tmp_path / "settings.toml")) as proxy:
        proxy.settle()
    warnings = [line for line in proxy.lines() if line["level"] in ("warning", "error")]
    assert [(line["event"], line["setting"]) for line in warnings] == [("retired setting ignored", "workers")]


def test_a_start_that_must_fail_names_the_setting_to_change(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("nonsense")
    (tmp_path / "config").write_text("[default]\nca_bundle = /nothing\n")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "outrider-cache").write_text("outrider cache, layout 99\n")
    nonsense = {"tls_cert": str(tmp_path / "file"), "tls_key": str(tmp_path / "file")}
    nothing = {"tls_cert": str(tmp_path / "nothing"), "tls_key": str(tmp_path / "nothing")}
    unwritable = [str(tmp_path / "file" / "cache"), "/proc/outrider", "/dev/null"]
    cases: list[tuple[dict[str, str], dict[str, str], tuple[str, ...]]] = [
        *(({"cache_dir": where}, {}, (where, "--cache-dir")) for where in unwritable),
        ({"cache_dir": str(tmp_path / "cache")}, {}, (str(tmp_path / "cache"),)),
        (nonsense, {}, ("--tls-cert",)),
        (nothing, {}, ("--tls-cert",)),
        ({}, {"AWS_CONFIG_FILE": str(tmp_path / "config")}, ("ca_bundle of the AWS profile=/nothing",)),
        ({}, {"AWS_CA_BUNDLE": str(tmp_path / "nothing")}, ("AWS_CA_BUNDLE",)),
    ]
    for flags, environ, named in cases:
        served = ServedProxy(bucket, tmp_path, **{"cache_dir": str(tmp_path / "unused"), **flags})
        done = forkserver.run(served.argv, env=served.environment | environ, text=True)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert all(words in done.stderr for words in named), done.stderr
    assert (tmp_path / "cache" / "outrider-cache").read_text() == "outrider cache, layout 99\n"


@pytest.fixture
def tls(bucket: Bucket, certificate: Certificate) -> Iterator[tuple[Proxy, Any]]:
    with Proxy(bucket, tls_cert=certificate.chain, tls_key=certificate.key) as proxy:
        client = s3_client(proxy.endpoint, verify=str(certificate.authority))
        yield proxy, client
        client.close()


def test_a_tls_reader_that_leaves_is_forgotten(tls: tuple[Proxy, Any]) -> None:
    proxy, client = tls
    client.get_object(Bucket=NAME, Key="ramp")["Body"].close()
    proxy.settle()
    assert client.get_object(Bucket=NAME, Key="ramp")["Body"].read() == RAMP


def only_connection(proxy: Proxy) -> Connection:
    (connection,) = proxy.outrider.server.connections
    assert isinstance(connection, Connection)
    return connection


def test_a_tls_connection_that_is_gone_can_be_reset(tls: tuple[Proxy, Any], certificate: Certificate) -> None:
    """Between the end of the connection and the moment that its protocol is notified: a reply that failed there was
    never counted as ended."""
    proxy, _ = tls
    trusting = ssl.create_default_context(cafile=certificate.authority)
    plain = socket.create_connection(proxy.address, timeout=START_DEADLINE_S)
    with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as client:
        client.sendall(f"HEAD {TARGET} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 200")

        async def ended_and_reset() -> None:
            connection = only_connection(proxy)
            transport = connection.transport
            assert transport is not None
            transport.abort()
            while transport.get_extra_info("socket") is not None:
                await asyncio.sleep(0)
            assert connection.transport is transport, "the server has not been notified of the end"
            connection.wire.reset()

        proxy.on_loop(ended_and_reset)


def test_a_request_that_comes_in_the_moment_of_its_connections_end_is_no_error(bucket: Bucket) -> None:
    errors: list[object] = []
    with Proxy(bucket) as proxy, RawConnection(proxy.address) as client:
        assert client.ask("HEAD", TARGET).status == 200

        async def both() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: errors.append(context))
            connection = only_connection(proxy)
            while connection.has_work:
                await asyncio.sleep(0)
            connection.data_received(f"GET /{NAME}?location HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            connection.connection_lost(None)
            for _ in range(10):
                await asyncio.sleep(0)

        proxy.on_loop(both)
    assert not errors


def test_a_connection_whose_task_ends_is_closed(bucket: Bucket) -> None:
    """The connection is closed, whatever ended the task: otherwise its client would see an open connection that
    never answers, and a stop would see a request under way."""
    with Proxy(bucket) as proxy, RawConnection(proxy.address) as client:
        assert client.ask("HEAD", TARGET).status == 200

        async def end() -> None:
            # aiohttp's task.
            task = only_connection(proxy)._task_handler
            assert task is not None
            task.cancel()

        proxy.on_loop(end)
        assert client.is_closed_by_peer()


def test_an_idle_tls_client_that_sends_no_close_notify_is_cut_at_the_end(
    bucket: Bucket, certificate: Certificate
) -> None:
    trusting = ssl.create_default_context(cafile=certificate.authority)
    with Proxy(bucket, tls_cert=certificate.chain, tls_key=certificate.key) as proxy:
        plain = socket.create_connection(proxy.address, timeout=START_DEADLINE_S)
        idle = trusting.wrap_socket(plain, server_hostname="127.0.0.1")
        idle.sendall(f"HEAD {TARGET} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert idle.recv(4096).startswith(b"HTTP/1.1 200")
        proxy.stop()
        # The end of the connection is awaited below TLS, not the close_notify.
        with socket.socket(fileno=idle.detach()) as below:
            below.settimeout(START_DEADLINE_S)
            while below.recv(4096):
                pass


def test_plain_http_on_the_tls_port_is_cut(tls: tuple[Proxy, Any]) -> None:
    proxy, client = tls
    with RawConnection(proxy.address) as connection:
        connection.send(f"GET {TARGET} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert connection.is_closed_by_peer()
    assert client.head_object(Bucket=NAME, Key="ramp")


def test_a_cache_in_memory_hits_and_leaves_nothing(bucket: Bucket) -> None:
    with Proxy(bucket, cache_dir="memory", cache_size="64MiB") as proxy:
        for _ in range(2):
            answer = ask(proxy.address, "GET", TARGET)
            assert answer.body == RAMP
            proxy.settle()
        assert answer.headers["x-cache"] == "HIT"
        directory = proxy.outrider.store.disks[0].directory
        assert directory.root.is_dir()
        assert ask(proxy.address, "PUT", f"/{NAME}/written", [("content-length", "1")], b"x").status == 200
        assert not directory.touched.exists(), "no later start needs the names that were written"
    assert not directory.root.exists()


def test_an_interrupt_amid_the_imports_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    done = subprocess.run(
        [sys.executable, "-m", "outrider", "serve"], env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
