"""Writes Events about pods. Without them the pods run as well: what fails is logged, and not tried again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from outrider.core.operator.events import event_of
from outrider.operator_ports import Kube, KubeError, Manifest

log = logging.getLogger(__name__)

# The status for an object whose name is there already.
_TAKEN = 409


class EventWriter:
    """`me`: the name of this process. `clock`: seconds since the epoch. `calling`: limits the calls at once."""

    def __init__(self, kube: Kube, me: str, clock: Callable[[], float], calling: asyncio.Semaphore) -> None:
        self._kube = kube
        self._me = me
        self._clock = clock
        self._calling = calling

    async def emit(
        self, pod: Manifest, reason: str, note: str, *, is_warning: bool = False, is_once: bool = False
    ) -> None:  # fmt: skip
        """`is_once`: another process, or this one before a restart, may have told the same."""
        time = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = event_of(pod, reason, note, is_warning=is_warning, time=time, by=self._me, is_once=is_once)
        try:
            async with self._calling:
                await self._kube.emit(event)
        except KubeError as error:
            if not (is_once and error.code == _TAKEN):
                log.warning("an event was not told", extra={"reason": reason, "why": str(error)})
