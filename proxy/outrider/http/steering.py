"""The reserved bucket `_outrider`: the proxy asked, and told what a job will do, by plain S3 calls.

    GET   status.json     what the proxy is doing
    PUT   plan/<name>     the order in which one worker will read; GET gives it back, DELETE withdraws it
    PUT   stall/<name>    how long a training loop waited for data since it last told; GET gives the sums
    GET   ?list-type=2    all of these

In sigv4 mode each client key has its own plans and stalls, and sees no others.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from hashlib import md5
from typing import Protocol

from outrider.core import ranges, s3wire
from outrider.core.canonical import encode_path
from outrider.core.errors import EntityTooLarge, InvalidArgument, MethodNotAllowed, NoSuchKey
from outrider.core.model import Headers, ObjectRef
from outrider.core.payload import decoded_length_of
from outrider.core.plans import Plan, Stall, parse_plan, parse_stall
from outrider.core.s3wire import Operation
from outrider.http.access import Access, Who
from outrider.metrics import Metrics
from outrider.ports import Clock

BODY_BYTES_MAX = 16 * 1024 * 1024
_STALL_BYTES_MAX = 64 * 1024
# Of plans and of stalls each: together they fit on one page of a LIST.
NAMES_MAX = 400
_NAME_CHARS_MAX = 200
_NOTES_BYTES_MAX = 2 * BODY_BYTES_MAX
_REFS_AT_ONCE = 1000
# Of `/status`. Addresses inside the cluster, and where the bucket is, are no client's business.
_FOR_CLIENTS = (
    "version", "ready", "indexed", "blocks", "bytes", "objects", "fills", "requests", "served_bytes", "origin_bytes",
    "origin_requests", "prefetch", "hit_ratio_by_size", "uptime_s", "disk",
)  # fmt: skip
# Where nobody is asked who he is, there is nobody to keep them from.
_FOR_EVERYBODY = (
    "verdict", "larger_cache", "throughput", "saved", "prices", "reads", "datasets", "datasets_known", "readers",
    "errors", "warmups", "pins",
)  # fmt: skip


class Plans(Protocol):
    """Takes what jobs tell of their coming reads."""

    def told(self, client: str, refs: Sequence[ObjectRef], *, start: int, total: int | None) -> None:
        """One worker of `client` (see `access.reader_name`) will read these next, in this order: reads number `start`
        and on of the `total` of its epoch (None: not known, more may come). A long plan comes in pieces."""
        ...

    def withdrawn(self, client: str, refs: Sequence[ObjectRef]) -> None:
        """The plan with these was deleted. A long one comes in pieces."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the reserved bucket. `client`: see `access.reader_name`. `read_body` takes the limit in bytes."""

    operation: Operation
    headers: Headers
    who: Who
    client: str
    read_body: Callable[[int], Awaitable[bytes]]

    @property
    def owner(self) -> str:
        return self.who.client.access_key if self.who.client else ""

    async def body(self, limit: int) -> bytes:
        """Raises EntityTooLarge, and what `engine.uploads.whole_body` raises."""
        told = dict(self.headers).get("content-length", "")
        length = decoded_length_of(self.headers) if self.who.payload.chunked else int(told) if told else None
        if length is not None and length > limit:
            raise EntityTooLarge(f"At most {limit} bytes are taken here; a long plan can be told in parts.")
        return await self.read_body(limit)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Headers = ()
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Note:
    """What stands under a name, who put it there (`client`), and when (seconds since 1970)."""

    body: bytes
    client: str
    at: float


class _Notes:
    """The last ones put, by owner and name: bounded in number and in bytes."""

    def __init__(self) -> None:
        self._notes: OrderedDict[tuple[str, str], _Note] = OrderedDict()
        self._bytes = 0

    def put(self, owner: str, name: str, note: _Note) -> None:
        self.pop(owner, name)
        self._notes[owner, name] = note
        self._bytes += len(note.body)
        while len(self._notes) > NAMES_MAX or self._bytes > _NOTES_BYTES_MAX:
            self.pop(*next(iter(self._notes)))

    def get(self, owner: str, name: str) -> _Note | None:
        return self._notes.get((owner, name))

    def pop(self, owner: str, name: str) -> _Note | None:
        note = self._notes.pop((owner, name), None)
        self._bytes -= len(note.body) if note else 0
        return note

    def of(self, owner: str) -> Iterator[tuple[str, _Note]]:
        return ((name, note) for (whose, name), note in self._notes.items() if whose == owner)


