"""Few open files: clients are answered, refused or cut, and none waits in vain."""

from __future__ import annotations

import http.client
import os
import resource
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.proxy import ServedProxy
from tests.support.rawhttp import RawConnection, ask
from tests.support.trials import SCALE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.trials import Trials

NAME = "open-files"
CLIENTS = 50
OBJECTS = 30
BODY = bytes(range(250)) * 400
# Far more than any of these requests takes. Before, some took as long as their client would wait.
HANG_S = 30.0
LIMITS = [96, *([64, 128, 256] if SCALE > 1 else [])]


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    for number in range(OBJECTS):
        client.put_object(Bucket=NAME, Key=str(number), Body=BODY)
    client.close()


def limited(bucket: Bucket, directory: Path, open_files: int) -> ServedProxy:
    """A proxy whose limit on open files is set before it starts."""
    proxy = ServedProxy(bucket, directory)
    proxy.argv = ["/bin/sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh", *proxy.argv]
    proxy.forked = False
    return proxy


def outcome(connection: RawConnection, key: int) -> str:
    try:
        answer = connection.ask("GET", f"/{NAME}/{key}")
    except TimeoutError:
        return "no answer"
    except (ConnectionError, http.client.HTTPException):
        return "cut"
    assert answer.status in (200, 503), answer
    assert answer.status == 503 or answer.body == BODY
    return "the right bytes" if answer.status == 200 else "503"


@pytest.mark.parametrize("open_files", LIMITS)
def test_of_fifty_clients_none_waits_in_vain(bucket: Bucket, tmp_path: Path, trials: Trials, open_files: int) -> None:
    """Each client holds its connection until all have asked; some objects are cold, some hits."""
    with limited(bucket, tmp_path, open_files) as proxy:
        for key in range(3):
            assert ask(proxy.address, "GET", f"/{NAME}/{key}").body == BODY
        asked = threading.Barrier(CLIENTS)

        def read(client: int) -> list[str]:
            try:
                with RawConnection(proxy.address, HANG_S) as connection:
                    seen = [outcome(connection, client % OBJECTS)]
                    if seen == ["the right bytes"]:
                        seen += [outcome(connection, key) for key in (0, (client * 7) % OBJECTS)]
                    asked.wait(4 * HANG_S)
            except ConnectionError:
                asked.wait(4 * HANG_S)
                return ["cut"]
            return seen

        with ThreadPoolExecutor(CLIENTS) as pool:
            seen = Counter(one for outcomes in pool.map(read, range(CLIENTS)) for one in outcomes)
        trials.record("load", f"50 clients, {open_files} open files", "answered, refused or cut", times=seen.total())
        assert seen["no answer"] == 0, seen
        assert seen["the right bytes"] >= 3 * 2, "two clients are served at the least"
        if open_files == 256:
            assert set(seen) == {"the right bytes"}
        proxy.settle()
        assert ask(proxy.address, "GET", f"/{NAME}/0").body == BODY
        assert [line for line in proxy.lines() if line["level"] in ("warning", "error")] == []


def test_a_client_for_whom_no_descriptor_is_left_is_cut(bucket: Bucket, tmp_path: Path, trials: Trials) -> None:
    """Others may take the descriptors that the budget counts on: the limit is lowered while the proxy runs."""
    with ServedProxy(bucket, tmp_path) as proxy:
        assert ask(proxy.address, "GET", f"/{NAME}/0").body == BODY
        proxy.settle()
        soft, hard = resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir(f"/proc/{proxy.pid}/fd"))
        resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (highest + 6, hard))
        with ExitStack() as held:
            seen = []
            for _ in range(12):
                try:
                    connection = held.enter_context(RawConnection(proxy.address, HANG_S))
                except ConnectionError:
                    seen.append("cut")
                else:
                    seen.append(outcome(connection, 0))
        assert "cut" in seen
        assert "no answer" not in seen, seen
        resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (soft, hard))
        # libuv closes all connections that it can accept once no descriptor is left, and might close this one, too. The
        # answer of the admin port comes after that.
        proxy.settle()
        with RawConnection(proxy.address, HANG_S) as connection:
            assert outcome(connection, 0) == "the right bytes", proxy.lines()[-20:]
        trials.record("load", "no descriptor is left", "answered or cut", times=len(seen))


def test_a_limit_too_low_to_serve_is_refused_at_the_start(bucket: Bucket, tmp_path: Path) -> None:
    proxy = limited(bucket, tmp_path, 40)
    done = subprocess.run(proxy.argv, env=proxy.environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "the limit on open files is 40, and 64 are needed. Raise it: ulimit -n" in done.stderr
    assert "Traceback" not in done.stderr
