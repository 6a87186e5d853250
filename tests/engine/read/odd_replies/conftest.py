"""An engine before an origin whose replies a test changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engine.read.odd_replies.odd_port import DATA, DATED, SMALL, OddPort
from tests.support.engine import REF, Engine, as_large, by_threads, engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
def origin() -> OddPort:
    origin = OddPort(chunk_bytes=10_000)
    origin.put(REF, DATA, DATED)
    origin.put(SMALL, DATA[:1000], DATED)
    return origin


@pytest.fixture(params=[as_large, by_threads])
async def room(request: pytest.FixtureRequest, tmp_path: Path, origin: OddPort) -> AsyncIterator[Engine]:
    with engine(tmp_path, origin, buffer_bytes=request.param) as made:
        yield made
        await made.tasks.settle()
        assert origin.under_way == 0
