"""The messages by which a member passes on the orders that its clients tell (plans), and takes them back. The body is
JSON; see `peer_control`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from outrider.core.cluster.peer_control import BODY_BYTES_MAX
from outrider.core.cluster.wire_forms import NAME, WireError, as_json, json_object, matched, text, truth, whole
from outrider.core.model import ObjectRef

ORDER_PATH = "/-/order"
REFS_MAX = 1000
"""Objects in one message. The planner takes about 10 ms for as many."""


@dataclass(frozen=True, slots=True)
class OrderTold:
    """One worker of `client`, which reads at `sender`, will read `refs` next: numbers `start` and on of the `total` of
    its epoch (None: not known). Only the member that a client told passes an order on.

    `number` counts up from 1 within a `boot` of the sender. `order`: what the sender calls the plan that this is a part
    of. `is_withdrawn`: its unread objects are not expected any more, and `refs` is empty.
    """

    sender: str
    boot: int
    number: int
    order: int
    client: str
    refs: Sequence[ObjectRef] = ()
    start: int = 0
    total: int | None = None
    is_withdrawn: bool = False

    @property
    def reader_name(self) -> str:
        """The client's name in the whole cluster; see `ReadsTold.reader_name`."""
        return f"{self.sender}/{self.client}"


def order_body(message: OrderTold) -> bytes:
    """The body of a message. It may be too long: see `parts_of`. Raises WireError: a name is no text."""
    # Most objects have the bucket in common.
    buckets: dict[str, int] = {}
    reads = [[buckets.setdefault(ref.bucket, len(buckets)), text(ref.key, "reads")] for ref in message.refs]
    return as_json({
        "from": message.sender, "boot": message.boot, "number": message.number, "order": message.order,
        "client": message.client, "start": message.start, "total": message.total, "withdrawn": message.is_withdrawn,
        "buckets": [text(bucket, "buckets") for bucket in buckets], "reads": reads,
    })  # fmt: skip


def parts_of(message: OrderTold) -> Iterator[OrderTold]:
    """Messages that are short enough, and say the same in this order. Their numbers are to be set. Raises
    WireError."""
    refs = message.refs
    if len(refs) <= REFS_MAX and len(order_body(message)) <= BODY_BYTES_MAX:
        yield message
        return
    if len(refs) == 1:
        raise WireError("reads: too long")
    count = min(REFS_MAX, (len(refs) + 1) // 2)
    for first in range(0, len(refs), count):
        yield from parts_of(replace(message, refs=refs[first : first + count], start=message.start + first))


def parse_order(body: bytes) -> OrderTold:
    """Raises WireError."""
    told = json_object(body)
    buckets, reads = told.get("buckets"), told.get("reads")
    if not isinstance(buckets, list) or not isinstance(reads, list) or len(reads) > REFS_MAX:
        raise WireError("reads: not a list, or too long")
    names = [text(bucket, "buckets") for bucket in buckets]
    return OrderTold(
        matched(NAME, told.get("from"), "from"), whole(told, "boot"), whole(told, "number"), whole(told, "order"),
        text(told.get("client"), "client"), tuple(_ref_of(read, names) for read in reads), whole(told, "start"),
        None if told.get("total") is None else whole(told, "total"), is_withdrawn=truth(told, "withdrawn"),
    )  # fmt: skip


def _ref_of(read: object, buckets: Sequence[str]) -> ObjectRef:
    if not isinstance(read, list) or len(read) != 2:
        raise WireError("reads: not of their form")
    bucket, key = read
    if not isinstance(bucket, int) or isinstance(bucket, bool) or not 0 <= bucket < len(buckets):
        raise WireError("reads: not of their form")
    if not key or not buckets[bucket]:
        raise WireError("reads: an empty name")
    return ObjectRef(buckets[bucket], text(key, "reads"))
