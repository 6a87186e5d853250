"""The progress of a command that the members of a cluster carry out together: the sum of what each of them reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.core.maintenance.progress import State

PART_NAMES_MAX = 100
"""Failures, and bad blocks, that a member names to another; all are counted."""

UNANSWERED: Mapping[str, Any] = {"state": State.RUNNING.value}
"""The part of a member that does not answer now."""


def failed_part(member: str, why: str) -> Mapping[str, Any]:
    """The part of a member that did not take the command."""
    name = f"the part of {member}"
    return {
        "state": State.FAILED.value, "objects": {"failed": 1},
        "failures": [{"object": name, "error": why, "passing": True}],
        "blocks": {}, "bad": [{"object": name, "block": 0, "error": why}],
    }  # fmt: skip


def warmup_sum(parts: Sequence[Mapping[str, Any]], *, under_way: bool = False) -> dict[str, Any]:
    """The parts have the form of `Progress.report`; the first one is this member's. `under_way`: the work may be
    divided anew, so that it is not over even where all parts are."""
    state = _state(parts, under_way=under_way)
    failures = {failure["object"]: failure for part in parts for failure in part.get("failures", ())}
    twice = sum(len(part.get("failures", ())) for part in parts) - len(failures)
    objects = {field: _sum(parts, "objects", field) for field in ("wanted", "on_disk", "failed", "unsized")}
    objects["failed"] -= twice
    etas = [part.get("eta_s") for part in parts if part["state"] == State.RUNNING.value]
    known = [eta for eta in etas if eta is not None]
    ended = [ended_s for part in parts if (ended_s := part.get("ended_s")) is not None]
    return {
        **parts[0],
        "state": state.value,
        "listing": any(part.get("listing", False) for part in parts),
        "objects": objects,
        "bytes": {field: _sum(parts, "bytes", field) for field in ("wanted", "on_disk", "fetched")},
        "rate_bytes_per_s": sum(part.get("rate_bytes_per_s", 0) for part in parts),
        "eta_s": max(known) if known and len(known) == len(etas) else None,
        "elapsed_s": max(part.get("elapsed_s", 0.0) for part in parts),
        "ended_s": min(ended) if ended and state is not State.RUNNING else None,
        "failures": list(failures.values()),
        "notes": list(dict.fromkeys(note for part in parts for note in part.get("notes", ()))),
    }


def verification_sum(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The parts have the form of `Check.report`; the first one is this member's."""
    return {
        **parts[0],
        "state": _state(parts, under_way=False).value,
        "blocks": {field: _sum(parts, "blocks", field) for field in ("wanted", "verified", "bad")},
        "bytes": {"verified": _sum(parts, "bytes", "verified")},
        "bad": [bad for part in parts for bad in part.get("bad", ())],
    }


def eviction_sum(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The parts are the results of each member's eviction; the first one is this member's."""
    counts = ("blocks", "bytes", "in_use_blocks", "pinned_blocks")
    return {**parts[0], **{field: sum(part.get(field, 0) for part in parts) for field in counts}}


def _sum(parts: Sequence[Mapping[str, Any]], of: str, field: str) -> int:
    return sum(part.get(of, {}).get(field, 0) for part in parts)


def _state(parts: Sequence[Mapping[str, Any]], *, under_way: bool) -> State:
    """Done only when all are."""
    states = {part["state"] for part in parts}
    if parts[0]["state"] == State.CANCELLED.value:
        return State.CANCELLED
    if under_way:
        return State.RUNNING
    for state in (State.RUNNING, State.CANCELLED, State.FAILED):
        if state.value in states:
            return state
    return State.DONE
