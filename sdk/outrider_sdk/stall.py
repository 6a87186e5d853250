"""Measures how long a training loop waits for its data. The sums are printed, and sent to the proxy."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from outrider_sdk.announcing import announcer, unique_name
from outrider_sdk.client import Client

_EPOCHS_MAX = 1000
# Must be even, since every second value is dropped at this length; 64 KiB an epoch.
_WAITS_MAX = 8192
_SEND_EVERY_S = 5.0
# A loop that waits for less than this share of its time would hardly be faster on local disk.
_BOUND_SHARE = 0.05


class EpochStall:
    """One epoch: the number of batches (`steps`), the time spent waiting for them (`wait_s`), and the time between the
    waits (`compute_s`).

    `first_wait_s` is the part of `wait_s` for the first batch, which is mostly the start of the loader's workers.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.steps = 0
        self.first_wait_s = 0.0
        self.wait_s = 0.0
        self.compute_s = 0.0
        self._waits = array("d")
        self._stride = 1

    @property
    def wait_share(self) -> float:
        """Share of waiting in the time from the first batch to the end."""
        waited_s = self.wait_s - self.first_wait_s
        whole_s = waited_s + self.compute_s
        return waited_s / whole_s if whole_s > 0 else 0.0

    def percentile(self, share: float) -> float:
        """Percentile of the waits, in seconds: `share` of the steps waited no longer; 0.0 before the first step.

        Beyond some thousand steps, every second step counts, then every fourth, and so on.
        """
        if not self._waits:
            return 0.0
        ordered = sorted(self._waits)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    def waited(self, seconds: float) -> None:
        if self.steps == 0:
            self.first_wait_s = seconds
        if self.steps % self._stride == 0:
            if len(self._waits) == _WAITS_MAX:
                self._waits = self._waits[::2]
                self._stride *= 2
            if self.steps % self._stride == 0:
                self._waits.append(seconds)
        self.steps += 1
        self.wait_s += seconds

    def __str__(self) -> str:
        return (
            f"epoch {self.number}: {self.steps} steps, waited {self.wait_s:.2f} s for data"
            f" ({self.first_wait_s:.2f} s of it for the first batch), {self.compute_s:.2f} s between;"
            f" per step: median {_short(self.percentile(0.5))}, 95 % {_short(self.percentile(0.95))},"
            f" 99 % {_short(self.percentile(0.99))}, longest {_short(self.percentile(1.0))}"
        )


class StallMeter:
    """Yields the batches of `loader`, epoch after epoch, and measures the wait for each.

    If there is a proxy, the sums are sent to it every few seconds. Every other attribute of the loader is reached
    through the meter. A loop that only queues work for the accelerator, and does not wait for a result in each step,
    seems to wait for data while the accelerator still computes.
    """

    def __init__(
        self, loader: Iterable[Any], *, client: Client | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.loader = loader
        self.epochs: deque[EpochStall] = deque(maxlen=_EPOCHS_MAX)
        self._clock = clock
        self._announcer = announcer(client)
        self._name = unique_name()
        self._begun = 0
        self._sent_at = clock()
        self._unsent = [0, 0.0, 0.0]

    def __iter__(self) -> Iterator[Any]:
        self._begun += 1
        epoch = EpochStall(self._begun)
        self.epochs.append(epoch)
        clock = self._clock
        requested_at = clock()
        got_at = None
        try:
            for batch in self.loader:
                got_at = clock()
                epoch.waited(got_at - requested_at)
                self._unsent[0] += 1
                self._unsent[1] += got_at - requested_at
                yield batch
                requested_at, got_at = self._computed(epoch, got_at), None
                if requested_at - self._sent_at >= _SEND_EVERY_S:
                    self._send(epoch, requested_at)
        finally:
            # With `got_at` set, the loop was left in the middle of a step.
            self._send(epoch, clock() if got_at is None else self._computed(epoch, got_at))

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for names that the meter lacks. A copy in the making, which has no `loader` yet, is
        # requested special names.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """One line for each epoch, and the verdict on the last one."""
        if not self.epochs:
            return "no step yet"
        return "\n".join([*map(str, self.epochs), self.verdict()])

    def verdict(self) -> str:
        """Whether the last epoch was GPU-bound or bucket-bound, in one sentence."""
        epoch = self.epochs[-1] if self.epochs else None
        if epoch is None or epoch.steps < 2:
            return "too few steps to know whether the loop is GPU-bound or bucket-bound"
        share = epoch.wait_share
        if share < _BOUND_SHARE:
            return f"GPU-bound: after its first batch, epoch {epoch.number} waited {share:.1%} of the time for data"
        return (
            f"bucket-bound: after its first batch, epoch {epoch.number} waited {share:.1%} of the time for data"
            " (if the proxy serves it all from disk, the loader's own work is too slow: give it more workers)"
        )

    def _computed(self, epoch: EpochStall, got_at: float) -> float:
        """Count the time since `got_at` as computation. Returns the time now."""
        now = self._clock()
        epoch.compute_s += now - got_at
        self._unsent[2] += now - got_at
        return now

    def _send(self, epoch: EpochStall, now: float) -> None:
        steps, wait_s, compute_s = self._unsent
        self._unsent, self._sent_at = [0, 0.0, 0.0], now
        if steps:
            self._announcer.stall(self._name, int(steps), wait_s, compute_s, epoch.number)


def _short(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
