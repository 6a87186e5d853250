"""Batches by plain requests: the POST, and the entries of the tar that answers it."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.rawhttp import Answer, ask

if TYPE_CHECKING:
    from collections.abc import Sequence

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
            content, told = stream.extractfile(member), member.pax_headers
            assert content is not None
            cache, status = told.get("OUTRIDER.x-cache"), told.get("OUTRIDER.status")
            entries.append(Entry(member.name, content.read(), cache, status))
    return entries


def batch(proxy: Proxy, reads: Sequence[object], **fields: str) -> list[Entry]:
    answer = post(proxy, body_of(reads, **fields))
    assert answer.status == 200, answer.body
    return entries_in(answer.body)
