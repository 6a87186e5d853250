"""An engine whose origin has one object of five blocks and a part of one: for tests of its reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.read.five_blocks import DATA
from tests.support.engine import REF, Engine, as_large, as_small, by_threads, engine
from tests.support.fakes import FakeOrigin


@pytest.fixture
def fills_max() -> int:
    return 64


@pytest.fixture(params=[as_large, as_small, by_threads])
def room(tmp_path: Path, fills_max: int, request: pytest.FixtureRequest) -> Iterator[Engine]:
    origin = FakeOrigin(chunk_bytes=7000)
    with engine(tmp_path / "c", origin, buffer_bytes=request.param, fills_max=fills_max) as room:
        room.origin.put(REF, DATA, (("content-type", "application/x-tar"), ("last-modified", "x")))
        yield room
