"""Objects read through the proxy in the background, and how far that is."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from outrider_sdk.s3port import S3Port, code_in
from outrider_sdk.urls import expand, path_of

_PIECE_BYTES = 1024 * 1024
# A fill of a slow origin is waited for as long as the proxy itself waits.
_TIMEOUT_S = 120.0
_TRIES = 4
_BACKOFF_S = 0.25
_ERROR_BYTES_MAX = 64 * 1024


class _Refused(Exception):
    """A reason that trying again does not change."""


class Warmed:
    """The work of one `warm`, done or under way: `objects` and `bytes` read whole, and `failures`, URL to reason."""

    def __init__(
        self, endpoint: str, urls: str | Iterable[str], parallel: int, progress: Callable[[Warmed], None] | None
    ) -> None:
        if parallel < 1:
            raise ValueError(f"parallel is {parallel}: must be 1 or more")
        if not isinstance(urls, str):
            urls = list(urls)
        self.objects = 0
        self.bytes = 0
        self.failures: dict[str, str] = {}
        self._endpoint = endpoint
        self._urls = _checked(urls)
        self._progress = progress
        self._lock = threading.Lock()
        self._stopped = False
        self._error: BaseException | None = None
        # Daemons: a process that ends is not kept by a warm-up that nobody waits for.
        self._threads = [
            threading.Thread(target=self._work, name="outrider-warm", daemon=True) for _ in range(parallel)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def wait(self, timeout_s: float | None = None) -> Warmed:
        """Returns itself when all is done, or after `timeout_s`; look at `done`. Ctrl-C ends the work as well.

        Raises whatever `progress` raised.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            for thread in self._threads:
                thread.join(None if until is None else max(0.0, until - time.monotonic()))
        except BaseException:
            self._stopped = True
            raise
        if self._error is not None:
            raise self._error
        return self

    def __repr__(self) -> str:
        return f"Warmed(objects={self.objects}, bytes={self.bytes}, failures={len(self.failures)}, done={self.done})"

    def _work(self) -> None:
        reader = _Reader(self._endpoint)
        try:
            while (url := self._next()) is not None:
                try:
                    count, reason = reader.read(url), None
                except (_Refused, ValueError) as error:
                    count, reason = 0, str(error)
                self._note(url, count, reason)
        except BaseException as error:  # noqa: BLE001 - top of a thread: `wait` raises it
            self._error, self._stopped = error, True
        finally:
            reader.close()

    def _next(self) -> str | None:
        with self._lock:
            return None if self._stopped else next(self._urls, None)

    def _note(self, url: str, count: int, reason: str | None) -> None:
        with self._lock:
            if reason is None:
                self.objects += 1
                self.bytes += count
            else:
                self.failures[url] = reason
            if self._progress is not None:
                self._progress(self)


class _Reader:
    """One connection, kept from object to object."""

    def __init__(self, endpoint: str) -> None:
        self._port = S3Port(endpoint, _TIMEOUT_S)
        self._buffer = bytearray(_PIECE_BYTES)

    def read(self, url: str) -> int:
        """How many bytes the object has. A connection that broke and a proxy that is busy are tried again.

        Raises:
            ValueError: the URL names no object.
            _Refused: it cannot be read, and why.
        """
        path = path_of(url)
        for tries_left in reversed(range(_TRIES)):
            try:
                return self._get(path)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not tries_left:
                    raise _Refused(f"{error or type(error).__name__}") from error
                time.sleep(_BACKOFF_S * (_TRIES - tries_left))
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        self._port.close()

    def _get(self, path: str) -> int:
        reply = self._port.send("GET", path)
        if reply.status >= 500:
            raise http.client.HTTPException(f"{reply.status} {_code(reply)}".strip())
        if reply.status != 200 or reply.getheader("x-cache") is None:
            reason = _reason(reply)
            # Its body was not read to the end, so nothing else can be asked on this connection.
            self.close()
            raise _Refused(reason)
        count = 0
        while got := reply.readinto(self._buffer):
            count += got
        if reply.length:
            raise http.client.IncompleteRead(b"", reply.length)
        return count


def _reason(reply: http.client.HTTPResponse) -> str:
    if reply.status == 200:
        return "that is no Outrider: its reply has no x-cache header; check endpoint= or AWS_ENDPOINT_URL"
    code = _code(reply)
    if reply.status == 403:
        return (
            f"403 {code}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to a client key of the proxy that may read "
            "this; in loopback mode, the bucket refuses the proxy's own credentials: see `outrider doctor`"
        )
    return f"{reply.status} {code}".strip()


def _code(reply: http.client.HTTPResponse) -> str:
    return code_in(reply.read(_ERROR_BYTES_MAX))


def _checked(urls: str | Iterable[str]) -> Iterator[str]:
    """Templates that make no sense are an error of the caller's, at once, and not a failure of an object."""
    for template in [urls] if isinstance(urls, str) else urls:
        next(expand(template))
    return expand(urls)
