"""A Kubernetes API server as far as a client of EndpointSlices sees it: list and watch over https, with a token.

Source: Kubernetes' documentation, "Kubernetes API Concepts": a watch goes on from a resource version; one that is too
old gets 410 Gone, in place of the reply or as an event in it.
"""

from __future__ import annotations

import asyncio
import copy
import json
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.support.certificate import certify

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NAMESPACE, SERVICE = "caches", "peers"
Slice = dict[str, Any]


def endpoint(address: str, *, node: str = "", pod: str = "", zone: str = "", **conditions: bool) -> dict[str, Any]:
    """`conditions`: ready, serving, terminating; left out as older servers do."""
    made: dict[str, Any] = {"addresses": [address], "conditions": conditions}
    if node:
        made["nodeName"] = node
    if zone:
        made["zone"] = zone
    if pod:
        made["targetRef"] = {"kind": "Pod", "name": pod, "namespace": NAMESPACE}
    return made


def endpoint_slice(
    name: str, endpoints: list[dict[str, Any]], *, family: str = "IPv4", ports: dict[str, int] | None = None
) -> Slice:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": SERVICE}},
        "addressType": family,
        "endpoints": endpoints,
        "ports": [{"name": name, "port": port} for name, port in (ports or {"peer": 9482}).items()],
    }


class ApiServer:
    """`refusal`: the status of all replies; None: none is refused. `gone_as`: how a version that is too old is
    refused. `requests`: each with its query. `account`: the directory of a service account."""

    def __init__(self, account: Path) -> None:
        self.account = account
        self.token = "first"
        self.refusal: int | None = None
        self.refuses_watches = False
        self.gone_as = "event"
        self.requests: list[dict[str, str]] = []
        self.watching = asyncio.Event()
        self._slices: dict[str, Slice] = {}
        self._version = 100
        self._oldest = 0
        self._log: list[tuple[int, str, Slice]] = []
        self._watches: dict[asyncio.Queue[tuple[str, Slice] | None], web.Request] = {}

    def put(self, part: Slice) -> None:
        self._note("MODIFIED" if part["metadata"]["name"] in self._slices else "ADDED", part)

    def delete(self, name: str) -> None:
        self._note("DELETED", self._slices[name])

    def _note(self, change: str, part: Slice) -> None:
        self._version += 1
        part = copy.deepcopy(part)
        part["metadata"]["resourceVersion"] = str(self._version)
        self._slices[part["metadata"]["name"]] = part
        if change == "DELETED":
            del self._slices[part["metadata"]["name"]]
        self._log.append((self._version, change, part))
        for watch in self._watches:
            watch.put_nowait((change, part))

    def compact(self) -> None:
        """Forget all changes, and end all watches: the next one is too old."""
        self._version += 1
        self._oldest = self._version
        self._log.clear()
        self.end_watches()

    def end_watches(self) -> None:
        """As at the end of `timeoutSeconds`."""
        for watch in self._watches:
            watch.put_nowait(None)

    def cut(self) -> None:
        """End all connections of watches with a reset."""
        for request in self._watches.values():
            assert request.transport is not None
            request.transport.abort()

    def rotate(self, token: str) -> None:
        self.token = token
        (self.account / "token").write_text(token)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(dict(request.query))
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        is_watch = "watch" in request.query
        if self.refusal is not None or (is_watch and self.refuses_watches):
            return _status(self.refusal or 403, "Refused")
        assert request.query["labelSelector"] == f"kubernetes.io/service-name={SERVICE}"
        if is_watch:
            return await self._watch(request)
        metadata = {"resourceVersion": str(self._version)}
        return web.json_response(
            {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList", "metadata": metadata,
             "items": list(self._slices.values())}
        )  # fmt: skip

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        if version < self._oldest and self.gone_as == "status":
            return _status(410, "Expired")
        reply = web.StreamResponse()
        await reply.prepare(request)
        if version < self._oldest:
            await reply.write(_event("ERROR", _status_body(410, "Expired")))
            return reply
        events: asyncio.Queue[tuple[str, Slice] | None] = asyncio.Queue()
        for at, change, part in self._log:
            if at > version:
                events.put_nowait((change, part))
        self._watches[events] = request
        self.watching.set()
        try:
            while (event := await events.get()) is not None:
                await reply.write(_event(*event))
        finally:
            del self._watches[events]
        return reply


def _event(change: str, part: dict[str, Any]) -> bytes:
    return json.dumps({"type": change, "object": part}).encode() + b"\n"


def _status_body(code: int, reason: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": reason,
    }


def _status(code: int, reason: str) -> web.Response:
    return web.json_response(_status_body(code, reason), status=code)


@asynccontextmanager
async def api_server(folder: Path) -> AsyncIterator[tuple[ApiServer, dict[str, str]]]:
    """The server, and the variables by which its pods find it. `account` of the server has the pod's token."""
    certificate = certify(folder)
    account = folder / "serviceaccount"
    account.mkdir()
    (account / "ca.crt").write_bytes(certificate.authority.read_bytes())
    (account / "namespace").write_text(NAMESPACE)
    server = ApiServer(account)
    server.rotate("first")
    app = web.Application()
    app.router.add_get(f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices", server.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.chain, certificate.key)
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = runner.addresses[0][1]
        yield server, {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    finally:
        server.end_watches()
        await runner.cleanup()
