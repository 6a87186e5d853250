"""An engine that prefetches, whose bucket has some shards."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.engine.ahead.shards import BODIES, OTHER, Making
from tests.support.engine import BLOCK, Engine, engine
from tests.support.fakes import FakeOrigin, ramp


@pytest.fixture
def making(tmp_path: Path) -> Making:
    origin = FakeOrigin(chunk_bytes=10_000)
    for ref, body in BODIES.items():
        origin.put(ref, body)
    origin.put(OTHER, ramp(BLOCK, 77))
    return partial(engine, tmp_path / "c", origin, policy="epoch")


@pytest.fixture
def room(making: Making) -> Iterator[Engine]:
    with making() as room:
        yield room
