"""Reads many objects by one request to the proxy; where there is no Outrider, or an older one, by plain GETs side by
side."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

from outrider_sdk.s3port import S3Port, code_in, message_in
from outrider_sdk.tarstream import TarStream

_TIMEOUT_S = 120.0
# The proxy takes so many in one request.
_READS_MAX = 1000
_READ_BYTES = 256 * 1024
_ERROR_BYTES_MAX = 64 * 1024
# Plain GETs at once.
_SIDE_BY_SIDE = 16
# A request is sent again after a refusal for lack of room, or after a broken connection, so often in a row.
_TRIES = 5
_PAUSE_S = 0.5
# Answers of a server that has no batches: it knows no such bucket, or no such call. An older Outrider gives 405.
_UNKNOWN = (400, 403, 404, 405, 501)

Key = str | tuple[str, int, int]
"""The key of an object, or a key with the first byte of a range and the byte behind its last one."""


class ObjectError(Exception):
    """An object could not be read: the `status` and the `code` of S3's error, and a message."""

    def __init__(self, key: Key, status: int, code: str, message: str) -> None:
        super().__init__(key, status, code, message)
        self.key = key
        self.status = status
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.key}: {self.status} {self.code}: {self.message}"


class BatchRefused(Exception):
    """The proxy refused the request as a whole; the message says why."""


Sample = tuple[Key, "bytes | ObjectError"]


class Batches:
    """For any number of threads, and for workers that are forked from them. Whether the server has batches is found out
    by the first one."""

    def __init__(self, endpoint: str, has_batches: bool | None = None) -> None:
        """`has_batches` None: not known yet."""
        self.endpoint = endpoint
        self.has_batches = has_batches
        self._idle: list[S3Port] = []
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[object, ...]:
        return Batches, (self.endpoint, self.has_batches)

    def runs(self, bucket: str, keys: Sequence[Key]) -> Generator[list[Sample], None, None]:
        """The objects in order, in runs: all that have come are one run.

        Raises:
            ValueError: a key is empty, or a range is.
            BatchRefused: the proxy refuses the request.
            OSError, http.client.HTTPException: the server does not answer, or breaks off again and again.
        """
        for key in keys:
            _check(key)
        for first in range(0, len(keys), _READS_MAX):
            part = keys[first : first + _READS_MAX]
            if self.has_batches is not False:
                yield from self._by_batch(bucket, part)
            if self.has_batches is False:
                yield from self._by_gets(bucket, part)

    def close(self) -> None:
        """Close the connections that no read uses."""
        while self._idle:
            self._idle.pop().close()

    __del__ = close

    # -- by one request -----------------------------------------------------------------------------------------------

    def _by_batch(self, bucket: str, keys: Sequence[Key]) -> Iterator[list[Sample]]:
        """Nothing: the server has no batches."""
        done = tries = 0
        while done < len(keys) and self.has_batches is not False:
            tries += 1
            if tries > 1:
                time.sleep(_PAUSE_S * tries)
            port, is_whole = self._port(), False
            try:
                reply = port.send("POST", "/_outrider/batch", _body(bucket, keys[done:]))
                if reply.status != 200:
                    self._refused(reply, is_last=tries >= _TRIES)
                    continue
                self.has_batches = True
                for run in _samples(reply, keys[done:]):
                    done, tries = done + len(run), 0
                    yield run
                if done < len(keys):
                    raise http.client.IncompleteRead(b"")
                is_whole = True
            except (OSError, http.client.HTTPException):
                if tries >= _TRIES or self.has_batches is None:
                    raise
            finally:
                if is_whole:
                    self._idle.append(port)
                else:
                    port.close()

    def _refused(self, reply: http.client.HTTPResponse, *, is_last: bool) -> None:
        """Raises BatchRefused: another try would be refused as well."""
        said = reply.read(_ERROR_BYTES_MAX)
        # Another thread may have found it out in this moment.
        if self.has_batches is not True and reply.status in _UNKNOWN:
            # An Outrider that has batches refuses one in its own words; that is no reason to go without them.
            is_ours = reply.getheader("server") == "outrider" and reply.status != 405
            if not is_ours:
                self.has_batches = False
                return
        if is_last or reply.status != 503:
            raise BatchRefused(f"the proxy refused the batch: {reply.status} {code_in(said)}: {message_in(said)}")

    # -- by plain GETs ------------------------------------------------------------------------------------------------

    def _by_gets(self, bucket: str, keys: Sequence[Key]) -> Iterator[list[Sample]]:
        threads = ThreadPoolExecutor(min(_SIDE_BY_SIDE, max(1, len(keys))), thread_name_prefix="outrider-get")
        try:
            for sample in threads.map(lambda key: self._get(bucket, key), keys):
                yield [sample]
        finally:
            threads.shutdown(cancel_futures=True)

    def _get(self, bucket: str, key: Key) -> Sample:
        name = key if isinstance(key, str) else key[0]
        more = {} if isinstance(key, str) else {"range": _range(key)}
        path = f"/{quote(f'{bucket}/{name}', safe='/', errors='surrogateescape')}"
        for left in reversed(range(_TRIES)):
            port = self._port()
            try:
                reply = port.send("GET", path, more=more)
                said = reply.read()
            except (OSError, http.client.HTTPException):
                port.close()
                if not left:
                    raise
            else:
                self._idle.append(port)
                if reply.status == 200 and not isinstance(key, str):
                    return key, said[key[1] : key[2]]  # a store that ignores Range
                if reply.status in (200, 206):
                    return key, said
                if reply.status < 500 or not left:
                    return key, ObjectError(key, reply.status, code_in(said), message_in(said))
            time.sleep(_PAUSE_S)
        raise AssertionError("unreachable")

    def _port(self) -> S3Port:
        if self._pid != os.getpid():
            # The connections are the parent's, too: each process would read replies of the other.
            self.close()
            self._pid = os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return S3Port(self.endpoint, _TIMEOUT_S)


def _samples(reply: http.client.HTTPResponse, keys: Sequence[Key]) -> Iterator[list[Sample]]:
    tar, left = TarStream(), iter(keys)
    while data := reply.read1(_READ_BYTES):
        run: list[Sample] = []
        for content, records in tar.feed(data):
            key = next(left)
            run.append((key, _error(key, content) if "OUTRIDER.status" in records else content))
        if run:
            yield run


def _error(key: Key, content: bytes) -> ObjectError:
    refusal = json.loads(content)
    return ObjectError(key, refusal["status"], refusal["code"], refusal["message"])


def _body(bucket: str, keys: Sequence[Key]) -> bytes:
    return json.dumps({"reads": [
        f"s3://{bucket}/{key}" if isinstance(key, str)
        else {"url": f"s3://{bucket}/{key[0]}", "range": _range(key)}
        for key in keys
    ]}).encode()  # fmt: skip


def _check(key: Key) -> None:
    """A plain GET of no key is a LIST, and one of no range is a GET of all bytes."""
    name, start, stop = (key, 0, 1) if isinstance(key, str) else key
    if not name or not 0 <= start < stop:
        raise ValueError(f"{key!r} is no key, and no (key, start, stop) with 0 <= start < stop")


def _range(key: tuple[str, int, int]) -> str:
    return f"bytes={key[1]}-{key[2] - 1}"
