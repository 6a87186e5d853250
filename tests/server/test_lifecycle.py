"""The life of an `outrider serve` process: start, drain and stop, crashes, damaged caches, TLS."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from outrider.adapters.process.listening import bind
from outrider.http.s3.connection import Connection
from tests.support import forkserver
from tests.support.conditions import Fault, FaultKind
from tests.support.logs import logged
from tests.support.proxy import Proxy, ServedProxy, s3_client
from tests.support.rawhttp import RawConnection, ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator
    from tests.support.tls import Certificate

MIB = 1024 * 1024
RAMP = (bytes(range(251)) * (20 * MIB // 251 + 1))[: 20 * MIB]
NAME = "lifecycle"
TARGET = f"/{NAME}/ramp"
START_DEADLINE_S = 60


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    client.put_object(Bucket=NAME, Key="ramp", Body=RAMP)
    client.close()


def refused(served: ServedProxy) -> str:
    """The text on stderr of a start that must fail."""
    done = forkserver.run(served.argv, env=served.environment, text=True)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return str(done.stderr)


def _has_ipv6() -> bool:
    try:
        bind("::1", 0).close()
    except OSError:
        return False
    return True


def test_all_addresses_are_those_of_both_families(bucket: Bucket, tmp_path: Path) -> None:
    """A pod's address may be of either."""
    (tmp_path / "clients.toml").write_text('[[client]]\naccess_key = "A"\nsecret_key = "B"\n')
    told: dict[str, Any] = {
        "listen": "[::]:0",
        "admin": "[::]:0",
        "auth": "sigv4",
        "clients": str(tmp_path / "clients.toml"),
    }
    hosts = ["127.0.0.1", *(["::1"] if _has_ipv6() else [])]
    with logged("outrider") as seen, Proxy(bucket, **told, admin_token="open sesame") as running:
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


def test_a_cache_directory_that_cannot_be_written_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for where in (str(tmp_path / "file" / "cache"), "/proc/outrider", "/dev/null"):
        stderr = refused(ServedProxy(bucket, tmp_path, cache_dir=where))
        assert where in stderr
        assert "--cache-dir" in stderr


def test_a_cache_directory_of_another_format_is_refused_and_left_as_it_is(bucket: Bucket, tmp_path: Path) -> None:
    marker = tmp_path / "cache" / "outrider-cache"
    marker.parent.mkdir()
    marker.write_text("outrider cache, layout 99\n")
    stderr = refused(ServedProxy(bucket, tmp_path))
    assert str(marker.parent) in stderr
    assert marker.read_text() == "outrider cache, layout 99\n"


def test_a_damaged_marker_file_stops_no_start_and_the_cache_is_kept(bucket: Bucket, tmp_path: Path) -> None:
    """Otherwise a pod with such a disk would crash at each start."""
    with ServedProxy(bucket, tmp_path) as proxy:
        assert ask(proxy.address, "GET", TARGET).body == RAMP
        proxy.settle()
    (tmp_path / "cache" / "outrider-cache").write_bytes(b"\xff" * 25)
    with ServedProxy(bucket, tmp_path) as proxy:
        answer = ask(proxy.address, "GET", TARGET)
        assert (answer.body, answer.headers["x-cache"]) == (RAMP, "HIT")
        assert proxy.lines("index ready")[0]["by"] == "scan"
        assert len(proxy.lines("marker file of the cache directory was damaged, and is written anew")) == 1


def test_a_cache_directory_in_use_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    with ServedProxy(bucket, tmp_path) as first:
        stderr = refused(ServedProxy(bucket, tmp_path))
        assert str(first.cache_dir) in stderr
        assert ask(first.address, "GET", TARGET).body == RAMP


def test_a_port_in_use_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for flag in ("listen", "admin"):
            stderr = refused(ServedProxy(bucket, tmp_path, **{flag: f"127.0.0.1:{port}"}))
            assert str(port) in stderr
            assert "in use" in stderr


def test_an_invalid_certificate_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "nonsense").write_text("nonsense")
    for path in ("nonsense", "nothing"):
        flags = {"tls_cert": str(tmp_path / path), "tls_key": str(tmp_path / path)}
        assert "--tls-cert" in refused(ServedProxy(bucket, tmp_path, **flags))


