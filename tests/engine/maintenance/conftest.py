"""Members that carry out maintenance commands together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine.maintenance.maintaining import Room, room


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Room]:
    with room(tmp_path) as made:
        yield made
