"""`outrider warm --nodes`: each address of a host has a cache of its own, and is counted once."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from outrider.cli import with_commands

HOST = "caches.training.svc"
URL = "s3://corpus/train/"


class Cache(ThreadingHTTPServer):
    """The control bucket of a proxy. `state`: how its warm-up ends."""

    def __init__(self, host: str, port: int, state: str = "done") -> None:
        super().__init__((host, port), Control)
        self.state = state
        self.lists: list[bytes] = []


class Control(BaseHTTPRequestHandler):
    server: Cache

    def version_string(self) -> str:
        return "outrider"

    def do_PUT(self) -> None:
        self.server.lists.append(self.rfile.read(int(self.headers["content-length"])))
        self.answer(b"")

    def do_GET(self) -> None:
        objects = {"on_disk": 1, "wanted": 1, "unsized": 0, "failed": 0}
        failures = [] if self.server.state == "done" else [{"object": URL, "error": "no room"}]
        size = {"on_disk": 10, "wanted": 10, "fetched": 10}
        report = {"name": "w", "state": self.server.state, "objects": objects, "bytes": size, "failures": failures}
        self.answer(json.dumps(report).encode())

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(*states: str) -> Iterator[list[Cache]]:
    """A cache at 127.0.0.1, one at 127.0.0.2 and so on, all on one port."""
    caches: list[Cache] = []
    try:
        for number, state in enumerate(states, 1):
            caches.append(Cache(f"127.0.0.{number}", caches[0].server_port if caches else 0, state))
            threading.Thread(target=caches[-1].serve_forever, args=(0.01,), daemon=True).start()
        yield caches
    finally:
        for cache in caches:
            cache.shutdown()
            cache.server_close()


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those that DNS has for the host. Each comes twice, as with several protocols."""
    found: list[str] = []
    usual = socket.getaddrinfo

    def resolve(host: str, port: int, *args: Any, **options: Any) -> Any:
        if host != HOST:
            return usual(host, port, *args, **options)
        if not found:
            raise socket.gaierror("Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in (*found, *found)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return found


def run(port: int, *words: str) -> Result:
    argv = ["warm", URL, "--endpoint", f"http://{HOST}:{port}", *words]
    return CliRunner().invoke(with_commands(["warm", "serve"]), argv)


def test_each_cache_is_warmed_once_and_reported(addresses: list[str]) -> None:
    with served("done", "done") as caches:
        addresses += ["127.0.0.2", "127.0.0.1"]
        port = caches[0].server_port
        done = run(port, "--nodes", "2", "--json")
    assert done.exit_code == 0, done.output
    assert [cache.lists for cache in caches] == [[URL.encode()], [URL.encode()]]
    reports = json.loads(done.stdout)
    assert [report["endpoint"] for report in reports] == [f"http://127.0.0.{number}:{port}" for number in (1, 2)]
    assert "done at 2 of 2 nodes" in done.stderr


def test_fewer_caches_than_nodes_are_warmed_and_fail_the_command(addresses: list[str]) -> None:
    with served("done") as caches:
        addresses.append("127.0.0.1")
        done = run(caches[0].server_port, "--nodes", "3")
    assert done.exit_code == 1
    assert len(caches[0].lists) == 1
    assert "done at 1 of 3 nodes" in done.stderr


def test_a_cache_that_fails_or_is_away_keeps_no_other_from_its_warm_up(addresses: list[str]) -> None:
    with served("failed", "done") as caches:
        addresses += ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        done = run(caches[0].server_port, "--nodes", "1")
    assert done.exit_code == 1
    assert [len(cache.lists) for cache in caches] == [1, 1]
    assert "no room" in done.stderr
    assert f"no Outrider at http://127.0.0.3:{caches[0].server_port}" in done.stderr
    assert "done at 1 of 3 nodes" in done.stderr


def test_a_warm_up_that_no_cache_ends_is_done_at_none(addresses: list[str]) -> None:
    with served("failed") as caches:
        addresses.append("127.0.0.1")
        done = run(caches[0].server_port, "--nodes", "2")
    assert (done.exit_code, "done at none of 2 nodes" in done.stderr) == (1, True)


def test_a_host_without_an_address_is_reported(addresses: list[str]) -> None:
    done = run(9480, "--nodes", "1")
    assert (done.exit_code, "has no address" in done.stderr) == (1, True)


@pytest.mark.parametrize(("words", "said"), [
    (["--no-wait"], "--nodes takes a list"), (["--cancel"], "--nodes takes a list"),
    (["--copies", "all"], "--copies is for the members of a cluster"),
])  # fmt: skip
def test_options_that_nodes_do_not_take_are_refused(words: list[str], said: str) -> None:
    done = run(9480, "--nodes", "2", *words)
    assert (done.exit_code, said in done.stderr) == (2, True)
