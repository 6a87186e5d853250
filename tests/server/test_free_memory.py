"""Free memory between memory in use goes back to the kernel as blocks come: tables leave gaps as they grow."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider import app
from tests.support.control_bucket import wait_until
from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection

if TYPE_CHECKING:
    from tests.support.bucket import Bucket

NAME = "gaps"
GAP_BYTES, GAPS = 64 * 1024, 500


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library is left as it is")
def test_gaps_between_memory_in_use_are_given_back(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_GIVE_BACK_S", 0.05)
    monkeypatch.setattr(app, "_GIVE_BACK_BLOCKS", 1)
    bucket.store(NAME, {"sample": b"of one block"})
    with Proxy(bucket) as proxy, RawConnection(proxy.address) as connection:
        kept = [bytearray(GAP_BYTES) for _ in range(2 * GAPS)]
        del kept[::2]
        before = _held_bytes()
        assert connection.ask("GET", f"/{NAME}/sample").body == b"of one block"
        wait_until(lambda: _held_bytes() < before - GAPS * GAP_BYTES // 2)


def _held_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
