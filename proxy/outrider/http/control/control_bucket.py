"""The control bucket `_outrider`: which folder answers a request, and the folders `plan/` and `stall/`.

    PUT   plan/<name>     the order in which one worker will read; GET returns it with the progress of the worker,
                          DELETE withdraws the reads that are still to come
    PUT   stall/<name>    how long a training loop waited for data since its last report; GET returns the sums
    POST  batch           many objects as one tar: see `batch_body`
    GET   descriptors.json    where a mount on this machine gets descriptors of block files: see `lender`
    GET   ?list-type=2    all objects but batches and descriptors.json

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
from outrider.core.cache.loan_messages import DESCRIPTORS
from outrider.core.errors import InvalidArgument, MethodNotAllowed, NoSuchKey
from outrider.core.model import ObjectRef
from outrider.core.s3 import operation, xml
from outrider.core.s3.batch import BODY_BYTES_MAX as BATCH_BYTES_MAX
from outrider.core.s3.batch import parse_batch
from outrider.core.s3.encoding import encode_path
from outrider.core.s3.reach import LIST_QUERY
from outrider.http.access import Access, Principal
from outrider.http.control.batch_body import BatchBody
from outrider.http.control.batch_objects import BatchObjects, BatchParts
from outrider.http.control.lender import Lender
from outrider.http.control.maintenance import FOLDERS, MaintenanceCommands
from outrider.http.control.objects import (
    ControlAnswer,
    ControlObject,
    ControlObjects,
    ControlRequest,
    answer_with,
    etag_of,
    json_answer,
    json_body,
)
from outrider.http.record.record import BatchCounts
from outrider.metrics import Metrics
from outrider.ports import Clock

_BATCH_KEY = "batch"
_BATCH_HEADERS = (("content-type", "application/x-tar"), ("cache-control", "no-store"))
BODY_BYTES_MAX = 16 * 1024 * 1024
_STALL_BYTES_MAX = 64 * 1024
# The maximum of plans, and of stalls, of one owner. With the maintenance commands they fit on one page of a LIST.
NAMES_MAX = 400
_NAME_CHARS_MAX = 200
_OBJECTS_BYTES_MAX = 2 * BODY_BYTES_MAX
_REFS_AT_ONCE = 1000
# The width of a count in a document whose length never changes.
_DIGITS = 9
_TAKEN = ", ".join(f"{folder}/" for folder in ("plan", "stall", *FOLDERS))


def is_batch(request: operation.Operation) -> bool:
    """Whether a request to the control bucket asks for a batch: a POST of a list of objects, answered by a tar."""
    return request.method == "POST" and request.key == _BATCH_KEY


class Plans(Protocol):
    """Takes the reads that jobs announce."""

    def announce(self, client: str, refs: Sequence[ObjectRef], *, start: int, total: int | None, hint: Hint) -> None:
        """One worker of `client` (see `access.reader_name`) will read `refs` next, in this order: reads number `start`
        and on of the `total` of its epoch (None: not known, more may come). A long plan comes in pieces. `hint`
        remembers them."""
        ...

    def withdraw(self, hint: Hint, others: Iterable[Hint], /) -> int:
        """The unread objects of `hint` that no hint of `others` names are not expected any more. Returns their number.
        Objects whose fill is under way are still fetched."""
        ...

    async def progress(self, hint: Hint, /) -> PlanProgress: ...


class ControlBucket:
    """Answers the requests to the control bucket. The sender is identified before; its grants are checked here."""

    def __init__(
        self, status_of: Callable[[str], Mapping[str, object]], plans: Plans, maintenance: MaintenanceCommands,
        batches: BatchParts, access: Access, metrics: Metrics, clock: Clock, *, lender: Lender | None = None,
    ) -> None:  # fmt: skip
        """`status_of`: the status document as the owner of this access key may see it. `clock`: seconds since 1970.
        `lender` None: nobody gets descriptors."""
        self._lender = lender
        self._batches = batches
        self._status_of = status_of
        self.plans = plans
        self.maintenance = maintenance
        self._access = access
        self._metrics = metrics
        self._clock = clock
        self._plan_objects = ControlObjects(NAMES_MAX, _OBJECTS_BYTES_MAX)
        # One plan at a time: else a plan could be withdrawn while it is being announced, and its second half would be
        # announced after that.
        self._announcing = asyncio.Lock()
        self._stall_objects = ControlObjects(NAMES_MAX, _OBJECTS_BYTES_MAX)

    async def answer(self, request: ControlRequest) -> ControlAnswer:
        """Raises S3Error."""
        key = request.operation.key
        names = {name for name, _ in request.operation.query} - operation.MEANINGLESS_QUERY
        if names and (key or request.operation.method != "GET"):
            raise MethodNotAllowed("The bucket _outrider has whole objects alone, put in one piece.")
        if not key:
            return self._bucket(request, names)
        if is_batch(request.operation):
            return await self._batch(request)
        folder, slash, name = key.partition("/")
        if slash and folder in ("plan", "stall", *FOLDERS):
            if not name or len(name) > _NAME_CHARS_MAX or not name.isprintable():
                raise InvalidArgument(f"A name has 1 to {_NAME_CHARS_MAX} printable characters.")
            if folder in FOLDERS:
                return await self.maintenance.answer(request, folder, name)
            return await (self._plan(request, name) if folder == "plan" else self._stall(request, name))
        if not request.reads:
            raise MethodNotAllowed(f"The bucket _outrider takes <name> under {_TAKEN}.")
        if key == DESCRIPTORS and self._lender and (offer := self._lender.offer(request.client)) is not None:
            return json_answer(request, json_body(offer), self._clock())
        if key != "status.json":
            raise NoSuchKey(f"There is status.json, and <name> under {_TAKEN}.")
        return json_answer(request, json_body(self._status_of(request.owner)), self._clock())

    async def _batch(self, request: ControlRequest) -> ControlAnswer:
        """The caller begins the body."""
        batch = parse_batch(await request.body(BATCH_BYTES_MAX))
        counts = BatchCounts(self._metrics.usage.dataset_of, batch.reads[0].ref if batch.reads else None)
        objects = BatchObjects(self._batches, request.who, request.client, counts)
        return ControlAnswer(200, _BATCH_HEADERS, batch=BatchBody(batch, objects, self._batches.memory))

    # -- plan/ ------------------------------------------------------------------------------------------------------

    async def _plan(self, request: ControlRequest, name: str) -> ControlAnswer:
        if request.operation.method == "PUT":
            return await self._take_plan(request, name)
        if request.operation.method == "DELETE":
            return ControlAnswer(204, (("x-outrider-withdrawn", str(await self._withdraw(request.owner, name))),))
        entry = self._plan_objects.get(request.owner, name)
        if entry is None or entry.hint is None:
            return answer_with(request, None)
        progress = await self.plans.progress(entry.hint)
        return answer_with(request, replace(entry, body=_with_progress(entry.body, progress)))

    async def _withdraw(self, owner: str, name: str) -> int:
        """How many objects are not expected any more."""
        async with self._announcing:
            entry = self._plan_objects.pop(owner, name)
            if entry is None or entry.hint is None:
                return 0
            return self.plans.withdraw(entry.hint, self._plan_objects.hints())

    async def _take_plan(self, request: ControlRequest, name: str) -> ControlAnswer:
        body = await request.body(BODY_BYTES_MAX)
        # In a thread: a long plan takes a while, and the hits of others must not wait for it.
        plan, text = await asyncio.to_thread(self._readable_plan, body, request.who)
        async with self._announcing:
            known = self._plan_objects.get(request.owner, name)
            hint = (known and known.hint) or Hint()
            hint.go_on()
            self._metrics.planned_reads.inc(len(plan.refs))
            try:
                async for first, piece in _pieces(plan.refs):
                    self.plans.announce(request.client, piece, start=plan.start + first, total=plan.total, hint=hint)
            finally:
                # Also after a failure halfway: the pieces that were announced can then be withdrawn.
                self._plan_objects.put(request.owner, name, ControlObject(text, self._clock(), hint))
        return ControlAnswer(200, (("etag", etag_of(body)),))

    def _readable_plan(self, body: bytes, who: Principal) -> tuple[Plan, bytes]:
        """The plan, and its text in UTF-8."""
        plan = parse_plan(body)
        self._access.check_reads(who, plan.refs)
        return plan, body.decode(json.detect_encoding(body), "surrogatepass").encode("utf-8", "surrogatepass")

    # -- stall/ -----------------------------------------------------------------------------------------------------

    async def _stall(self, request: ControlRequest, name: str) -> ControlAnswer:
        if request.operation.method == "PUT":
            body = await request.body(_STALL_BYTES_MAX)
            self._take_stall(request, name, parse_stall(body))
            return ControlAnswer(200, (("etag", etag_of(body)),))
        if request.operation.method == "DELETE":
            self._stall_objects.pop(request.owner, name)
            return ControlAnswer(204)
        return answer_with(request, self._stall_objects.get(request.owner, name))

    def _take_stall(self, request: ControlRequest, name: str, more: Stall) -> None:
        self._metrics.job_steps.inc(more.steps)
        self._metrics.job_wait_s.inc(more.wait_s)
        self._metrics.job_compute_s.inc(more.compute_s)
        known = self._stall_objects.get(request.owner, name)
        sums = parse_stall(known.body).plus(more) if known else more
        entry = ControlObject(json.dumps(asdict(sums)).encode() + b"\n", self._clock())
        self._stall_objects.put(request.owner, name, entry)

    # -- the bucket itself ------------------------------------------------------------------------------------------

    def _bucket(self, request: ControlRequest, names: set[str]) -> ControlAnswer:
        if request.operation.method == "HEAD":
            return ControlAnswer(200)
        if request.operation.method != "GET" or not names <= LIST_QUERY - {"versions", "uploads"}:
            raise MethodNotAllowed("The bucket _outrider can be listed, and no more.")
        owner = request.owner
        entries = {
            **{
                f"plan/{name}": replace(entry, body=_with_progress(entry.body, PlanProgress()))
                for name, entry in self._plan_objects.of(owner)
            },
            **{f"stall/{name}": entry for name, entry in self._stall_objects.of(owner)},
            **dict(self.maintenance.entries(owner)),
            "status.json": ControlObject(json_body(self._status_of(owner)), self._clock()),
        }
        page = _list_xml(dict(request.operation.query), entries)
        return ControlAnswer(200, (("content-type", "application/xml"),), page)


async def _pieces(refs: Sequence[ObjectRef]) -> AsyncIterator[tuple[int, Sequence[ObjectRef]]]:
    """Runs of `refs`, each with the number of its first ref. The loop serves others between two runs."""
    for first in range(0, len(refs), _REFS_AT_ONCE):
        yield first, refs[first : first + _REFS_AT_ONCE]
        await asyncio.sleep(0)


def _with_progress(plan: bytes, progress: PlanProgress) -> bytes:
    """The JSON of a plan with its progress added. Its length is the same at any progress: clients that go by the size
    in a LIST, or that read the object in parts, get all of it."""
    counts = ", ".join(f'"{name}": {count:{_DIGITS}}' for name, count in asdict(progress).items())
    return b'%b, "progress": {%b}}\n' % (plan.rstrip()[:-1], counts.encode())


def _list_xml(query: Mapping[str, str], entries: Mapping[str, ControlObject]) -> bytes:
    """All entries on one page, whatever `max-keys` says: there are fewer than the thousand that S3 gives."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    name_of = encode_path if query.get("encoding-type") == "url" else xml.xml_text
    lines: list[str] = []
    folders: dict[str, None] = {}
    for key, entry in sorted(entries.items()):
        if not key.startswith(prefix):
            continue
        head, found, _ = key.removeprefix(prefix).partition(delimiter) if delimiter else ("", "", "")
        if found:
            folders[prefix + head + found] = None
            continue
        at = datetime.fromtimestamp(entry.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        lines.append(
            f"<Contents><Key>{name_of(key)}</Key><LastModified>{at}</LastModified>"
            f"<ETag>{xml.xml_text(etag_of(entry.body))}</ETag><Size>{len(entry.body)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )
    commons = [f"<CommonPrefixes><Prefix>{name_of(folder)}</Prefix></CommonPrefixes>" for folder in folders]
    encoding = "<EncodingType>url</EncodingType>" if "encoding-type" in query else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{operation.CONTROL_BUCKET}</Name><Prefix>{name_of(prefix)}</Prefix>"
        f"<Delimiter>{name_of(delimiter)}</Delimiter>{encoding}<MaxKeys>1000</MaxKeys>"
        f"<KeyCount>{len(lines) + len(commons)}</KeyCount><IsTruncated>false</IsTruncated>"
        f"{''.join(lines + commons)}</ListBucketResult>"
    ).encode()
