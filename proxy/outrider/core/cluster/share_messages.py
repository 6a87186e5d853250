"""The question what a member has of each dataset, and its answer. Both are JSON; see `peer_control`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.core.cluster.wire_forms import NAME, WireError, as_json, json_object, matched, text, whole

SHARES_PATH = "/-/shares"
SHARES_MAX = 64
"""Datasets in one answer: with the longest names they fill half of the longest body."""


@dataclass(frozen=True, slots=True)
class DatasetShare:
    """The part of a dataset that lies on a member's disk. `name`: its key template. `objects`, `size`: of the whole
    dataset, as far as the member knows it. `held_bytes`: all bytes on the disk; `near_bytes`: those of them that other
    members own, about."""

    bucket: str
    name: str
    objects: int
    size: int
    held_bytes: int
    near_bytes: int


@dataclass(frozen=True, slots=True)
class SharesAsked:
    """The question."""

    sender: str


def question_body(question: SharesAsked) -> bytes:
    return as_json({"from": question.sender})


def parse_question(body: bytes) -> SharesAsked:
    """Raises WireError."""
    return SharesAsked(matched(NAME, json_object(body).get("from"), "from"))


def shares_body(shares: Sequence[DatasetShare]) -> bytes:
    """The first `SHARES_MAX` of them."""
    return as_json({
        "datasets": [
            {"bucket": share.bucket, "name": share.name, "objects": share.objects, "size": share.size,
             "held": share.held_bytes, "near": share.near_bytes}
            for share in shares[:SHARES_MAX]
        ]
    })  # fmt: skip


def parse_shares(body: bytes) -> tuple[DatasetShare, ...]:
    """Raises WireError."""
    rows = json_object(body).get("datasets")
    if not isinstance(rows, list) or len(rows) > SHARES_MAX:
        raise WireError("datasets: not a list, or too long")
    return tuple(_share_of(row) for row in rows)


def _share_of(row: object) -> DatasetShare:
    if not isinstance(row, dict):
        raise WireError("datasets: not an object")
    told: Mapping[str, Any] = row
    return DatasetShare(
        text(told.get("bucket"), "bucket"), text(told.get("name"), "name"), whole(told, "objects"),
        whole(told, "size"), whole(told, "held"), whole(told, "near"),
    )  # fmt: skip
