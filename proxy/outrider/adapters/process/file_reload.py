"""Reads files again when they change: keys, certificates and grants need no restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from outrider.settings import SettingsError

log = logging.getLogger(__name__)

Sleep = Callable[[float], Awaitable[object]]

# The kubelet needs a minute to renew a mounted Secret.
_EVERY_S = 5.0


class Bell:
    """Wakes all who sleep by it at once: on SIGHUP, files are read again without a wait."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        rung, self._rung = self._rung, asyncio.Event()
        rung.set()

    async def sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()


async def follow(what: str, read: Callable[[], bool], sleep: Sleep = asyncio.sleep) -> None:
    """Call `read` in a thread every few seconds, for ever. It returns whether anything has changed, and raises
    SettingsError if the files are wrong: until they are right, their last content counts. `what`: their name in logs.
    """
    logged = ""
    while True:
        await sleep(_EVERY_S)
        try:
            # A file is read, and its date is not looked at: a mounted Secret is a link to a link to it.
            if await asyncio.to_thread(read):
                log.info("changed file was read", extra={"file": what})
            elif logged:
                log.info("changed file is as it was before it was wrong", extra={"file": what})
            logged = ""
        except SettingsError as error:
            if str(error) != logged:
                logged = str(error)
                log.error("changed file is wrong, its last content counts", extra={"file": what, "error": logged})
