"""For map-style datasets: sends the proxy the samples that the sampler has drawn, before they are read."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from outrider_sdk.announcing import announcer, unique_name
from outrider_sdk.client import Client
from outrider_sdk.urls import object_of

# Seconds of reading that are announced. The proxy itself decides how far ahead it fetches.
_HORIZON_S = 60.0
_AHEAD_MIN, _AHEAD_MAX = 1024, 65536
# Samples that are announced at once. The loader waits some milliseconds while their keys are made.
_FETCH_MIN, _FETCH_MAX = 512, 4096
_SMALL = (int, float, str, bytes, type(None))


class AnnouncingSampler:
    """Draws the same indices as `sampler`, and announces them to the proxy before it passes them on.

    It wraps a sampler of indices in `DataLoader(sampler=...)`, or a batch sampler in `DataLoader(batch_sampler=...)`.
    `key_of_index` gives the URL (`s3://bucket/key`) of a sample's object, several URLs, or None. When fewer than
    `threshold` announced samples are left, the next `fetch` samples are announced. By default both follow the measured
    rate; with `fetch` alone, `threshold` is half of it. Every other attribute of `sampler` (`set_epoch`, its length) is
    reached through this one. Without a proxy, nothing is announced and `key_of_index` is not called.

    `state_dict()` is the state after the last index that was passed on, not after those drawn ahead of it. Two kinds of
    samplers are passed through and not announced: a sampler whose state is more than a few numbers, and a batch sampler
    over a sampler with a state of its own.
    """

    def __init__(
        self, sampler: Iterable[Any], key_of_index: Callable[[Any], str | Sequence[str] | None],
        fetch: int | None = None, threshold: int | None = None, *, client: Client | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Raises ValueError: `fetch` is less than 1, or `threshold` than 0."""
        if (fetch is not None and fetch < 1) or (threshold is not None and threshold < 0):
            raise ValueError(f"fetch is {fetch} and threshold {threshold}: must be 1 or more, and 0 or more")
        self.sampler = sampler
        self._key_of_index = key_of_index
        self._fetch = fetch
        self._threshold = threshold
        self._clock = clock
        self._announcer = announcer(client)
        self._name = unique_name()
        self._state: Any = None

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for names that this class lacks. A copy in the making, which has no `sampler` yet, is
        # requested special names.
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.sampler, name)
        if name == "state_dict" and self._state is not None:
            return self._state_passed_on
        return self._load_state_dict if name == "load_state_dict" else found

    def _state_passed_on(self) -> Any:
        return copy.deepcopy(self._state)

    def _load_state_dict(self, state: Any) -> None:
        self._state = None
        self.sampler.load_state_dict(state)  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Any]:
        if not self._announcer.has_proxy:
            return iter(self.sampler)
        if not self._may_look_ahead():
            self._announcer.warn_once(
                "outrider: the sampler's state cannot be kept beside each drawn index: not announced"
            )
            return iter(self.sampler)
        return self._announced()

    def _may_look_ahead(self) -> bool:
        """Whether the state can be kept beside each drawn item, so that a checkpoint in mid-epoch stays right."""
        if not hasattr(self.sampler, "state_dict"):
            return not hasattr(getattr(self.sampler, "sampler", None), "state_dict")
        state = self.sampler.state_dict()
        # Other values (a generator's bytes, a permutation) are too large to keep thousands of.
        return isinstance(state, dict) and all(isinstance(value, _SMALL) for value in state.values())

    def _announced(self) -> Iterator[Any]:
        source = _Source(self.sampler)
        pace = Pace(self._fetch, self._threshold, self._clock())
        drawn: deque[Any] = deque()
        left = start = samples = 0
        while True:
            if not source.ended and (left == 0 or left < pace.threshold):
                new, count = source.draw(pace.fetch)
                drawn.extend(new)
                urls = self._urls_of(new)
                samples += count
                start += len(urls)
                total = start if source.ended else self._total(drawn, one_each=start == samples)
                self._announcer.plan(self._name, urls, start - len(urls), total)
                left += count
                pace.announced(self._clock())
            if not drawn:
                self._state = None
                source.finish()
                return
            item = drawn.popleft()
            self._state = source.states.popleft() if source.states else None
            count = len(_indices(item))
            left -= count
            pace.passed_on(count)
            yield item

    def _urls_of(self, items: Sequence[Any]) -> list[str]:
        urls: list[str] = []
        for index in (index for item in items for index in _indices(item)):
            keys = self._key_of_index(index)
            for key in (keys,) if isinstance(keys, str) else keys or ():
                url = object_of(key, self._announcer.endpoint)
                urls += () if url is None else (url,)
        return urls

    def _total(self, drawn: deque[Any], *, one_each: bool) -> int | None:
        if not one_each or not drawn or isinstance(drawn[-1], list):
            return None
        try:
            return len(self)
        except (TypeError, NotImplementedError):
            return None


class Pace:
    """How many samples to announce at once, and when: constants, or values from the rate at which samples are drawn."""

    def __init__(self, fetch: int | None, threshold: int | None, now: float) -> None:
        self._constant = fetch is not None or threshold is not None
        self.fetch = fetch or (2 * threshold if threshold else _AHEAD_MIN)
        self.threshold = threshold if threshold is not None else fetch // 2 if fetch is not None else _AHEAD_MIN // 2
        self._began = now
        self._count = 0

    def passed_on(self, count: int) -> None:
        self._count += count

    def announced(self, now: float) -> None:
        """Set both numbers from the rate since the last announcement."""
        passed_s, count = now - self._began, self._count
        if self._constant or count == 0 or passed_s <= 0:
            return
        self._began, self._count = now, 0
        ahead = min(max(int(_HORIZON_S * count / passed_s), _AHEAD_MIN), _AHEAD_MAX)
        self.threshold = ahead // 2
        self.fetch = min(max(ahead // 4, _FETCH_MIN), _FETCH_MAX)


class _Source:
    """The items of a sampler. `states` has the sampler's state right after each item, if it has a state."""

    def __init__(self, sampler: Any) -> None:
        self.ended = False
        self.states: deque[Any] = deque()
        self._state_dict = getattr(sampler, "state_dict", None)
        self._items = iter(sampler)
        self._error: Exception | None = None

    def draw(self, samples: int) -> tuple[list[Any], int]:
        """Items with at least `samples` samples, or all items that are left; and the number of their samples."""
        items: list[Any] = []
        count = 0
        while count < samples and not self.ended:
            try:
                item = next(self._items)
            except StopIteration:
                self.ended = True
            except Exception as error:  # noqa: BLE001 - raised in `finish`, after the items drawn before
                self.ended, self._error = True, error
            else:
                items.append(item)
                count += len(_indices(item))
                if self._state_dict is not None:
                    self.states.append(copy.deepcopy(self._state_dict()))
        return items, count

    def finish(self) -> None:
        """Raise the error of the sampler, if it raised one."""
        if self._error is not None:
            raise self._error


def _indices(item: Any) -> Sequence[Any]:
    """A batch sampler's items are lists; a tuple is one index, as some samplers make them."""
    return item if isinstance(item, list) else (item,)
