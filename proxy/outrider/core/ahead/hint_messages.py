"""What a job tells of itself: the order of its coming reads, and how long it waited for data."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from outrider.core.errors import InvalidArgument
from outrider.core.model import ObjectRef
from outrider.core.s3.operation import ref_of

# Far beyond any count of reads or steps in one message.
COUNT_MAX = 10**12
_SECONDS_MAX = 10**9


@dataclass(frozen=True, slots=True)
class Plan:
    """The order in which one worker will read: its reads number `start` and on of `total` in this epoch.

    `total` None: not known, more may come.
    """

    refs: tuple[ObjectRef, ...]
    start: int = 0
    total: int | None = None


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """Of the objects that were told under a name, each counted once (`told`): those that were `read`; those that are
    not yet but `here`, as a whole; those `left`; and those of which that is not known any more, since who reads them
    ended, or came to read by chance. `ignored`: reads of the last message that nothing is fetched ahead for, by the
    settings."""

    told: int = 0
    read: int = 0
    here: int = 0
    left: int = 0
    unknown: int = 0
    ignored: int = 0


@dataclass(frozen=True, slots=True)
class Stall:
    """What was added since the last message: steps of training, seconds that the loop waited for their data, and
    seconds that it did not. `epoch` is the one under way, from 1."""

    steps: int
    wait_s: float
    compute_s: float
    epoch: int

    def plus(self, more: Stall) -> Stall:
        """`more` came later."""
        return Stall(self.steps + more.steps, self.wait_s + more.wait_s, self.compute_s + more.compute_s, more.epoch)


def parse_plan(body: bytes) -> Plan:
    """`{"reads": ["s3://bucket/key", ...], "start": 0, "total": N}`, the last two optional.

    Raises:
        InvalidArgument: it is none, and why.
    """
    fields = _fields(body, "A plan", {"reads", "start", "total"})
    reads = fields.get("reads")
    if not isinstance(reads, list):
        raise InvalidArgument('A plan needs "reads", a list of URLs like s3://bucket/key.')
    refs = tuple(_ref(number, url) for number, url in enumerate(reads))
    start = _count(fields, "start")
    total = None if fields.get("total") is None else _count(fields, "total")
    if total is not None and total < start + len(refs):
        raise InvalidArgument(f'A plan of {len(refs)} reads from number {start} on has more than its "total", {total}.')
    return Plan(refs, start, total)


def parse_stall(body: bytes) -> Stall:
    """`{"steps": n, "wait_s": x, "compute_s": y, "epoch": e}`; what is left out is 0.

    Raises:
        InvalidArgument: it is none, and why.
    """
    fields = _fields(body, "A stall report", {"steps", "wait_s", "compute_s", "epoch"})
    return Stall(
        _count(fields, "steps"), _seconds(fields, "wait_s"), _seconds(fields, "compute_s"),
        _count(fields, "epoch"),
    )  # fmt: skip


def _fields(body: bytes, what: str, known: set[str]) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{what} is a JSON object; this does not parse: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidArgument(f"{what} is a JSON object.")
    if unknown := sorted(fields.keys() - known):
        raise InvalidArgument(f"{what} has no field {unknown[0]!r}; it may have: {', '.join(sorted(known))}.")
    return fields


def _ref(number: int, url: object) -> ObjectRef:
    ref = ref_of(url) if isinstance(url, str) else None
    if ref is None:
        raise InvalidArgument(f"reads[{number}] is not the URL of an object, like s3://bucket/key: {str(url)[:200]!r}")
    return ref


def _count(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name, 0)
    # True is an int to Python, and 3.0 is one to JavaScript; neither to us.
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise InvalidArgument(f'"{name}" must be a whole number, 0 or more.')
    return value


def _seconds(fields: dict[str, Any], name: str) -> float:
    value = fields.get(name, 0)
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= _SECONDS_MAX:
        raise InvalidArgument(f'"{name}" must be a number of seconds.')
    return float(value)
