"""Persistent refusals of the origin: after all attempts, the reply to the client holds nothing about the signer."""

from __future__ import annotations

from contextlib import aclosing

import pytest
from aiohttp import web

from outrider.core.auth.sigv4 import Credentials
from outrider.ports import OriginRequest
from tests.contract.http_origins import answering, opened
from tests.support.fakes import pieces_of, reply_to

TOKEN = b"the-proxys-own"
REFUSAL = b"<Error><Code>ExpiredToken</Code><Token-0>%b</Token-0><HostId>h</HostId></Error>" % TOKEN


class Rotating:
    """Credentials that are renewed each time, and never accepted."""

    def __init__(self, *, renews: bool = True) -> None:
        self.renewed = 0
        self._renews = renews

    async def current(self) -> Credentials:
        return Credentials("AKID", "secret", f"{TOKEN.decode()}-{self.renewed}")

    async def renew(self, refused: Credentials) -> bool:
        self.renewed += 1
        return self._renews


@pytest.mark.parametrize(("method", "renews", "reports"), [("GET", False, 1), ("HEAD", False, 1), ("GET", True, 0)])
async def test_credentials_that_cannot_be_renewed_are_reported(method: str, renews: bool, reports: int) -> None:
    source, refused = Rotating(renews=renews), []

    async def refuse(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=400, body=REFUSAL)

    def note(credentials: Credentials, code: str) -> None:
        refused.append((credentials.access_key, code))

    async with (
        answering(refuse) as port,
        opened(port, source, refused=note) as origin,
        reply_to(origin, OriginRequest(method, "bucket", "key")) as reply,
    ):
        assert reply.status == 400
    assert refused == [("AKID", "ExpiredToken")] * reports


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_the_last_of_several_refusals_holds_nothing_about_the_signer(method: str) -> None:
    methods: list[str] = []

    async def refuse(request: web.BaseRequest) -> web.StreamResponse:
        methods.append(request.method)
        return web.Response(status=400, body=REFUSAL)

    async with (
        answering(refuse) as port,
        opened(port, Rotating()) as origin,
        reply_to(origin, OriginRequest(method, "bucket", "key")) as reply,
        aclosing(pieces_of(reply)) as chunks,
    ):
        body = b"".join([chunk async for chunk in chunks])
        assert reply.status == 400
        assert reply.content_length == len(body)
    assert methods == [method] * 4
    assert TOKEN not in body
    assert body.endswith(b"<HostId>h</HostId></Error>")
