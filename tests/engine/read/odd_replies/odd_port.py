"""An origin whose replies a test changes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from outrider.core.errors import OriginBroke
from outrider.core.model import Headers, ObjectRef
from outrider.core.origin.oddities import Oddity
from tests.support.engine import BLOCK, REF, Engine
from tests.support.fakes import RAMP, FakeOrigin, FakeReply

if TYPE_CHECKING:
    from collections.abc import Callable

    from outrider.ports import OriginRequest

SIZE = 4 * BLOCK + 7
DATA = RAMP[:SIZE]
SMALL = ObjectRef("train", "small.bin")
DATED: Headers = (("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT"), ("date", "Thu, 01 Jan 2026 00:00:09 GMT"))


def as_it_is(request: OriginRequest, reply: FakeReply) -> FakeReply:
    return reply


@dataclass(slots=True)
class OddPort(FakeOrigin):
    """`odd` changes each reply about an object."""

    odd: Callable[[OriginRequest, FakeReply], FakeReply] = field(default=as_it_is)

    async def ask(self, request: OriginRequest) -> FakeReply:
        reply = await FakeOrigin.ask(self, request)
        try:
            return self.odd(request, reply)
        except OriginBroke:
            reply.close()
            raise

    def gets(self) -> list[tuple[str, str]]:
        """The method of each request, and its Range."""
        return [(request.method, dict(request.headers).get("range", "")) for request in self.log]


def changed(reply: FakeReply, *, drop: tuple[str, ...] = (), add: Headers = (), **fields: object) -> FakeReply:
    names = {*drop, *(name for name, _ in add)}
    headers = tuple(pair for pair in reply.headers if pair[0] not in names) + add
    return replace(reply, headers=headers, **fields)  # type: ignore[arg-type]


def refusal(request: OriginRequest, reply: FakeReply, status: int) -> FakeReply:
    body = b"" if request.method == "HEAD" else b"<Error><Code>Odd</Code></Error>"
    return FakeReply(status, (("content-type", "application/xml"),), len(body), body, None, reply.origin)


def asks(request: OriginRequest, name: str) -> bool:
    return name in dict(request.headers)


def met(room: Engine, kind: Oddity) -> float:
    return room.metrics.value("outrider_origin_oddities_total", kind=kind.label)


def uncached(room: Engine, kind: Oddity) -> float:
    return room.metrics.value("outrider_uncached_reads_total", reason=kind.label)


async def whole(room: Engine, ref: ObjectRef = REF) -> bytes:
    found = await room.get(ref)
    await room.tasks.settle()
    return found
