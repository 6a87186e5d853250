"""The client: finds the proxy, reads its status, sends it plans, and warms, pins and evicts objects."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar
from urllib.parse import urlsplit

from outrider_sdk.batch import Batches, BatchRefused, Key, Sample
from outrider_sdk.s3port import NotOutrider, S3Port
from outrider_sdk.urls import expand, object_of
from outrider_sdk.warming import Warmed, list_of, name_of

_S3_PORT, _ADMIN_PORT = 9480, 9481
_TIMEOUT_S = 5.0
# A pin is answered only after the sizes of all of its objects are known.
_COMMAND_TIMEOUT_S = 600.0
_STATUS_BYTES_MAX = 16 * 1024 * 1024
# A longer plan is sent in parts: the proxy takes 16 MiB at once.
_READS_MAX = 10_000


_T = TypeVar("_T")


class ProxyRefused(Exception):
    """The proxy answered and refused; the message says why."""


class ProxyNotFound(ConnectionError):
    """No Outrider answers; the message says which address was tried, and what to do."""


@dataclass(frozen=True)
class Status:
    """State of the proxy. Bytes and counts are since its start, except `blocks` and `bytes`, which are on disk now.

    `served_bytes` is by source (disk: a hit; flight: while it was filled; origin: past the cache). `origin` None: AWS,
    or unknown. Both `origin` and `listen` are unknown where only the S3 port can be reached. `warmups` and `pins`: the
    progress of each.
    """

    version: str
    ready: bool
    listen: str | None = None
    origin: str | None = None
    blocks: int = 0
    bytes: int = 0
    objects: int = 0
    fills: int = 0
    requests: int = 0
    served_bytes: Mapping[str, int] | None = None
    origin_bytes: int = 0
    origin_requests: int = 0
    warmups: Sequence[Mapping[str, Any]] = ()
    pins: Sequence[Mapping[str, Any]] = ()


class Client:
    """A proxy, by the addresses of its S3 port (`endpoint`) and its admin port (`admin`), both http://HOST:PORT.

    An address that is not given is taken from OUTRIDER_STATUS_URL, AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL, or else is
    a default port of 127.0.0.1. Nothing is sent before the first call.
    """

    def __init__(self, endpoint: str | None = None, admin: str | None = None, token: str | None = None) -> None:
        """`token`: the bearer token of the admin port, if it has one; default: OUTRIDER_ADMIN_TOKEN.

        Raises:
            ValueError: `endpoint` or `admin` is not an http or https address.
        """
        self.endpoint = _address(endpoint or endpoint_of(os.environ) or f"http://127.0.0.1:{_S3_PORT}")
        beside = f"http://{_host(self.endpoint)}:{_ADMIN_PORT}"
        self.admin = _address(admin or os.environ.get("OUTRIDER_STATUS_URL") or beside)
        # Stripped as in the proxy: a Secret that was made from a file ends with a line break.
        self._token = token or os.environ.get("OUTRIDER_ADMIN_TOKEN", "").strip()
        self.batches = Batches(self.endpoint)

    def status(self) -> Status:
        """State of the proxy, from the admin port, or from the S3 port where the admin port cannot be reached.

        Raises ProxyNotFound.
        """
        request = urllib.request.Request(f"{self.admin}/status")  # noqa: S310 - http or https, by `_address`
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with _direct().open(request, timeout=_TIMEOUT_S) as reply:
                answer = json.loads(reply.read(_STATUS_BYTES_MAX))
        except urllib.error.HTTPError as error:
            error.close()
            do = "set OUTRIDER_ADMIN_TOKEN" if error.code == 401 else "check admin= or OUTRIDER_STATUS_URL"
            raise ProxyNotFound(f"{self.admin} answered /status with {error.code}: {do}") from error
        except OSError as error:
            if (by_s3 := self._status_by_s3()) is not None:
                return by_s3
            why = getattr(error, "reason", error)
            raise ProxyNotFound(
                f"no admin port of an Outrider at {self.admin} ({why}): start `outrider serve`, run this under "
                "`outrider run --`, or give admin= or OUTRIDER_STATUS_URL"
            ) from error
        except (ValueError, http.client.HTTPException) as error:
            raise ProxyNotFound(f"{self.admin} is no Outrider: its /status is not JSON") from error
        return _status_of(answer, self.admin)

    def plan(self, urls: str | Iterable[str], start: int = 0, total: int | None = None, *, name: str = "sdk") -> int:
        """Announce the order in which one worker of this machine is going to read. Returns the number of reads.

        `urls`: s3://BUCKET/KEY, with templates like {000000..001281}, or another form that `urls.object_of`
        understands. The first of them is read number `start` of the `total` in this worker's epoch; `total` None: the
        last of them ends the epoch. A plan replaces an earlier one of the same `name`.

        Raises:
            ProxyNotFound: no Outrider answers.
            ProxyRefused: the proxy refuses the plan.
            ValueError: a URL names no object, or a template makes no sense.
        """
        reads: list[str] = []
        for url in [urls] if isinstance(urls, str) else urls:
            # Braces have another meaning in a command, and none in an http URL.
            for single in expand(url) if url.startswith("s3://") else (url,):
                named = object_of(single, self.endpoint)
                if named is None:
                    raise ValueError(f"{single}: must be s3://BUCKET/KEY of one object, or a template of such URLs")
                reads.append(named)
        whole = start + len(reads) if total is None else total
        port = S3Port(self.endpoint, _TIMEOUT_S)
        try:
            port.status()
            for first in range(0, len(reads), _READS_MAX):
                self._put_plan(port, name, reads[first : first + _READS_MAX], start + first, whole)
        except NotOutrider as error:
            raise ProxyNotFound(f"at {self.endpoint} there is {error}") from error
        except (OSError, http.client.HTTPException) as error:
            raise ProxyNotFound(_nothing_at(self.endpoint, error)) from error
        finally:
            port.close()
        return len(reads)

    def planned(self, name: str = "sdk") -> Mapping[str, int]:
        """Progress of the plan of that `name`; empty: there is no such plan. Raises ProxyNotFound.

        All counts are of objects: `told` in the plan, `read`, `here` in the cache but unread, `left` elsewhere and
        unread, and `unknown` by now. `ignored` counts reads for which the settings allow no prefetch.
        """
        answer = self._call(lambda port: port.get(f"plan/{name}")) or {}
        progress: Mapping[str, int] = answer.get("progress", {})
        return progress

    def unplan(self, name: str = "sdk") -> int:
        """Take back the unread rest of the plan of that `name`, so that nothing more is prefetched for it.

        Returns the number of its unread objects. Raises ProxyNotFound.
        """
        headers = self._call(lambda port: port.delete(f"plan/{name}"))
        return int(headers.get("x-outrider-withdrawn", 0))

    def _put_plan(self, port: S3Port, name: str, reads: Sequence[str], start: int, total: int) -> None:
        body = json.dumps({"reads": reads, "start": start, "total": total}).encode()
        if (why := port.put(f"plan/{name}", body)) is not None:
            raise ProxyRefused(f"the proxy refused the plan: {why}")

    def warm(
        self, urls: str | Iterable[str], wait: bool = True, progress: Callable[[Warmed], None] | None = None,
        *, rate: str | None = None, copies: str | int | None = None,
    ) -> Warmed:  # fmt: skip
        """Have the proxy fetch objects into its cache, as far as the cache has room.

        `urls`: s3://BUCKET/KEY, s3://BUCKET/PREFIX/, templates like {000000..001281}, or many of them. Objects that
        cannot be fetched are in `failures` of the result, with the reason. `wait` False: returns at once, and the proxy
        continues. While this waits, `progress` is called whenever more is on disk. `rate`: bytes a second at most, like
        200MB. `copies`: in a cluster, at how many members each block is kept: "all", or a number; None: at its owner.

        Raises:
            ProxyNotFound: no Outrider answers.
            ProxyRefused: the proxy refuses the list.
            ValueError: a template makes no sense.
        """
        more = {"x-amz-meta-rate": rate, "x-amz-meta-copies": copies}
        answer = {name: str(value) for name, value in more.items() if value is not None}
        return self._fetch("warm", urls, wait, progress, answer)

    def pin(
        self, urls: str | Iterable[str], wait: bool = True, progress: Callable[[Warmed], None] | None = None
    ) -> Warmed:
        """Reserve room for these objects, and fetch them as `warm` does. None of them is evicted until `unpin`.

        Raises the errors of `warm`. ProxyRefused, with the numbers, also says that the objects do not fit beside the
        other pins.
        """
        return self._fetch("pin", urls, wait, progress, {})

    def unpin(self, urls: str | Iterable[str]) -> None:
        """End the pin of just this list. Raises ProxyNotFound, ValueError."""
        body = list_of(urls)
        self._call(lambda port: port.delete(f"pin/{name_of(body)}"))

    def evict(self, urls: str | Iterable[str]) -> Mapping[str, Any]:
        """Drop the blocks of these objects from the cache. Raises the errors of `warm`.

        Returns the dropped `blocks` and `bytes`, the blocks that are being read and go later (`in_use_blocks`), and
        those that stay (`pinned_blocks`).
        """
        body = list_of(urls)
        key = f"evict/{name_of(body)}"
        self._put(key, body, {})
        return self._call(lambda port: port.get(key)) or {}

    def get_batch(self, bucket: str, keys: Sequence[Key]) -> Generator[Sample, None, None]:
        """Read objects, many by one request. Yields each key with the object's bytes, or with the `ObjectError` that
        says why there are none, in the order of `keys`.

        A key may be `(key, start, stop)`: the bytes from `start` up to `stop`. A server that has no batches is asked by
        plain GETs, side by side. Closing the iterator ends the request.

        Raises:
            ValueError: a key is empty, or a range is.
            ProxyNotFound: no server answers, or it breaks off again and again.
            ProxyRefused: the proxy refuses the request.
        """
        for run in self.batch_runs(bucket, keys):
            yield from run

    def batch_runs(self, bucket: str, keys: Sequence[Key]) -> Generator[list[Sample], None, None]:
        """As `get_batch`, in runs: all samples that have come are one."""
        try:
            yield from self.batches.runs(bucket, keys)
        except BatchRefused as error:
            raise ProxyRefused(str(error)) from error
        except (OSError, http.client.HTTPException) as error:
            raise ProxyNotFound(_nothing_at(self.endpoint, error)) from error

    def _fetch(
        self, folder: str, urls: str | Iterable[str], wait: bool, progress: Callable[[Warmed], None] | None,
        more: Mapping[str, str],
    ) -> Warmed:  # fmt: skip
        body = list_of(urls)
        key = f"{folder}/{name_of(body)}"
        self._put(key, body, more)
        warmed = Warmed(self.endpoint, key, progress)
        return warmed.wait() if wait else warmed

    def _put(self, key: str, body: bytes, more: Mapping[str, str]) -> None:
        if (why := self._call(lambda port: port.put(key, body, more))) is not None:
            raise ProxyRefused(f"the proxy refused the list: {why}")

    def _call(self, ask: Callable[[S3Port], _T]) -> _T:
        """Result of one request, sent after a status request that shows that the address is an Outrider."""
        port = S3Port(self.endpoint, _COMMAND_TIMEOUT_S)
        try:
            port.status()
            return ask(port)
        except NotOutrider as error:
            raise ProxyNotFound(f"at {self.endpoint} there is {error}") from error
        except (OSError, http.client.HTTPException) as error:
            raise ProxyNotFound(_nothing_at(self.endpoint, error)) from error
        finally:
            port.close()

    def _status_by_s3(self) -> Status | None:
        port = S3Port(self.endpoint, _TIMEOUT_S)
        try:
            return _status_of(port.status(), self.endpoint)
        except (NotOutrider, OSError, http.client.HTTPException):
            return None
        finally:
            port.close()


def endpoint_of(environ: Mapping[str, str]) -> str | None:
    """The endpoint that the environment names to S3 clients; None: it names none, or says that clients ignore it."""
    if environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return None
    return environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or None


def _nothing_at(endpoint: str, error: Exception) -> str:
    return (
        f"nothing listens at {endpoint} ({error}): start `outrider serve`, run this under "
        "`outrider run --`, or give endpoint= or AWS_ENDPOINT_URL"
    )


def _status_of(answer: Any, admin: str) -> Status:
    """The known fields of the answer; those that a newer proxy has added are left out."""
    known = {field.name for field in fields(Status)}
    if not isinstance(answer, dict) or not {"version", "ready"} <= answer.keys():
        raise ProxyNotFound(f"{admin} is no Outrider: its /status lacks version or ready")
    return Status(**{name: _whole(value) for name, value in answer.items() if name in known})


def _whole(value: Any) -> Any:
    """The value with each float as an int: the proxy sends counters as floats of whole numbers."""
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    return int(value) if isinstance(value, float) else value


def _address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not the address of a proxy: write http://HOST:PORT")
    return url.rstrip("/")


def _host(url: str) -> str:
    host = urlsplit(url).hostname or ""
    return f"[{host}]" if ":" in host else host


def _direct() -> urllib.request.OpenerDirector:
    # The variable http_proxy is for the network outside; an Outrider is on this machine, or near it.
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))
