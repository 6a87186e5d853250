"""Progress of a warm-up or a pin in the proxy."""

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
    """The proxy no longer has this warm-up or pin: the proxy was restarted, or another client removed it."""


class Warmed:
    """Progress of one list at the last refresh: the `objects` that are whole on disk, the `bytes` of the wanted objects
    on disk, and the `failures`, name to reason (the first 1,000). `notes`: sentences about copies that are not kept.

    The proxy continues by itself, whatever happens to this object.
    """

    def __init__(self, endpoint: str, key: str, progress: Callable[[Warmed], None] | None) -> None:
        self.name = key.partition("/")[2]
        self.state = "running"
        self.objects = self.bytes = self.wanted_objects = self.wanted_bytes = self.fetched_bytes = 0
        self.failures: dict[str, str] = {}
        self.notes: list[str] = []
        self._endpoint = endpoint
        self._key = key
        self._progress = progress
        self._cancelled = False

    @property
    def done(self) -> bool:
        """Whether it has ended, with or without failures. While it runs, this calls `refresh` and raises its errors."""
        if self.state != "running":
            return True
        try:
            return self.refresh().state != "running"
        except Gone:
            if not self._cancelled:
                raise
            # It had just ended by itself: the proxy forgets a warm-up that is cancelled after its end.
            self.state = "cancelled"
            return True

    def refresh(self) -> Warmed:
        """Ask the proxy for the progress.

        Raises:
            Gone: the proxy no longer has it.
            OSError, http.client.HTTPException: the proxy does not answer.
        """
        port = S3Port(self._endpoint, _TIMEOUT_S)
        try:
            answer = port.get(self._key)
        finally:
            port.close()
        if answer is None:
            raise Gone(f"the proxy no longer has {self._key}: was it restarted?")
        self._take(answer)
        return self

    def _take(self, answer: dict[str, Any]) -> None:
        self.state = answer["state"]
        self.objects, self.wanted_objects = answer["objects"]["on_disk"], answer["objects"]["wanted"]
        self.bytes, self.wanted_bytes = answer["bytes"]["on_disk"], answer["bytes"]["wanted"]
        self.fetched_bytes = answer["bytes"]["fetched"]
        self.failures = {failure["object"]: failure["error"] for failure in answer["failures"]}
        self.notes = answer.get("notes", [])

    def wait(self, timeout_s: float | None = None) -> Warmed:
        """Wait until it has ended, or for `timeout_s`; `done` says which. Ctrl-C leaves it running in the proxy.

        `progress` is called whenever more is on disk. Raises the errors of `refresh` and `progress`. Returns itself.
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
        """End the warm-up or the pin. Fetched blocks stay on disk. Raises OSError, http.client.HTTPException."""
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
    """Body of the list, as the proxy takes it. Raises ValueError: a template makes no sense."""
    lines = [urls] if isinstance(urls, str) else list(urls)
    for line in lines:
        next(expand(line))
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def name_of(body: bytes) -> str:
    """Name of a list, made from its content: the same list sent again is the same warm-up or pin."""
    return f"sdk-{hashlib.sha256(body).hexdigest()[:12]}"
