"""Calls of the control bucket: batches, and commands with the progress that they report."""

from __future__ import annotations

import io
import json
import tarfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.rawhttp import Answer, ask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.proxy import Proxy


TARGET = "/_outrider/batch"


@dataclass(frozen=True, slots=True)
class Entry:
    """`cache` None: a refusal, whose `status` and `reason` it has."""

    name: str
    content: bytes
    cache: str | None
    status: str | None

    @property
    def reason(self) -> dict[str, Any]:
        reason: dict[str, Any] = json.loads(self.content)
        assert str(reason["status"]) == self.status
        return reason


def body_of(reads: Sequence[object], **fields: str) -> bytes:
    return json.dumps({"reads": reads, **fields}).encode()


def post(proxy: Proxy, body: bytes) -> Answer:
    return ask(proxy.address, "POST", TARGET, (("content-length", str(len(body))),), body)


def entries_in(tar: bytes) -> list[Entry]:
    """By Python's own reader, as a stream."""
    entries = []
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r|") as stream:
        for member in stream:
            content, headers = stream.extractfile(member), member.pax_headers
            assert content is not None
            status = headers.get("OUTRIDER.status")
            cache = headers.get("comment", "HIT") if status is None else None
            entries.append(Entry(member.name, content.read(), cache, status))
    return entries


def batch(proxy: Proxy, reads: Sequence[object], **fields: str) -> list[Entry]:
    answer = post(proxy, body_of(reads, **fields))
    assert answer.status == 200, answer.body
    return entries_in(answer.body)


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
