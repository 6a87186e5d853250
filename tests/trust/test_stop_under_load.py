"""Shutdown under load: requests end whole or break visibly, and the next start has all cached blocks."""

from __future__ import annotations

import contextlib
import http.client
import random
import signal
import socket
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pytest

from outrider.adapters.disk import index_snapshot
from tests.support.conditions import Fault, FaultKind
from tests.support.fakes import ramp
from tests.support.proxy import Proxy, ServedProxy, s3_client
from tests.support.rawhttp import RawConnection, ask, request
from tests.support.trials import SCALE, Trials, rounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from outrider.core.cache.block_file import BlockMeta
    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

MIB = 1024 * 1024
NAME = "stops"
DATA = ramp(20 * MIB)
TARGET = f"/{NAME}/large"


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    client.put_object(Bucket=NAME, Key="large", Body=DATA)
    client.close()


def served(bucket: Bucket, tmp_path: Path, origin: str | None = None, drain_s: float = 3600.0, **flags: str) -> Any:
    config = tmp_path / "config.toml"
    config.write_text(f"drain_s = {drain_s}\n")
    return ServedProxy(bucket, tmp_path, origin, config=str(config), prefetch="off", **flags)


def begun_read(proxy: ServedProxy, open_ones: contextlib.ExitStack) -> http.client.HTTPResponse:
    """A read of the large object. The client has read a part of the body, and reads no more for now."""
    connection = open_ones.enter_context(RawConnection(proxy.address))
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    connection.send(request("GET", TARGET))
    answer = connection.read_head()
    assert answer.read(MIB) == DATA[:MIB]
    return answer


def begun_write(proxy: ServedProxy, key: str, open_ones: contextlib.ExitStack) -> RawConnection:
    """A write of four bytes, of which none has been sent yet."""
    connection = open_ones.enter_context(RawConnection(proxy.address))
    connection.send(request("PUT", f"/{NAME}/{key}", [("content-length", "4"), ("expect", "100-continue")]))
    assert connection.read_line().startswith(b"HTTP/1.1 100")
    connection.read_line()
    return connection