def _readiness(admin: str) -> int:
    try:
        with urllib.request.urlopen(f"{admin}/readyz", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except urllib.error.URLError:
        return 0


def test_sigterm_lets_a_read_under_way_end_whole_and_the_next_start_hits(
    bucket: Bucket, simulator: Simulator, tmp_path: Path
) -> None:
    simulator.conditions.faults = [Fault(FaultKind.STALL, after_bytes=MIB)]
    with ServedProxy(bucket, tmp_path, simulator.endpoint) as served:
        with RawConnection(served.address) as reader, RawConnection(served.address) as idle:
            assert idle.ask("HEAD", "/no-such-bucket-at-all/key").status == 404
            reader.send(f"GET {TARGET} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            head = reader.read_head()
            assert head.read(MIB) == RAMP[:MIB]
            assert _readiness(served.admin) == 200
            served.send(signal.SIGTERM)
            # An idle connection is the first to notice the stop.
            assert idle.is_closed_by_peer()
            assert _readiness(served.admin) in (0, 503)
            with pytest.raises(ConnectionRefusedError):
                RawConnection(served.address)
            simulator.release()
            assert head.read() == RAMP[MIB:]
        assert served.wait() == 0
        assert (served.cache_dir / "index").exists()
        served.start()
        answer = ask(served.address, "GET", TARGET)
        assert (answer.headers["x-cache"], answer.body) == ("HIT", RAMP)
        assert not (served.cache_dir / "index").exists(), "a snapshot is used once"
        served.send(signal.SIGINT)
        assert served.wait() == 0


def test_a_drain_ends_at_its_limit(bucket: Bucket, simulator: Simulator, tmp_path: Path) -> None:
    simulator.conditions.faults = [Fault(FaultKind.STALL, after_bytes=MIB)]
    (tmp_path / "config.toml").write_text("drain_s = 0.2\n")
    with ServedProxy(bucket, tmp_path, simulator.endpoint, config=str(tmp_path / "config.toml")) as served:
        with RawConnection(served.address) as reader:
            reader.send(f"GET {TARGET} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            reader.read_head().read(MIB)
            served.send(signal.SIGTERM)
            assert served.wait() == 0
        assert served.lines("stopping with requests under way")
        assert not [line for line in served.lines() if "traceback" in line]


def test_after_sigkill_the_scan_finds_the_cached_blocks(bucket: Bucket, tmp_path: Path) -> None:
    with ServedProxy(bucket, tmp_path) as served:
        ask(served.address, "GET", TARGET)
        served.settle()
        assert ask(served.address, "GET", TARGET).headers["x-cache"] == "HIT"
        (served.cache_dir / "tmp" / ("0" * 32 + ".7")).write_bytes(b"half a block")
        served.send(signal.SIGKILL)
        assert served.wait() == -signal.SIGKILL
        served.start()
        answer = ask(served.address, "GET", TARGET)
        assert (answer.headers["x-cache"], answer.body) == ("HIT", RAMP)
        assert [path.name for path in (served.cache_dir / "tmp").iterdir()] == ["descriptors"]


def test_a_damaged_block_is_a_miss_and_the_right_bytes(bucket: Bucket, tmp_path: Path) -> None:
    with Proxy(bucket) as proxy:
        ask(proxy.address, "GET", TARGET)
        proxy.settle()
        proxy.stop()
        for block in (proxy.cache_dir / "v2").glob("*/*"):
            with block.open("r+b") as file:
                file.seek(-1, 2)
                file.write(b"!")
        proxy.start()
        assert ask(proxy.address, "GET", TARGET).body == RAMP
        assert proxy.metric("outrider_bad_blocks_total") == 3


def test_reads_outlive_the_cache_directory(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    client = bucket.client()
    for key in ("cold-1", "cold-2", "cold-3"):
        client.put_object(Bucket=NAME, Key=key, Body=RAMP[: 3 * MIB])
    client.close()
    with Proxy(bucket, block_size="1MiB") as proxy:
        ask(proxy.address, "GET", TARGET)
        proxy.settle()  # a block that lands while the tree is removed would make that fail
        shutil.rmtree(proxy.cache_dir)
        for key in ("cold-1", "ramp", "cold-2", "cold-3", "ramp", "cold-1"):
            answer = ask(proxy.address, "GET", f"/{NAME}/{key}")
            assert answer.status == 200
            assert answer.body == (RAMP if key == "ramp" else RAMP[: 3 * MIB])
    warned = [record.getMessage() for record in caplog.records if record.name == "outrider.adapters.disk.disk_threads"]
    assert len(warned) <= 4, f"once for each kind of trouble: {warned}"


@pytest.mark.parametrize("size", ["0", "600KiB", "1028KiB", "3200KiB"])
def test_a_cache_that_is_too_small_relays_the_right_bytes_and_keeps_its_budget(bucket: Bucket, size: str) -> None:
    with Proxy(bucket, cache_size=size, block_size="1MiB") as proxy:
        budget = int(size.removesuffix("KiB")) * 1024
        store = proxy.outrider.store

        def read(offset: int) -> bool:
            with RawConnection(proxy.address) as connection:
                head = f"GET {TARGET} HTTP/1.1\r\nhost: x\r\nrange: bytes={offset}-\r\n\r\n"
                connection.send(head.encode())
                answer, got = connection.read_head(), b""
                while piece := answer.read(256 * 1024):
                    got += piece
                    assert store.used_bytes <= budget
                    assert proxy.on_loop(on_disk) <= budget
            return got == RAMP[offset:]

        async def on_disk() -> int:
            # Reading starts where the budget gives room away: otherwise a block could be counted that is about to go,
            # and then the block that takes its place.
            sizes = 0
            for file in proxy.cache_dir.glob("v2/*/*"):
                try:
                    sizes += file.stat().st_size
                except FileNotFoundError:
                    continue
            return sizes

        with ThreadPoolExecutor(4) as readers:
            assert all(readers.map(read, [0, 5 * MIB + 3, 0, 17 * MIB - 1]))
        proxy.settle()
        assert store.used_bytes <= budget
        assert proxy.metric("outrider_relays_total") > 0 or len(store) > 0


@pytest.fixture
def tls(bucket: Bucket, certificate: Certificate) -> Iterator[tuple[Proxy, Any]]:
    with Proxy(bucket, tls_cert=certificate.chain, tls_key=certificate.key) as proxy:
        client = s3_client(proxy.endpoint, verify=str(certificate.authority))
        yield proxy, client
        client.close()


def test_objects_are_read_and_written_over_tls(tls: tuple[Proxy, Any], bucket: Bucket) -> None:
    proxy, client = tls
    assert proxy.endpoint.startswith("https://")
    for _ in range(2):
        answer = client.get_object(Bucket=NAME, Key="ramp")
        assert answer["Body"].read() == RAMP
        proxy.settle()
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-cache"] == "HIT"
    # Over https boto3 sends aws-chunked with a trailer.
    client.put_object(Bucket=NAME, Key="by-tls", Body=RAMP[: 9 * MIB])
    direct = bucket.client()
    stored = direct.get_object(Bucket=NAME, Key="by-tls")
    assert stored["Body"].read() == RAMP[: 9 * MIB]
    assert stored.get("ContentEncoding", "") == ""
    direct.close()
    assert client.get_object(Bucket=NAME, Key="by-tls", Range="bytes=5-9")["Body"].read() == RAMP[5:10]


def test_a_tls_reader_that_leaves_is_forgotten(tls: tuple[Proxy, Any]) -> None:
    proxy, client = tls
    client.get_object(Bucket=NAME, Key="ramp")["Body"].close()
    proxy.settle()
    assert client.get_object(Bucket=NAME, Key="ramp")["Body"].read() == RAMP


def test_a_tls_connection_that_is_gone_can_be_reset(tls: tuple[Proxy, Any], certificate: Certificate) -> None:
    """Between the end of the connection and the moment that its protocol is told: a reply that failed there was never
    counted as ended."""
    proxy, _ = tls
    trusting = ssl.create_default_context(cafile=certificate.authority)
    plain = socket.create_connection(proxy.address, timeout=START_DEADLINE_S)
    with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as client:
        client.sendall(f"HEAD {TARGET} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 200")

        async def ended_and_reset() -> None:
            (protocol,) = (each for each in proxy.outrider.server.connections if each.peername == plain_name)
            transport = protocol.transport
            assert isinstance(protocol, Connection)
            assert transport is not None
            transport.abort()
            while transport.get_extra_info("socket") is not None:
                await asyncio.sleep(0)
            assert protocol.transport is transport, "the server has not been told of the end"
            protocol.wire.reset()

        plain_name = client.getsockname()
        proxy.on_loop(ended_and_reset)


def test_a_request_that_comes_in_the_moment_of_its_connections_end_is_no_error(bucket: Bucket) -> None:
    errors: list[object] = []
    with Proxy(bucket) as proxy, RawConnection(proxy.address) as client:
        assert client.ask("HEAD", TARGET).status == 200

        async def both() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: errors.append(context))
            (protocol,) = proxy.outrider.server.connections
            assert isinstance(protocol, Connection)
            while not protocol._is_idle():
                await asyncio.sleep(0)
            task = protocol._task_handler
            assert task is not None
            protocol.data_received(f"GET /{NAME}?location HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            protocol.connection_lost(None)
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None

        proxy.on_loop(both)
    assert not errors


def test_a_connection_whose_task_ends_is_closed(bucket: Bucket) -> None:
    """The connection is closed, whatever ended the task: otherwise its client would see an open connection that
    never answers, and a stop would see a request under way."""
    with Proxy(bucket) as proxy, RawConnection(proxy.address) as client:
        assert client.ask("HEAD", TARGET).status == 200

        async def end() -> None:
            (protocol,) = proxy.outrider.server.connections
            assert protocol._task_handler is not None
            protocol._task_handler.cancel()

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


def test_an_origin_behind_https_is_trusted_by_the_bundle_that_aws_tools_use(
    tls: tuple[Proxy, Any], bucket: Bucket, certificate: Certificate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    origin, _ = tls
    with Proxy(bucket, origin.endpoint) as stranger:
        answer = ask(stranger.address, "GET", TARGET)
        assert (answer.status, answer.code) == (503, "ServiceUnavailable")
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    # The variable wins over the profile, and both win over the variable of Python's requests.
    config = tmp_path / "config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    bundle = str(certificate.authority)
    for variables, in_profile in [
        ({"AWS_CA_BUNDLE": bundle, "REQUESTS_CA_BUNDLE": "/nothing"}, "/nothing"),
        ({"REQUESTS_CA_BUNDLE": "/nothing"}, bundle),
        ({"REQUESTS_CA_BUNDLE": bundle}, ""),
    ]:
        config.write_text(f"[default]\nca_bundle = {in_profile}\n")
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with Proxy(bucket, origin.endpoint) as proxy:
                assert ask(proxy.address, "GET", TARGET).body == RAMP


def test_an_invalid_ca_bundle_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    served = ServedProxy(bucket, tmp_path)
    served.environment["AWS_CONFIG_FILE"] = str(tmp_path / "config")
    (tmp_path / "config").write_text("[default]\nca_bundle = /nothing\n")
    assert "ca_bundle of the AWS profile=/nothing" in refused(served)
    served.environment["AWS_CA_BUNDLE"] = str(tmp_path / "nothing")
    assert "AWS_CA_BUNDLE" in refused(served)


def test_plain_http_on_the_tls_port_is_cut(tls: tuple[Proxy, Any]) -> None:
    proxy, client = tls
    with RawConnection(proxy.address) as connection:
        connection.send(f"GET {TARGET} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert connection.is_closed_by_peer()
    assert client.head_object(Bucket=NAME, Key="ramp")


def test_virtual_host_style_names_the_same_objects(bucket: Bucket) -> None:
    with Proxy(bucket, domain=("s3.test", "other.test")) as proxy:
        port = proxy.address[1]
        hosts = [f"{NAME}.s3.test", f"{NAME}.s3.test:{port}", f"{NAME}.other.test", f"{NAME.upper()}.S3.TEST".lower()]
        for host in hosts:
            with RawConnection(proxy.address) as connection:
                connection.send(f"GET /ramp HTTP/1.1\r\nhost: {host}\r\nrange: bytes=5-9\r\n\r\n".encode())
                assert connection.read_answer().body == RAMP[5:10]
        proxy.settle()
        assert ask(proxy.address, "GET", TARGET, [("range", "bytes=5-9")]).headers["x-cache"] == "HIT"
        with RawConnection(proxy.address) as connection:
            connection.send(f"GET /?list-type=2 HTTP/1.1\r\nhost: {NAME}.s3.test\r\n\r\n".encode())
            assert b"<Key>ramp</Key>" in connection.read_answer().body
            connection.send(b"GET / HTTP/1.1\r\nhost: s3.test\r\n\r\n")
            assert b"ListAllMyBucketsResult" in connection.read_answer().body
            connection.send(b"GET /ramp HTTP/1.1\r\nhost: -.s3.test\r\n\r\n")
            assert connection.read_answer().code == "InvalidBucketName"


def test_a_cache_in_memory_hits_and_leaves_nothing(bucket: Bucket) -> None:
    with Proxy(bucket, cache_dir="memory", cache_size="64MiB") as proxy:
        for _ in range(2):
            answer = ask(proxy.address, "GET", TARGET)
            assert answer.body == RAMP
            proxy.settle()
        assert answer.headers["x-cache"] == "HIT"
        where = proxy.outrider.store.disks[0].directory.root
        assert where.is_dir()
    assert not where.exists()


def test_an_interrupt_amid_the_imports_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    done = subprocess.run(
        [sys.executable, "-m", "outrider", "serve"], env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