class Steering:
    """Answers for the reserved bucket. Who asks was found out before; what he may is checked here."""

    def __init__(
        self, status: Callable[[], Mapping[str, object]], plans: Plans, access: Access, metrics: Metrics, clock: Clock
    ) -> None:
        """`clock`: seconds since 1970."""
        self._status = status
        self.plans = plans
        self._access = access
        self._metrics = metrics
        self._clock = clock
        self._kept_plans = _Notes()
        self._kept_stalls = _Notes()

    async def answer(self, asked: Asked) -> Answer:
        """Raises S3Error."""
        method, key = asked.operation.method, asked.operation.key
        names = {name for name, _ in asked.operation.query} - s3wire.MEANINGLESS_QUERY
        if names and (key or method != "GET"):
            raise MethodNotAllowed("The bucket _outrider has whole objects alone, put in one piece.")
        if not key:
            return self._bucket(asked, names)
        folder, slash, name = key.partition("/")
        if slash and folder in ("plan", "stall"):
            if not name or len(name) > _NAME_CHARS_MAX or not name.isprintable():
                raise InvalidArgument(f"A name has 1 to {_NAME_CHARS_MAX} printable characters.")
            return await (self._plan(asked, name) if folder == "plan" else self._stall(asked, name))
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowed("The bucket _outrider takes plan/<name> and stall/<name>.")
        if key != "status.json":
            raise NoSuchKey("There is status.json, plan/<name> and stall/<name>.")
        return _object(asked, self._status_json(), self._clock())

    # -- plan/ ------------------------------------------------------------------------------------------------------

    async def _plan(self, asked: Asked, name: str) -> Answer:
        if asked.operation.method == "PUT":
            return await self._take_plan(asked, name)
        if asked.operation.method == "DELETE":
            if (note := self._kept_plans.pop(asked.owner, name)) is not None:
                plan = await asyncio.to_thread(parse_plan, note.body)
                async for _, piece in _pieces(plan.refs):
                    self.plans.withdrawn(note.client, piece)
            return Answer(204)
        return _note_of(asked, self._kept_plans.get(asked.owner, name))

    async def _take_plan(self, asked: Asked, name: str) -> Answer:
        body = await asked.body(BODY_BYTES_MAX)
        # A long one takes a while, and the hits of others are not to wait for it.
        plan = await asyncio.to_thread(self._readable_plan, body, asked.who)
        self._kept_plans.put(asked.owner, name, _Note(body, asked.client, self._clock()))
        self._metrics.planned_reads.inc(len(plan.refs))
        async for first, piece in _pieces(plan.refs):
            self.plans.told(asked.client, piece, start=plan.start + first, total=plan.total)
        return Answer(200, (("etag", _etag(body)),))

    def _readable_plan(self, body: bytes, who: Who) -> Plan:
        plan = parse_plan(body)
        self._access.check_reads(who, plan.refs)
        return plan

    # -- stall/ -----------------------------------------------------------------------------------------------------

    async def _stall(self, asked: Asked, name: str) -> Answer:
        if asked.operation.method == "PUT":
            body = await asked.body(_STALL_BYTES_MAX)
            self._take_stall(asked, name, parse_stall(body))
            return Answer(200, (("etag", _etag(body)),))
        if asked.operation.method == "DELETE":
            self._kept_stalls.pop(asked.owner, name)
            return Answer(204)
        return _note_of(asked, self._kept_stalls.get(asked.owner, name))

    def _take_stall(self, asked: Asked, name: str, more: Stall) -> None:
        self._metrics.job_steps.inc(more.steps)
        self._metrics.job_wait_s.inc(more.wait_s)
        self._metrics.job_compute_s.inc(more.compute_s)
        known = self._kept_stalls.get(asked.owner, name)
        sums = parse_stall(known.body).plus(more) if known else more
        self._kept_stalls.put(
            asked.owner, name, _Note(json.dumps(asdict(sums)).encode() + b"\n", asked.client, self._clock())
        )

    # -- the bucket itself ------------------------------------------------------------------------------------------

    def _status_json(self) -> bytes:
        names = _FOR_CLIENTS + (_FOR_EVERYBODY if self._access.is_open else ())
        told = {name: value for name, value in self._status().items() if name in names}
        return json.dumps(told, indent=2).encode() + b"\n"

    def _bucket(self, asked: Asked, names: set[str]) -> Answer:
        if asked.operation.method == "HEAD":
            return Answer(200)
        if asked.operation.method != "GET" or not names <= s3wire.LIST_QUERY - {"versions", "uploads"}:
            raise MethodNotAllowed("The bucket _outrider can be listed, and no more.")
        entries = {
            **{f"plan/{name}": note for name, note in self._kept_plans.of(asked.owner)},
            **{f"stall/{name}": note for name, note in self._kept_stalls.of(asked.owner)},
            "status.json": _Note(self._status_json(), "", self._clock()),
        }
        return Answer(200, (("content-type", "application/xml"),), _list_xml(dict(asked.operation.query), entries))


