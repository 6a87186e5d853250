"""A disk that hangs under a receiving thread: the client gets its bytes past the cache, and nothing is left behind."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from outrider.adapters.disk import disk_threads
from outrider.adapters.origin import bulk_reply
from tests.support.fakes import ramp
from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection

if TYPE_CHECKING:
    from tests.support.bucket import Bucket

NAME, BLOCK = "receiving", 2 * 1024 * 1024
DATA = ramp(3 * BLOCK)


def hold_receivers(patch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """From now on a write by a thread that receives does not end before the second event; it sets the first."""
    hung, answer, pwritev = threading.Event(), threading.Event(), os.pwritev

    def held(fd: int, pieces: Any, offset: int, *more: int) -> int:
        if threading.current_thread().name.startswith("outrider-receive"):
            hung.set()
            assert answer.wait(60)
        return pwritev(fd, pieces, offset, *more)

    patch.setattr(os, "pwritev", held)
    return hung, answer


def test_a_client_gets_its_bytes_while_the_disk_hangs(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_threads, "PATIENCE_S", 0.05)
    monkeypatch.setattr(disk_threads, "FAILURE_PAUSE_S", 0.0)
    monkeypatch.setattr(bulk_reply, "_CHECK_S", 0.01)
    monkeypatch.setattr(bulk_reply, "_ABORT_S", 0.01)
    bucket.make_bucket(NAME)
    bucket.client().put_object(Bucket=NAME, Key="a.bin", Body=DATA)
    with (
        Proxy(bucket, block_size=str(BLOCK), freshness="immutable", prefetch="off") as proxy,
        RawConnection(proxy.address) as connection,
    ):

        def read(start: int) -> tuple[int, bytes]:
            span = f"bytes={start}-{start + BLOCK - 1}"
            answer = connection.ask("GET", f"/{NAME}/a.bin", [("range", span)])
            return answer.status, answer.body

        assert read(0) == (206, DATA[:BLOCK])
        proxy.settle()
        with monkeypatch.context() as patch:
            hung, answer = hold_receivers(patch)
            assert read(BLOCK) == (206, DATA[BLOCK : 2 * BLOCK])
            assert hung.is_set()
            assert proxy.metric("outrider_store_errors_total", act="write") > 0
            answer.set()
        give_up_at = time.monotonic() + 60
        while list(proxy.cache_dir.glob("tmp/*.*")):
            assert time.monotonic() < give_up_at
        proxy.settle()
        for _ in range(2):
            assert read(BLOCK) == (206, DATA[BLOCK : 2 * BLOCK])
            proxy.settle()
        assert len(proxy.outrider.store) == 2
