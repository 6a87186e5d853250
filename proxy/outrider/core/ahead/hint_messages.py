"""The messages that a job sends about itself: hints of its next reads, and reports of its stalls."""

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
    """A hint: one worker will read `refs` in this order, as its reads number `start` and on of `total` in this epoch.

    `total` None: not known, more may come.
    """

    refs: tuple[ObjectRef, ...]
    start: int = 0
    total: int | None = None


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """The objects hinted under one name, each counted once: `told` is the sum of the next four. These are the names of
    the JSON fields, which clients read."""

    told: int = 0
    read: int = 0
    # Not read yet, and here as a whole.
    here: int = 0
    # Not read yet, and not here as a whole.
    left: int = 0
    # Not known any more: the job has ended, or has come to read at random.
    unknown: int = 0
    # Reads of the last message for which nothing is prefetched, by the settings.
    ignored: int = 0


@dataclass(frozen=True, slots=True)
class Stall:
    """The part of a training run since the last message: steps, the seconds that the loop waited for their data, and
    the seconds that it did not. `epoch` is the current one, counted from 1."""

    steps: int
    wait_s: float
    compute_s: float
    epoch: int

    def plus(self, more: Stall) -> Stall:
        """The sum of both. `more` came later, so its epoch counts."""
        return Stall(self.steps + more.steps, self.wait_s + more.wait_s, self.compute_s + more.compute_s, more.epoch)


def parse_plan(body: bytes) -> Plan:
    """`{"reads": ["s3://bucket/key", ...], "start": 0, "total": N}`, the last two optional.

    Raises:
        InvalidArgument: the body is no such message; says why.
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
    """`{"steps": n, "wait_s": x, "compute_s": y, "epoch": e}`; a missing field is 0.

    Raises:
        InvalidArgument: the body is no such message; says why.
    """
    fields = _fields(body, "A stall report", {"steps", "wait_s", "compute_s", "epoch"})
    return Stall(
        _count(fields, "steps"), _seconds(fields, "wait_s"), _seconds(fields, "compute_s"),
        _count(fields, "epoch"),
    )  # fmt: skip


def _fields(body: bytes, message: str, known: set[str]) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{message} is a JSON object; this does not parse: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidArgument(f"{message} is a JSON object.")
    if unknown := sorted(fields.keys() - known):
        raise InvalidArgument(f"{message} has no field {unknown[0]!r}; it may have: {', '.join(sorted(known))}.")
    return fields


def _ref(number: int, url: object) -> ObjectRef:
    ref = ref_of(url) if isinstance(url, str) else None
    if ref is None:
        raise InvalidArgument(f"reads[{number}] is not the URL of an object, like s3://bucket/key: {str(url)[:200]!r}")
    return ref


def _count(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name, 0)
    # Python takes True for an int, and JavaScript 3.0. Both are refused here.
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise InvalidArgument(f'"{name}" must be a whole number, 0 or more.')
    return value


def _seconds(fields: dict[str, Any], name: str) -> float:
    value = fields.get(name, 0)
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= _SECONDS_MAX:
        raise InvalidArgument(f'"{name}" must be a number of seconds.')
    return float(value)
