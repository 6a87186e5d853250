"""Maintenance commands to a proxy by plain S3 calls, and the progress that it reports."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 60.0


def put(s3: Any, key: str, *lines: str, rate: str | None = None) -> None:
    """`lines` under `key` of the control bucket, by boto3."""
    more = {} if rate is None else {"Metadata": {"rate": rate}}
    s3.put_object(Bucket="_outrider", Key=key, Body="\n".join(lines).encode(), **more)


def told(s3: Any, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(s3.get_object(Bucket="_outrider", Key=key)["Body"].read())
    return found


def ended(s3: Any, key: str) -> dict[str, Any]:
    """Its status once it no longer runs."""
    until(lambda: told(s3, key)["state"] != "running")
    return told(s3, key)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
