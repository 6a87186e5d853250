"""A mounted bucket, without a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.mount.kernel import World, mounted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with mounted() as made:
        yield made
