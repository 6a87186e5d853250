"""For WebDataset: sends the proxy the order of the shards that each worker is going to read."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from outrider_sdk.announcing import Announcer, announcer, unique_name, worker_number
from outrider_sdk.client import Client
from outrider_sdk.urls import object_of

# Bound of one look ahead, for a source that makes its shards slowly.
_LOOK_AHEAD_S = 0.2
_OPENERS = frozenset(("StreamingOpen", "FileCache", "tarfile_samples", "url_opener"))


def announce(*, ahead: int = 1024, client: Client | None = None) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A pipeline stage for the place after the shards are split and shuffled, and before they are opened.

    The shards pass through it unchanged. The stage announces the objects in `s3://`, `pipe:` and http(s) URLs (see
    `urls.object_of`), up to `ahead` shards before they are read, which is the whole epoch if it has no more. Without a
    proxy nothing is announced. `client` None: the proxy that the environment names.

    Raises:
        ValueError: `ahead` is less than 1.
    """
    if ahead < 1:
        raise ValueError(f"ahead is {ahead}: must be 1 or more")
    return _Announce(announcer(client), unique_name(), ahead)


def announced(dataset: Any, *, ahead: int = 1024, client: Client | None = None) -> Any:
    """The same dataset (a `WebDataset` or `DataPipeline`), with `announce()` put before the stage that opens shards.

    Raises:
        ValueError: the dataset has no stage that is known to open shards (then put `announce()` into the pipeline by
            hand), or `ahead` is less than 1.
    """
    names = [getattr(getattr(stage, "f", None), "__name__", type(stage).__name__) for stage in dataset.pipeline]
    place = next((number for number, name in enumerate(names) if name in _OPENERS), None)
    if place is None:
        raise ValueError(f"none of the stages ({', '.join(names)}) is known to open shards: put announce() before it")
    dataset.pipeline.insert(place, announce(ahead=ahead, client=client))
    return dataset


class _Announce:
    """The stage. It is forked or pickled into each worker, and each call there is one epoch of that worker."""

    def __init__(self, to: Announcer, name: str, ahead: int) -> None:
        self._announcer = to
        self._name = name
        self._ahead = ahead

    def __call__(self, source: Iterable[Any]) -> Iterator[Any]:
        return self._announced(_LookAhead(source)) if self._announcer.has_proxy else iter(source)

    def _announced(self, source: _LookAhead) -> Iterator[Any]:
        worker = worker_number()
        name = self._name if worker is None else f"{self._name}-worker{worker}"
        start = 0
        while True:
            if not source.ended and len(source.drawn) <= self._ahead // 2:
                urls = [url for shard in source.look(self._ahead) if (url := self._object_of(shard)) is not None]
                self._announcer.plan(name, urls, start, start + len(urls) if source.ended else None)
                start += len(urls)
            if not source.drawn:
                source.finish()
                return
            yield source.drawn.popleft()

    def _object_of(self, shard: Any) -> str | None:
        url = shard.get("url") if isinstance(shard, dict) else shard
        return object_of(url, self._announcer.endpoint) if isinstance(url, str) else None


class _LookAhead:
    """`drawn` are the shards that were taken from the source and not yet passed on."""

    def __init__(self, source: Iterable[Any]) -> None:
        self.drawn: deque[Any] = deque()
        self.ended = False
        self._source = iter(source)
        self._error: Exception | None = None

    def look(self, ahead: int) -> list[Any]:
        """Take shards until `ahead` of them are drawn. Returns the new ones."""
        until = time.monotonic() + _LOOK_AHEAD_S
        new: list[Any] = []
        while len(self.drawn) < ahead and not self.ended and (not new or time.monotonic() < until):
            try:
                shard = next(self._source)
            except StopIteration:
                self.ended = True
            except Exception as error:  # noqa: BLE001 - raised in `finish`, after the shards drawn before
                self.ended, self._error = True, error
            else:
                new.append(shard)
                self.drawn.append(shard)
        return new

    def finish(self) -> None:
        """Raise the error of the source, if it raised one."""
        if self._error is not None:
            raise self._error