def readiness(proxy: ServedProxy) -> int:
    try:
        with urllib.request.urlopen(f"{proxy.admin}/readyz", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


def test_requests_under_way_end_whole_and_the_next_start_hits(bucket: Bucket, tmp_path: Path, trials: Trials) -> None:
    with served(bucket, tmp_path) as proxy:
        assert ask(proxy.address, "GET", TARGET).body == DATA
        proxy.settle()
        for _ in range(rounds(1)):
            with contextlib.ExitStack() as open_ones:
                reads = [begun_read(proxy, open_ones) for _ in range(6)]
                upload = begun_write(proxy, "ends", open_ones)
                idle = open_ones.enter_context(RawConnection(proxy.address))
                assert idle.ask("HEAD", TARGET).status == 200
                proxy.send(signal.SIGTERM)
                # From now on no new client is accepted, and idle connections are closed.
                assert idle.is_closed_by_peer()
                assert readiness(proxy) == 503
                with pytest.raises(ConnectionRefusedError):
                    RawConnection(proxy.address)
                whole = [answer.read() == DATA[MIB:] for answer in reads]
                upload.send(b"ends")
                written = upload.read_answer("PUT")
                assert (written.status, written.headers["connection"]) == (200, "close")
            assert proxy.wait() == 0
            assert (proxy.cache_dir / "index").exists(), "there is no snapshot, and the next start has to scan"
            trials.record("stop", "SIGTERM, reads under way", "the right bytes", times=6, lost=whole.count(False))
            trials.record("stop", "SIGTERM, a write under way", "acknowledged")
            assert all(whole)
            proxy.start()
            answer = ask(proxy.address, "GET", TARGET)
            assert (answer.headers["x-cache"], answer.body) == ("HIT", DATA)
            assert ask(proxy.address, "GET", f"/{NAME}/ends").body == b"ends"


@pytest.mark.parametrize("how", ["the grace ends", "a second SIGTERM"])
def test_requests_that_do_not_end_in_time_are_cut_visibly(
    bucket: Bucket, simulator: Simulator, tmp_path: Path, trials: Trials, how: str
) -> None:
    drain_s = 0.2 if how == "the grace ends" else 3600.0
    with served(bucket, tmp_path, simulator.endpoint, drain_s) as proxy:
        assert ask(proxy.address, "GET", TARGET).body == DATA
        proxy.settle()
        for number in range(rounds(1)):
            direct = bucket.client()
            direct.put_object(Bucket=NAME, Key=f"cold-{number}", Body=DATA)
            direct.close()
            simulator.conditions.faults = [Fault(FaultKind.STALL, path_contains="cold")]
            with contextlib.ExitStack() as open_ones:
                # Four bodies come from the disk. One comes from the origin, which is silent. One write does not end.
                warm = [begun_read(proxy, open_ones) for _ in range(4)]
                cold = open_ones.enter_context(RawConnection(proxy.address))
                cold.send(request("GET", f"/{NAME}/cold-{number}"))
                upload = begun_write(proxy, "cut", open_ones)
                upload.send(b"cu")
                proxy.send(signal.SIGTERM)
                if how == "a second SIGTERM":
                    while accepts(proxy):
                        pass
                    proxy.send(signal.SIGTERM)
                assert proxy.wait() == 0
                for read in warm:
                    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                        read.read()
                for connection, method in ((cold, "GET"), (upload, "PUT")):
                    assert is_cut_or_refused(connection, method)
            assert (proxy.cache_dir / "index").exists(), "there is no snapshot, and the next start has to scan"
            simulator.release()
            trials.record("stop", f"SIGTERM, and {how}", "a broken connection", times=6)
            assert len(proxy.lines("stopping with requests under way")) == 1
            assert not [line for line in proxy.lines() if line["level"] == "error" or "traceback" in line]
            proxy.start()
            assert ask(proxy.address, "GET", f"/{NAME}/cut").code == "NoSuchKey"
            answer = ask(proxy.address, "GET", TARGET)
            assert (answer.headers["x-cache"], answer.body) == ("HIT", DATA)
            assert [path.name for path in (proxy.cache_dir / "tmp").iterdir()] == ["descriptors"]


@pytest.mark.parametrize(("method", "cut"), [("GET", "client left"), ("DELETE", "stopped")])
def test_a_request_that_is_cut_before_its_answer_began_is_logged(
    bucket: Bucket, simulator: Simulator, tmp_path: Path, method: str, cut: str
) -> None:
    """Both requests are passed through to the bucket, which is silent. One client leaves before the stop: that ends a
    read, and no write."""
    simulator.conditions.faults = [Fault(FaultKind.LATE, times=None, method=None)]
    with served(bucket, tmp_path, simulator.endpoint, drain_s=0.0) as proxy:
        with RawConnection(proxy.address) as waits, RawConnection(proxy.address) as leaves:
            waits.send(request("GET", f"/{NAME}?list-type=2"))
            leaves.send(request(method, f"/{NAME}/nothing?acl"))
            proxy.wait_until(lambda: proxy.status()["requests"] == 2, "both under way")
            leaves.close()
            for _ in range(2):
                # The reply comes after the work that the closed connection has started.
                assert ask(proxy.address, "GET", "/_outrider/warm/nothing").code == "NoSuchKey"
            proxy.send(signal.SIGTERM)
            assert waits.is_closed_by_peer()
            assert proxy.wait() == 0
        simulator.release()
        logged = [(line["status"], line.get("cut")) for line in proxy.lines("request") if line["status"] is None]
        assert sorted(logged) == sorted([(None, "stopped"), (None, cut)])


def test_the_snapshot_has_all_blocks_even_while_a_reader_outlasts_the_drain(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, trials: Trials
) -> None:
    saving, over, encode = threading.Event(), threading.Event(), index_snapshot.encode

    def encode_during_a_read(blocks: Iterable[BlockMeta], *_: object) -> Iterator[bytes]:
        known = list(blocks)
        saving.set()
        assert over.wait(60)
        yield from encode(known)

    with Proxy(bucket, block_size="1MiB", drain_s="0", prefetch="off") as proxy:
        with RawConnection(proxy.address) as reader:
            reader.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            reader.send(request("GET", TARGET))
            answer = reader.read_head()
            assert answer.read(MIB) == DATA[:MIB]
            monkeypatch.setattr(index_snapshot, "encode", encode_during_a_read)
            with ThreadPoolExecutor(1) as elsewhere:
                stopped = elsewhere.submit(proxy.stop)
                try:
                    assert saving.wait(60)
                    with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
                        assert answer.read() == DATA[MIB:]
                finally:
                    over.set()
                stopped.result()
        monkeypatch.undo()
        proxy.start()
        there = {path.name: path.stat().st_size for path in (proxy.cache_dir / "v2").glob("*/*")}
        trials.record("stop", "a reader who outlasts the drain", "the snapshot has all blocks")
        assert len(there) == len(proxy.outrider.store), there


HANGS = {
    "write tmp:1:hang": "a fill is written",
    "rename v2:1:hang": "a block is put in its place",
    "open v2:1:hang": "a block is opened",
    "write index:1:hang": "the snapshot is written",
    "rename index:1:hang": "the snapshot is put in its place",
}


CUTS = ("the grace ends", "a second SIGTERM")


@pytest.mark.parametrize("how", CUTS)
def test_a_disk_that_does_not_answer_delays_no_stop(bucket: Bucket, tmp_path: Path, trials: Trials, how: str) -> None:
    """In `make test` each moment is cut in one of the two ways, in `make soak` in both."""
    moments = list(HANGS) if SCALE > 1 else list(HANGS)[CUTS.index(how) :: 2]
    with contextlib.ExitStack() as open_ones:
        proxies: list[ServedProxy] = []
        for moment in moments:
            directory = tmp_path / moment.replace(":", " ")
            directory.mkdir()
            proxy = served(bucket, directory, drain_s=0.2 if how == "the grace ends" else 3600.0)
            proxy.argv[proxy.argv.index("outrider")] = "tests.support.kill_points"
            proxy.environment["PYTHONPATH"] += ":."
            if moment.startswith("open"):
                with proxy:
                    assert ask(proxy.address, "GET", TARGET).body == DATA
                    proxy.settle()
            proxy.environment["KILL_POINT"] = moment
            proxies.append(open_ones.enter_context(proxy))
        for proxy in proxies:
            connection = open_ones.enter_context(RawConnection(proxy.address))
            connection.send(request("GET", TARGET))
            if "index" in proxy.environment["KILL_POINT"]:
                assert connection.read_answer().body == DATA
            else:
                proxy.wait_until(partial(proxy.lines, "hangs"), "a call that hangs")
            proxy.send(signal.SIGTERM)
        for proxy in proxies:
            if how == "a second SIGTERM":
                while accepts(proxy):
                    pass
                proxy.send(signal.SIGTERM)
        for moment, proxy in zip(moments, proxies, strict=True):
            assert proxy.wait() == 1, moment
            assert [line["event"] for line in proxy.lines() if line["level"] == "error"] == [
                "stop cut off: something does not answer, the cache disk as a rule"
            ]
            del proxy.environment["KILL_POINT"]
            # The lock went with the process, and half-written files are swept.
            proxy.start()
            assert ask(proxy.address, "GET", TARGET).body == DATA
            proxy.settle()
            assert [path.name for path in (proxy.cache_dir / "tmp").iterdir()] == ["descriptors"]
            trials.record("stop", f"no answer of the disk when {HANGS[moment]}, and {how}", "a stop in time")


def accepts(proxy: ServedProxy) -> bool:
    try:
        RawConnection(proxy.address).close()
    except ConnectionError:
        return False
    return True


def is_cut_or_refused(connection: RawConnection, method: str) -> bool:
    try:
        return connection.read_answer(method).status >= 400
    except (http.client.HTTPException, OSError):
        return True


# -- rolling restart ------------------------------------------------------------------------------------------------


class Service:
    """A stand-in for a Kubernetes Service: it sends each connection to a ready proxy, and does not look into it."""

    def __init__(self, proxies: list[ServedProxy]) -> None:
        self._proxies = proxies
        self._chance = random.Random(1)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._sockets:
                each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        ready = [proxy for proxy in self._proxies if readiness(proxy) == 200]
        try:
            chosen = self._chance.choice(ready)
            target = socket.create_connection(chosen.address, timeout=60)
        except (OSError, IndexError):
            client.close()
            return
        with self._lock:
            self._sockets |= {client, target}
        back = threading.Thread(target=self._copy, args=(target, client), daemon=True)
        back.start()
        self._copy(client, target)
        back.join()
        client.close()
        target.close()
        with self._lock:
            self._sockets -= {client, target}

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(262_144):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def test_a_rolling_restart_under_load_loses_no_request_that_boto3_does_not_repeat(
    bucket: Bucket, tmp_path: Path, trials: Trials
) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        directory.mkdir()
    proxies = [served(bucket, directory, block_size="1MiB") for directory in directories]
    stopping = threading.Event()
    with proxies[0], proxies[1], Service(proxies) as service:
        standard: dict[str, Any] = {"retries": {"mode": "standard"}}

        def load(number: int) -> int:
            chance, done = random.Random(number), 0
            client = s3_client(service.endpoint, **standard)
            while not stopping.is_set():
                if chance.random() < 0.2:
                    client.put_object(Bucket=NAME, Key=f"rolling-{number}", Body=DATA[: done + 1])
                    written = client.get_object(Bucket=NAME, Key=f"rolling-{number}")["Body"].read()
                    # The two proxies have a cache each: the other one may believe the older version for its `ttl`.
                    assert written == DATA[: len(written)]
                else:
                    start = chance.randrange(len(DATA) - MIB)
                    body = client.get_object(Bucket=NAME, Key="large", Range=f"bytes={start}-{start + MIB - 1}")
                    assert body["Body"].read() == DATA[start : start + MIB]
                done += 1
            client.close()
            return done

        with ThreadPoolExecutor(4) as clients:
            under_way = [clients.submit(load, number) for number in range(4)]
            try:
                for _ in range(rounds(1)):
                    for proxy in proxies:
                        proxy.send(signal.SIGTERM)
                        assert proxy.wait() == 0
                        proxy.start()
            finally:
                stopping.set()
            done = sum(client.result() for client in under_way)
        assert done > 0
        trials.record("stop", "a rolling restart under load (calls of boto3, standard retries)", "the right bytes",
                      times=done)  # fmt: skip
