"""Work whose caller may leave before it ends."""

from __future__ import annotations

import asyncio
from typing import Any


def retrieve_failure(done: asyncio.Future[Any]) -> None:
    """A callback: the failure of `done` counts as retrieved, also when its caller has left. asyncio would log an
    exception that was never retrieved; `asyncio.shield` retrieves none once its caller is cancelled."""
    if not done.cancelled():
        done.exception()
