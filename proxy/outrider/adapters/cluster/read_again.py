"""Reads files again when they change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from outrider.adapters.cluster.member_lists import Sleep
from outrider.settings import SettingsError

log = logging.getLogger(__name__)

# The kubelet needs a minute to renew a mounted Secret.
_EVERY_S = 5.0


async def follow(what: str, read: Callable[[], bool], sleep: Sleep = asyncio.sleep) -> None:
    """Call `read` in a thread every few seconds, for ever. It returns whether anything has changed, and raises
    SettingsError if the files are wrong: until they are right, their last content counts. `what`: their name in logs.
    """
    told = ""
    while True:
        await sleep(_EVERY_S)
        try:
            # A file is read, and its date is not looked at: a mounted Secret is a link to a link to it.
            if await asyncio.to_thread(read):
                log.info("changed file was read", extra={"file": what})
            told = ""
        except SettingsError as error:
            if str(error) != told:
                told = str(error)
                log.error("changed file is wrong, its last content counts", extra={"file": what, "error": told})
