"""The reserved bucket `_outrider`: the proxy asked, and told what a job will do, by plain S3 calls.

    GET   status.json     what the proxy is doing
    PUT   plan/<name>     the order in which one worker will read; GET gives it back and tells how far that is,
                          DELETE takes back what of it is still unread
    PUT   stall/<name>    how long a training loop waited for data since it last told; GET gives the sums
    PUT   warm/, pin/, evict/, verify/   orders: see `orders`
    GET   ?list-type=2    all of these

In sigv4 mode each client key has its own plans and stalls, and sees no others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Protocol

from outrider.core.ahead.hint_messages import Plan, PlanProgress, Stall, parse_plan, parse_stall
from outrider.core.ahead.hints import Hint
from outrider.core.errors import InvalidArgument, MethodNotAllowed, NoSuchKey
from outrider.core.model import ObjectRef
from outrider.core.s3 import operation, xml
from outrider.core.s3.encoding import encode_path
from outrider.http.access import Access, Who
from outrider.http.control.maintenance import FOLDERS, MaintenanceCommands
from outrider.http.control.objects import Answer, Asked, ControlObject, ControlObjects, etag_of, note_of, object_of
from outrider.metrics import Metrics
from outrider.ports import Clock

BODY_BYTES_MAX = 16 * 1024 * 1024
_STALL_BYTES_MAX = 64 * 1024
# Of plans and of stalls each: together, and with the orders, they fit on one page of a LIST.
NAMES_MAX = 400
_NAME_CHARS_MAX = 200
_NOTES_BYTES_MAX = 2 * BODY_BYTES_MAX
_REFS_AT_ONCE = 1000
# Of a count in a document that never changes its length.
_DIGITS = 9
_TAKEN = ", ".join(f"{folder}/" for folder in ("plan", "stall", *FOLDERS))
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

    def told(self, client: str, refs: Sequence[ObjectRef], *, start: int, total: int | None, telling: Hint) -> None:
        """One worker of `client` (see `access.reader_name`) will read these next, in this order: reads number `start`
        and on of the `total` of its epoch (None: not known, more may come). A long plan comes in pieces. `telling`
        remembers them."""
        ...

    def withdraw(self, telling: Hint, others: Iterable[Hint]) -> int:
        """Those of them that are unread, and not told by `others` too, are not expected any more; how many objects
        that were. What is on its way comes yet."""
        ...

    async def progress(self, telling: Hint) -> PlanProgress: ...


class ControlBucket:
    """Answers for the reserved bucket. Who asks was found out before; what he may is checked here."""

    def __init__(
        self, status: Callable[[], Mapping[str, object]], plans: Plans, orders: MaintenanceCommands, access: Access,
        metrics: Metrics, clock: Clock,
    ) -> None:  # fmt: skip
        """`clock`: seconds since 1970."""
        self._status = status
        self.plans = plans
        self.orders = orders
        self._access = access
        self._metrics = metrics
        self._clock = clock
        self._kept_plans = ControlObjects(NAMES_MAX, _NOTES_BYTES_MAX)
        # One plan after another: none is withdrawn while it is being told, and half of it is told after that.
        self._telling = asyncio.Lock()
        self._kept_stalls = ControlObjects(NAMES_MAX, _NOTES_BYTES_MAX)

    async def answer(self, asked: Asked) -> Answer:
        """Raises S3Error."""
        method, key = asked.operation.method, asked.operation.key
        names = {name for name, _ in asked.operation.query} - operation.MEANINGLESS_QUERY
        if names and (key or method != "GET"):
            raise MethodNotAllowed("The bucket _outrider has whole objects alone, put in one piece.")
        if not key:
            return self._bucket(asked, names)
        folder, slash, name = key.partition("/")
        if slash and folder in ("plan", "stall", *FOLDERS):
            if not name or len(name) > _NAME_CHARS_MAX or not name.isprintable():
                raise InvalidArgument(f"A name has 1 to {_NAME_CHARS_MAX} printable characters.")
            if folder in FOLDERS:
                return await self.orders.answer(asked, folder, name)
            return await (self._plan(asked, name) if folder == "plan" else self._stall(asked, name))
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"The bucket _outrider takes <name> under {_TAKEN}.")
        if key != "status.json":
            raise NoSuchKey(f"There is status.json, and <name> under {_TAKEN}.")
        return object_of(asked, self._status_json(asked.owner), self._clock())

    # -- plan/ ------------------------------------------------------------------------------------------------------

    async def _plan(self, asked: Asked, name: str) -> Answer:
        if asked.operation.method == "PUT":
            return await self._take_plan(asked, name)
        if asked.operation.method == "DELETE":
            return Answer(204, (("x-outrider-withdrawn", str(await self._withdraw(asked.owner, name))),))
        note = self._kept_plans.get(asked.owner, name)
        if note is None or note.telling is None:
            return note_of(asked, None)
        progress = await self.plans.progress(note.telling)
        return note_of(asked, replace(note, body=_with_progress(note.body, progress)))

    async def _withdraw(self, owner: str, name: str) -> int:
        """How many objects are not expected any more."""
        async with self._telling:
            note = self._kept_plans.pop(owner, name)
            if note is None or note.telling is None:
                return 0
            return self.plans.withdraw(note.telling, self._kept_plans.hints())

    async def _take_plan(self, asked: Asked, name: str) -> Answer:
        body = await asked.body(BODY_BYTES_MAX)
        # A long one takes a while, and the hits of others are not to wait for it.
        plan, text = await asyncio.to_thread(self._readable_plan, body, asked.who)
        async with self._telling:
            known = self._kept_plans.get(asked.owner, name)
            telling = (known and known.telling) or Hint()
            telling.go_on()
            self._metrics.planned_reads.inc(len(plan.refs))
            try:
                async for first, piece in _pieces(plan.refs):
                    self.plans.told(asked.client, piece, start=plan.start + first, total=plan.total, telling=telling)
            finally:
                # However far it came: what was told can be withdrawn.
                self._kept_plans.put(asked.owner, name, ControlObject(text, self._clock(), telling))
        return Answer(200, (("etag", etag_of(body)),))

    def _readable_plan(self, body: bytes, who: Who) -> tuple[Plan, bytes]:
        """The plan, and its text in UTF-8."""
        plan = parse_plan(body)
        self._access.check_reads(who, plan.refs)
        return plan, body.decode(json.detect_encoding(body), "surrogatepass").encode("utf-8", "surrogatepass")

    # -- stall/ -----------------------------------------------------------------------------------------------------

    async def _stall(self, asked: Asked, name: str) -> Answer:
        if asked.operation.method == "PUT":
            body = await asked.body(_STALL_BYTES_MAX)
            self._take_stall(asked, name, parse_stall(body))
            return Answer(200, (("etag", etag_of(body)),))
        if asked.operation.method == "DELETE":
            self._kept_stalls.pop(asked.owner, name)
            return Answer(204)
        return note_of(asked, self._kept_stalls.get(asked.owner, name))

    def _take_stall(self, asked: Asked, name: str, more: Stall) -> None:
        self._metrics.job_steps.inc(more.steps)
        self._metrics.job_wait_s.inc(more.wait_s)
        self._metrics.job_compute_s.inc(more.compute_s)
        known = self._kept_stalls.get(asked.owner, name)
        sums = parse_stall(known.body).plus(more) if known else more
        self._kept_stalls.put(
            asked.owner, name, ControlObject(json.dumps(asdict(sums)).encode() + b"\n", self._clock())
        )

    # -- the bucket itself ------------------------------------------------------------------------------------------

    def _status_json(self, owner: str) -> bytes:
        names = _FOR_CLIENTS + (_FOR_EVERYBODY if self._access.is_open else ())
        told = {name: value for name, value in self._status().items() if name in names}
        told.update(self.orders.status(owner))
        return json.dumps(told, indent=2).encode() + b"\n"

    def _bucket(self, asked: Asked, names: set[str]) -> Answer:
        if asked.operation.method == "HEAD":
            return Answer(200)
        if asked.operation.method != "GET" or not names <= operation.LIST_QUERY - {"versions", "uploads"}:
            raise MethodNotAllowed("The bucket _outrider can be listed, and no more.")
        entries = {
            **{
                f"plan/{name}": replace(note, body=_with_progress(note.body, PlanProgress()))
                for name, note in self._kept_plans.of(asked.owner)
            },
            **{f"stall/{name}": note for name, note in self._kept_stalls.of(asked.owner)},
            **dict(self.orders.entries(asked.owner)),
            "status.json": ControlObject(self._status_json(asked.owner), self._clock()),
        }
        return Answer(200, (("content-type", "application/xml"),), _list_xml(dict(asked.operation.query), entries))


async def _pieces(refs: Sequence[ObjectRef]) -> AsyncIterator[tuple[int, Sequence[ObjectRef]]]:
    """Each with the number of its first; between them the loop turns to others."""
    for first in range(0, len(refs), _REFS_AT_ONCE):
        yield first, refs[first : first + _REFS_AT_ONCE]
        await asyncio.sleep(0)


def _with_progress(plan: bytes, progress: PlanProgress) -> bytes:
    """The JSON of a plan, and in it how far that is. It is as long as at any other look, so that who goes by the size
    of a LIST, or reads it in parts, gets all of it."""
    counts = ", ".join(f'"{name}": {count:{_DIGITS}}' for name, count in asdict(progress).items())
    return b'%b, "progress": {%b}}\n' % (plan.rstrip()[:-1], counts.encode())


def _list_xml(asked_for: Mapping[str, str], entries: Mapping[str, ControlObject]) -> bytes:
    """All entries on one page, whatever was asked: there are fewer than the thousand that S3 gives."""
    prefix, delimiter = asked_for.get("prefix", ""), asked_for.get("delimiter", "")
    name_of = encode_path if asked_for.get("encoding-type") == "url" else xml.xml_text
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
            f"<ETag>{xml.xml_text(etag_of(note.body))}</ETag><Size>{len(note.body)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )
    commons = [f"<CommonPrefixes><Prefix>{name_of(folder)}</Prefix></CommonPrefixes>" for folder in folders]
    encoding = "<EncodingType>url</EncodingType>" if "encoding-type" in asked_for else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{operation.CONTROL_BUCKET}</Name><Prefix>{name_of(prefix)}</Prefix>"
        f"<Delimiter>{name_of(delimiter)}</Delimiter>{encoding}<MaxKeys>1000</MaxKeys>"
        f"<KeyCount>{len(lines) + len(commons)}</KeyCount><IsTruncated>false</IsTruncated>"
        f"{''.join(lines + commons)}</ListBucketResult>"
    ).encode()
