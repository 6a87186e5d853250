"""A warm-up or a pin in the proxy, as the proxy tells of it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from outrider_sdk.s3port import S3Port
from outrider_sdk.urls import expand

_TIMEOUT_S = 60.0
_POLL_S = 0.1


class Gone(Exception):
    """The proxy knows nothing of it: it was restarted, or somebody else removed it."""


class Warmed:
    """What is on disk of what was named, as far as it was last asked for: `objects` whole, `bytes` of all that are
    wanted, and `failures`, name to reason (the first 1,000). It goes on in the proxy, whatever happens here.
    """

    def __init__(self, endpoint: str, key: str, progress: Callable[[Warmed], None] | None) -> None:
        self.name = key.partition("/")[2]
        self.state = "running"
        self.objects = self.bytes = self.wanted_objects = self.wanted_bytes = self.fetched_bytes = 0
        self.failures: dict[str, str] = {}
        self._endpoint = endpoint
        self._key = key
        self._progress = progress
        self._cancelled = False

    @property
    def done(self) -> bool:
        """It has ended, well or not: see `failures`. Asks the proxy while it has not. Raises what `refresh` raises."""
        if self.state != "running":
            return True
        try:
            return self.refresh().state != "running"
        except Gone:
            if not self._cancelled:
                raise
            # It ended of itself just before, and a proxy forgets what is cancelled after its end.
            self.state = "cancelled"
            return True

    def refresh(self) -> Warmed:
        """Ask the proxy how far it is.

        Raises:
            Gone: it is not there any more.
            OSError, http.client.HTTPException: the proxy does not answer.
        """
        port = S3Port(self._endpoint, _TIMEOUT_S)
        try:
            told = port.get(self._key)
        finally:
            port.close()
        if told is None:
            raise Gone(f"{self._key} is not there any more: was the proxy restarted?")
        self._take(told)
        return self

    def _take(self, told: dict[str, Any]) -> None:
        self.state = told["state"]
        self.objects, self.wanted_objects = told["objects"]["on_disk"], told["objects"]["wanted"]
        self.bytes, self.wanted_bytes = told["bytes"]["on_disk"], told["bytes"]["wanted"]
        self.fetched_bytes = told["bytes"]["fetched"]
        self.failures = {one["object"]: one["error"] for one in told["failures"]}

    def wait(self, timeout_s: float | None = None) -> Warmed:
        """Returns itself when it has ended, or after `timeout_s`; look at `done`. Ctrl-C leaves it running.

        `progress` is called whenever more is on disk. Raises what `refresh` and `progress` raise.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            before = self.objects, self.bytes, self.state
            self.refresh()
            if self._progress is not None and before != (self.objects, self.bytes, self.state):
                self._progress(self)
            if self.state != "running" or (until is not None and time.monotonic() >= until):
                return self
            time.sleep(_POLL_S)

    def cancel(self) -> None:
        """End a warm-up, or a pin. What came stays on disk. Raises OSError, http.client.HTTPException."""
        self._cancelled = True
        port = S3Port(self._endpoint, _TIMEOUT_S)
        try:
            port.delete(self._key)
        finally:
            port.close()

    def __repr__(self) -> str:
        counts = f"objects={self.objects}, bytes={self.bytes}, failed={len(self.failures)}"
        return f"Warmed({self.name}, {self.state}, {counts})"


def list_of(urls: str | Iterable[str]) -> bytes:
    """The list that the proxy takes. Raises ValueError: a template makes no sense."""
    lines = [urls] if isinstance(urls, str) else list(urls)
    for line in lines:
        next(expand(line))
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def name_of(body: bytes) -> str:
    """The same list has the same name: told again, it is the same warm-up or pin."""
    return f"sdk-{hashlib.sha256(body).hexdigest()[:12]}"
