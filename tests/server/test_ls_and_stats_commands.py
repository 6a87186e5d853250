"""`outrider ls` and `outrider stats` before a running proxy, one with a token, and none."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from outrider_sdk import Client, ProxyNotFound
from tests.support.child import free_ports
from tests.support.proxy import Command, Proxy
from tests.support.rawhttp import ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket

NAME = "look"
TOKEN = "open-sesame-7"
SHARD = bytes(range(250)) * 400
HOSTILE = "red\x1b[31m[bold]/a.tar"


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, {f"train-{number:06d}.tar": SHARD for number in range(4)} | {HOSTILE: SHARD})


@pytest.fixture
def command(bucket: Bucket, tmp_path: Path) -> Command:
    return Command(bucket, tmp_path)


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    # A verification would ask for checksums in the background, and tests here count the requests to the bucket.
    with Proxy(bucket, price_per_gb="100", verify_origin="off") as running:
        for key in [f"train-{number:06d}.tar" for number in range(4)] * 2 + [HOSTILE]:
            assert ask(running.address, "GET", f"/{NAME}/{quote(key)}").status == 200
            running.settle()
        yield running


def test_ls_shows_the_cached_part_of_each_dataset(proxy: Proxy, command: Command) -> None:
    done = command.run("ls", "--admin", proxy.outrider.admin)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "train" in line]
    assert line.split()[:6] == [f"s3://{NAME}/train-{{}}.tar", "4", "400", "kB", "100", "%"]
    assert "50 %" in line
    assert r"s3://look/red\x1b[31m[bold]/*.tar" in done.stdout, "terminal control characters are escaped"
    assert "\x1b" not in done.stdout
    listed = json.loads(command.run("ls", "--json", "--admin", proxy.outrider.admin, "train").stdout)
    (dataset,) = listed["datasets"]
    assert (dataset["requests"], dataset["bucket_gets"], dataset["cached"], dataset["shards"]) == (8, 4, 1.0, "RRRR")
    assert "has 'nothing'" in command.run("ls", "--admin", proxy.outrider.admin, "nothing").stdout


def test_a_warm_up_is_shown_as_spent_ahead_until_it_is_repaid(bucket: Bucket, command: Command) -> None:
    with Proxy(bucket, verify_origin="off") as proxy:
        command.environ["OUTRIDER_STATUS_URL"] = proxy.admin
        Client(proxy.endpoint, proxy.admin).warm(f"s3://{NAME}/train-{{000000..000003}}.tar")
        listed = command.run("ls").stdout
        assert f"s3://{NAME}/train-{{}}.tar: spent 400 kB ahead; repays from epoch 2\n" in listed
        assert "-400 kB" not in listed
        for _ in range(2):
            for number in range(4):
                assert ask(proxy.address, "GET", f"/{NAME}/train-{number:06d}.tar").status == 200
                proxy.settle()
        assert "spent" not in command.run("ls").stdout


def test_stats_shows_waiting_times_and_savings(proxy: Proxy, command: Command) -> None:
    done = command.run("stats", "--once", "--admin", proxy.outrider.admin)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(re.match(r"disk: hits .*/s +400 kB", line) for line in lines), done.stdout
    assert any(re.match(r"out of the bucket .*/s +500 kB", line) for line in lines), done.stdout
    assert any("saved" in line and "400 kB, 4 GETs and HEADs, $0.04" in line for line in lines)
    assert any(re.search(r"cache size +would hit: 537 MB \d+ %", line) for line in lines), done.stdout
    assert "s3://look/train-{}.tar" in done.stdout
    assert "\x1b" not in done.stdout
    stats = json.loads(command.run("stats", "--json", "--admin", proxy.outrider.admin).stdout)
    assert stats["saved"]["gets"] == 4
    assert {reader["dataset"] for reader in stats["readers"]} == {"train-{}.tar", "red\x1b[31m[bold]/*.tar"}


def test_stats_is_live_on_a_terminal_until_it_is_interrupted(proxy: Proxy, command: Command) -> None:
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "outrider", "stats", "--admin", proxy.outrider.admin, "--every", "0.2"]
    environ = {**command.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(argv, env=environ, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        try:
            seen = read_until(ours, b"400 kB")
            ask(proxy.address, "GET", f"/{NAME}/train-000000.tar")
            seen = read_until(ours, b"500 kB, 5 GETs")
            process.send_signal(signal.SIGINT)
            drained = threading.Thread(target=drain, args=(ours,), daemon=True)
            drained.start()
            assert process.wait(60) == 0, seen
        finally:
            process.kill()
    drained.join(60)
    os.close(ours)


def read_until(terminal: int, words: bytes) -> bytes:
    seen = b""
    while words not in seen:
        seen += os.read(terminal, 65536)
    return seen


def drain(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        pass  # a terminal reports its end this way


def test_a_command_finds_the_proxy_or_says_what_to_do(bucket: Bucket, command: Command) -> None:
    (port,) = free_ports(1)
    for name in ("ls", "stats"):
        done = command.run(name, "--admin", f"127.0.0.1:{port}")
        assert (done.returncode, done.stdout, "outrider serve" in done.stderr) == (1, "", True)
        assert "Traceback" not in done.stderr
        assert command.run(name, "--admin", "nonsense").returncode == 2
    with Proxy(bucket, admin_token=TOKEN) as proxy:
        # Inside `outrider run`, or where it is named so.
        command.environ["OUTRIDER_STATUS_URL"] = proxy.admin
        refused = command.run("stats", "--once")
        assert (refused.returncode, "OUTRIDER_ADMIN_TOKEN" in refused.stderr) == (1, True)
        command.environ["OUTRIDER_ADMIN_TOKEN"] = TOKEN
        done = command.run("stats", "--once")
        assert done.returncode == 0, done.stderr
        assert TOKEN not in done.stdout


@pytest.mark.parametrize("answer", [b"-ERR unknown command\r\n", b"HTTP/1.0 200 OK\r\n\r\n<html>"])
def test_another_server_is_not_taken_for_a_proxy(command: Command, answer: bytes) -> None:
    def answers() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

    command.environ["OUTRIDER_ORIGIN"] = "http://127.0.0.1:1"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answers, daemon=True).start()
        admin = f"127.0.0.1:{listener.getsockname()[1]}"
        for words in (("ls",), ("stats", "--once"), ("doctor", "--health"), ("doctor",)):
            done = command.run(*words, "--admin", admin)
            # The health check asks for a status alone.
            assert done.returncode == 1 or ("--health" in words and b"200" in answer)
            assert "Traceback" not in done.stderr
            assert words[0] == "doctor" or "no admin port of outrider" in done.stderr
        with pytest.raises(ProxyNotFound, match="is no Outrider"):
            Client("http://127.0.0.1:1", f"http://{admin}").status()
        listener.shutdown(socket.SHUT_RDWR)
