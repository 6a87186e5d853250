"""Maintenance commands to a proxy by plain S3 calls, and the progress that it reports."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 60.0


def put(s3: Any, key: str, *lines: str, rate: str | None = None) -> None:
    """Put `lines` under `key` of the control bucket, by boto3."""
    more = {} if rate is None else {"Metadata": {"rate": rate}}
    s3.put_object(Bucket="_outrider", Key=key, Body="\n".join(lines).encode(), **more)


def read_json(s3: Any, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(s3.get_object(Bucket="_outrider", Key=key)["Body"].read())
    return found


def wait_for_end(s3: Any, key: str) -> dict[str, Any]:
    """Wait until the command no longer runs; returns its status."""
    wait_until(lambda: read_json(s3, key)["state"] != "running")
    return read_json(s3, key)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.01)
