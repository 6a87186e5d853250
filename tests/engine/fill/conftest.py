"""An engine whose bucket has one object of four blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.fill.small_engine import DATA
from tests.support.engine import REF, Engine, engine
from tests.support.fakes import FakeOrigin


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Engine]:
    with engine(tmp_path / "c", FakeOrigin(chunk_bytes=10_000)) as room:
        room.origin.put(REF, DATA)
        yield room
