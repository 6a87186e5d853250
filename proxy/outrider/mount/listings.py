"""The LISTs of directories: one of each at a time, and none for a while where they fail or take too long."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from math import inf
from typing import Any

from outrider.core.s3.list_page import ListedObject
from outrider.mount.bucket import MountBucket, Unreachable
from outrider.mount.listed import ObjectFacts
from outrider.mount.nodes import Directory, MountNodes, is_name
from outrider.ports import Clock

log = logging.getLogger(__name__)

# Names of a directory whose LIST has failed are requested one by one for so long.
_HEADS_S = 60.0
# The same after a LIST that took too long, as a multiple of that time.
_REST = 10


class UnderWay:
    """A LIST under way. A reader that is killed waits no more; the LIST goes on for the others."""

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.has_page = asyncio.Event()
        self.failure: Unreachable | None = None

    async def page(self) -> None:
        """Wait for the first page, or for a failure. Raises Away."""
        await self.has_page.wait()
        if self.failure is not None:
            raise self.failure

    async def end(self) -> None:
        """Raises OSError: it failed."""
        await asyncio.shield(self.task)


class Listings:
    def __init__(
        self, bucket: MountBucket, nodes: MountNodes, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        holds: Callable[[float | None], bool], clock: Clock,
    ) -> None:  # fmt: skip
        """`spawn` starts a task and keeps it. `holds`: whether what was learnt then is still believed."""
        self._bucket = bucket
        self._nodes = nodes
        self._spawn = spawn
        self._holds = holds
        self._clock = clock
        self._under_way: dict[int, UnderWay] = {}

    def of(self, directory: Directory) -> UnderWay:
        """One LIST of a directory at a time."""
        listed = self._under_way.get(directory.number)
        if listed is None:
            listed = self._under_way[directory.number] = UnderWay()
            listed.task = self._spawn(self._listed(directory, listed))
            listed.task.add_done_callback(lambda ended: self._no_longer_listed(directory, ended))
        return listed

    def _no_longer_listed(self, directory: Directory, ended: asyncio.Task[None]) -> None:
        del self._under_way[directory.number]
        # Nobody may have waited for it.
        if not ended.cancelled() and (error := ended.exception()) is not None:
            log.debug("directory not listed", extra={"prefix": directory.prefix, "error": str(error)})

    async def _listed(self, directory: Directory, listed: UnderWay) -> None:
        try:
            began_at = requested_at = self._clock()
            listing = DirectoryListing(self._nodes, directory, began_at)
            async for page in self._bucket.pages(directory.prefix):
                listing.take(page.objects, page.groups, requested_at)
                if page.is_truncated:
                    listed.has_page.set()
                requested_at = self._clock()
            listing.done()
            if not self._holds(directory.listed_at):
                # It took longer than it is believed: otherwise the next name would begin it anew.
                directory.heads_until = self._clock() + _REST * (self._clock() - began_at)
        except Unreachable as error:
            listed.failure = error
            raise
        except OSError as error:
            directory.heads_until = inf if error.errno == errno.EACCES else self._clock() + _HEADS_S
            raise
        finally:
            listed.has_page.set()


class DirectoryListing:
    """Takes the pages of a LIST of `directory` with a delimiter; `done` puts them in place of what was known."""

    def __init__(self, nodes: MountNodes, directory: Directory, now: float) -> None:
        self._nodes = nodes
        self._directory = directory
        self._began_at = now
        self._number = next(nodes.listing_numbers)

    def take(self, objects: Iterable[ListedObject], groups: Iterable[str], now: float) -> None:
        """`now`: when the page was requested."""
        prefix = self._directory.prefix
        for group in groups:
            self._take_directory(group.removeprefix(prefix).removesuffix("/"))
        for listed in objects:
            # Some stores take the prefix for a hint, or ignore the delimiter.
            if listed.key.startswith(prefix):
                name, slash, _ = listed.key[len(prefix) :].partition("/")
                if slash:
                    self._take_directory(name)
                else:
                    self._take_file(name, ObjectFacts.of(listed.size, listed.etag, _date(listed.modified)), now)

    def _take_directory(self, name: str) -> None:
        if is_name(name):
            self._nodes.note_listed(self._nodes.directory(self._directory, name), self._number)

    def _take_file(self, name: str, facts: ObjectFacts, now: float) -> None:
        if not is_name(name):
            return
        known = self._nodes.child(self._directory, name)
        # A directory hides an object of the same name, as one path is one of the two.
        if isinstance(known, Directory):
            return
        if known is None or not known.is_settled or known.facts.is_version(facts):
            known = self._nodes.file(self._directory, name, facts, now, settled=False)
        elif known.checked_at <= now:
            # It was put again, or the LIST is wrong: the object itself is asked at the next look.
            known.checked_at = -inf
        self._nodes.note_listed(known, self._number)

    def done(self) -> None:
        self._nodes.drop_unlisted(self._directory, self._number, self._began_at)
        self._directory.listed_at = self._began_at


def _date(iso: str) -> datetime | None:
    try:
        return datetime.fromisoformat(iso).astimezone(UTC)
    except ValueError:
        return None