async def _pieces(refs: Sequence[ObjectRef]) -> AsyncIterator[tuple[int, Sequence[ObjectRef]]]:
    """Each with the number of its first; between them the loop turns to others."""
    for first in range(0, len(refs), _REFS_AT_ONCE):
        yield first, refs[first : first + _REFS_AT_ONCE]
        await asyncio.sleep(0)


def _note_of(asked: Asked, note: _Note | None) -> Answer:
    if asked.operation.method not in ("GET", "HEAD"):
        raise MethodNotAllowed
    if note is None:
        raise NoSuchKey
    return _object(asked, note.body, note.at)


def _object(asked: Asked, body: bytes, at: float) -> Answer:
    """Whole, or the one range that was asked for: `aws s3 cp` reads what is long in parts."""
    headers = (
        ("content-type", "application/json"), ("etag", _etag(body)), ("last-modified", formatdate(at, usegmt=True)),
        ("cache-control", "no-store"),
    )  # fmt: skip
    header = dict(asked.headers).get("range")
    spec = ranges.parse(header) if header is not None and asked.operation.method == "GET" else None
    extent = ranges.resolve(spec, len(body)) if spec is not None else None
    if extent is None:
        return Answer(200, headers, body)
    told = ("content-range", ranges.content_range(extent, len(body)))
    return Answer(206, (*headers, told), body[extent.start : extent.stop])


def _etag(body: bytes) -> str:
    return f'"{md5(body, usedforsecurity=False).hexdigest()}"'


def _list_xml(asked_for: Mapping[str, str], entries: Mapping[str, _Note]) -> bytes:
    """All entries on one page, whatever was asked: there are fewer than the thousand that S3 gives."""
    prefix, delimiter = asked_for.get("prefix", ""), asked_for.get("delimiter", "")
    name_of = encode_path if asked_for.get("encoding-type") == "url" else s3wire.xml_text
    lines: list[str] = []
    folders: dict[str, None] = {}
    for key, note in sorted(entries.items()):
        if not key.startswith(prefix):
            continue
        head, found, _ = key.removeprefix(prefix).partition(delimiter) if delimiter else ("", "", "")
        if found:
            folders[prefix + head + found] = None
            continue
        at = datetime.fromtimestamp(note.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        lines.append(
            f"<Contents><Key>{name_of(key)}</Key><LastModified>{at}</LastModified>"
            f"<ETag>{s3wire.xml_text(_etag(note.body))}</ETag><Size>{len(note.body)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )
    commons = [f"<CommonPrefixes><Prefix>{name_of(folder)}</Prefix></CommonPrefixes>" for folder in folders]
    encoding = "<EncodingType>url</EncodingType>" if "encoding-type" in asked_for else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{s3wire.STEERING_BUCKET}</Name><Prefix>{name_of(prefix)}</Prefix>"
        f"<Delimiter>{name_of(delimiter)}</Delimiter>{encoding}<MaxKeys>1000</MaxKeys>"
        f"<KeyCount>{len(lines) + len(commons)}</KeyCount><IsTruncated>false</IsTruncated>"
        f"{''.join(lines + commons)}</ListBucketResult>"
    ).encode()
