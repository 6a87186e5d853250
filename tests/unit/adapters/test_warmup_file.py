"""The file of warm-ups that a stop cut off."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outrider.adapters.disk.disk_threads import DiskThreads
from outrider.adapters.state import warmup_file
from outrider.core.maintenance.object_list import SavedWarmup
from outrider.metrics import Metrics
from tests.support.fakes import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

WARMUPS = [SavedWarmup("o", "x", "s3://b/k", 1.0, 0.0, 1), SavedWarmup("o", "y", "s3://b/", 2.0, 5.0, 2)]


async def test_warm_ups_are_kept_until_they_are_resumed(tmp_path: Path) -> None:
    work = DiskThreads(Metrics(), FakeClock())
    path = tmp_path / "warmups"
    await warmup_file.save(path, WARMUPS[:1], work)
    await warmup_file.save(path, WARMUPS[1:], work)
    assert warmup_file.load(path) == warmup_file.load(path) == WARMUPS
    newer = replace(WARMUPS[0], body="s3://b/other")
    await warmup_file.save(path, [newer], work)
    assert warmup_file.load(path) == [WARMUPS[1], newer]
    await warmup_file.remove(path, work)
    assert warmup_file.load(path) == []
    await warmup_file.remove(path, work)


async def test_no_removal_outlives_the_stop_that_cuts_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take the file that the stop writes next."""
    work, gate = DiskThreads(Metrics(), FakeClock()), threading.Event()
    path = tmp_path / "warmups"
    unlink = type(path).unlink
    monkeypatch.setattr(type(path), "unlink", lambda *args: (gate.wait(60), unlink(*args)))
    await warmup_file.save(path, WARMUPS, work)
    removing = asyncio.create_task(warmup_file.remove(path, work))
    await asyncio.sleep(0)
    removing.cancel()
    await asyncio.wait([removing], timeout=0.01)
    assert not removing.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await removing
    assert not path.exists()


async def test_a_file_that_cannot_be_removed_is_counted(tmp_path: Path) -> None:
    metrics = Metrics()
    (tmp_path / "warmups").mkdir()
    await warmup_file.remove(tmp_path / "warmups", DiskThreads(metrics, FakeClock()))
    assert metrics.total("outrider_store_errors_total", act="unlink") == 1
