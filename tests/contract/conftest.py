"""Fixtures of the block store and of receivers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.adapters.origin import receivers
from tests.contract.disk_store import Disk


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A cache directory on a disk; on the tmpfs for tests with the parameter `memory`."""
    if getattr(request, "param", "disk") == "disk":
        yield tmp_path / "cache"
        return
    parent = tempfile.mkdtemp(prefix="test-outrider-", dir="/dev/shm")
    yield Path(parent) / "cache"
    shutil.rmtree(parent)


@pytest.fixture
def disk(root: Path) -> Iterator[Disk]:
    disk = Disk(root)
    yield disk
    disk.close()


@pytest.fixture(autouse=True)
def patient_with_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy starts processes slowly. A proxy waits half a second for its first receiver, and then the
    event loop receives. Here the receiver is what is tested."""
    monkeypatch.setattr(receivers, "_START_S", 30.0)
