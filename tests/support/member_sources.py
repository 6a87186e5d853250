"""Worlds in which a source of members lives, one for each kind of source, and an API server for that of Kubernetes."""

from __future__ import annotations

import asyncio
import copy
import json
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from outrider.adapters.cluster.dns_source import DnsSource
from outrider.adapters.cluster.file_source import FILE_BACKOFF, FileSource
from outrider.adapters.cluster.kubernetes_source import KubernetesSource
from outrider.adapters.cluster.member_lists import Outages
from outrider.adapters.cluster.slurm_source import SlurmSource
from outrider.core.cluster.member import ListedMember
from outrider.metrics import Metrics
from outrider.ports import MemberSource
from outrider.settings import Settings
from outrider.settings.members import DnsPeers, KubernetesPeers
from tests.support.tls import certify

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


FAILURES = "outrider_peer_source_failures_total"
PORT = 9482
# A source that goes on without what a test waits for would keep it busy for ever.
_WAITS_MAX = 50


@dataclass(frozen=True, slots=True)
class SetMember:
    """A member as a test puts it into the world of a source."""

    host: str
    name: str
    zone: str = ""


class Sleeps:
    """The waits of a source, each ended by the test."""

    def __init__(self) -> None:
        self._begun: asyncio.Queue[tuple[float, asyncio.Future[None]]] = asyncio.Queue()

    async def __call__(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._begun.put_nowait((seconds, woken))
        await woken

    async def begun(self) -> float:
        """Wait until the source waits. Returns for how long it means to."""
        seconds, woken = await self._begun.get()
        self._begun.put_nowait((seconds, woken))
        return seconds

    async def end_next(self) -> float:
        """Wait until the source waits, and end that. Returns for how long it meant to wait."""
        seconds, woken = await self._begun.get()
        if not woken.done():
            woken.set_result(None)
        return seconds


@dataclass
class Watched:
    """The lists of a source, read as they come. `outages` is the source's."""

    metrics: Metrics = field(default_factory=Metrics)
    sleeps: Sleeps = field(default_factory=Sleeps)
    _lists: asyncio.Queue[Sequence[ListedMember]] = field(default_factory=asyncio.Queue)

    def outages(self, name: str = "test") -> Outages:
        return Outages(name, self.metrics.peers.source_failures, lambda: 0.0)

    @property
    def failures(self) -> int:
        return int(self.metrics.value(FAILURES))

    async def next_list(self) -> Sequence[ListedMember]:
        """The next list, however long the source waits before it."""
        return await self._while_waits_end(self._lists.get)

    async def failed(self, times: int) -> None:
        """Return when the source has failed so often, and now waits."""
        for _ in range(_WAITS_MAX):
            if self.failures >= times:
                return
            await self.sleeps.end_next()
        raise AssertionError(f"{self.failures} failures after {_WAITS_MAX} waits")

    async def _while_waits_end(self, wanted: Callable[[], Awaitable[Sequence[ListedMember]]]) -> Sequence[ListedMember]:
        getting = asyncio.ensure_future(wanted())
        ended = 0
        while not getting.done():
            if ended == _WAITS_MAX:
                getting.cancel()
                raise AssertionError(f"no list after {_WAITS_MAX} waits, {self.failures} failures")
            ending = asyncio.ensure_future(self.sleeps.end_next())
            await asyncio.wait({getting, ending}, return_when=asyncio.FIRST_COMPLETED)
            ended += ending.done()
            if not ending.done():
                ending.cancel()
                with suppress(asyncio.CancelledError):
                    await ending
        return getting.result()

    @asynccontextmanager
    async def reading(self, source: MemberSource) -> AsyncIterator[None]:
        async def read() -> None:
            async with aclosing(source.lists()) as lists:
                async for found in lists:
                    self._lists.put_nowait(found)
            raise AssertionError("the lists ended")

        task = asyncio.create_task(read())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class World(Protocol):
    """`set_members`: the members from now on. `away`: the source cannot be asked, until `back`."""

    watched: Watched

    def source(self) -> MemberSource: ...

    def expected(self, member: SetMember) -> ListedMember: ...

    def set_members(self, members: Sequence[SetMember]) -> None: ...

    def away(self) -> None: ...

    def back(self) -> None: ...


class FileWorld:
    def __init__(self, path: Path) -> None:
        self.watched = Watched()
        self._path = path

    def source(self) -> MemberSource:
        outages = Outages("file", self.watched.metrics.peers.source_failures, lambda: 0.0, backoff=FILE_BACKOFF)
        return FileSource(self._path, outages, sleep=self.watched.sleeps)

    def expected(self, member: SetMember) -> ListedMember:
        return ListedMember(f"{member.host}:{PORT}", member.name, member.zone)

    def set_members(self, members: Sequence[SetMember]) -> None:
        lines = [
            f"{member.host}:{PORT} name={member.name}" + (f" zone={member.zone}" if member.zone else "")
            for member in members
        ]
        self.write("".join(f"{line}\n" for line in lines))

    def write(self, content: str) -> None:
        """In one step: the source may be reading just now."""
        written = self._path.with_suffix(".new")
        written.write_text(content)
        written.replace(self._path)

    def away(self) -> None:
        self._path.rename(self._path.with_suffix(".away"))

    def back(self) -> None:
        self._path.with_suffix(".away").rename(self._path)


class Resolver(AbstractResolver):
    """Answers as the system's does: `addresses` in this order. `error`: raised in place of an answer."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.error: OSError | None = None

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        assert family == socket.AF_UNSPEC
        if self.error is not None:
            raise self.error
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            ResolveResult(
                hostname=host, host=address, port=port, proto=6, flags=socket.AI_NUMERICHOST,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
            )
            for address in self.addresses
        ]  # fmt: skip

    async def close(self) -> None: ...


class DnsWorld:
    def __init__(self) -> None:
        self.watched = Watched()
        self.resolver = Resolver()

    def source(self) -> MemberSource:
        peers = DnsPeers("peers.example", PORT)
        return DnsSource(peers, self.watched.outages(), resolver=self.resolver, sleep=self.watched.sleeps)

    def expected(self, member: SetMember) -> ListedMember:
        return ListedMember(f"{member.host}:{PORT}")

    def set_members(self, members: Sequence[SetMember]) -> None:
        self.resolver.addresses = [member.host for member in members]

    def away(self) -> None:
        self.resolver.error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    def back(self) -> None:
        self.resolver.error = None


class KubernetesWorld:
    """The members are dealt out over two slices."""

    def __init__(self, server: ApiServer) -> None:
        self.watched = Watched()
        self.server = server
        self._members: Sequence[SetMember] = ()

    def source(self) -> MemberSource:
        return self.source_of("n1")

    def source_of(self, own_name: str, *, prefers_ipv6: bool = False, silent_s: float = 3600.0) -> KubernetesSource:
        return KubernetesSource(
            KubernetesPeers(NAMESPACE, SERVICE), self.watched.outages(), own_name=own_name, own_port=PORT,
            prefers_ipv6=prefers_ipv6, service_account=self.server.account, silent_s=silent_s,
            sleep=self.watched.sleeps,
        )  # fmt: skip

    def expected(self, member: SetMember) -> ListedMember:
        return ListedMember(f"{member.host}:{PORT}", member.name, member.zone)

    def set_members(self, members: Sequence[SetMember]) -> None:
        """One change of the world, as far as a client sees: a slice that stays the same is no change."""
        for name, mine, before in (
            ("peers-a", members[::2], self._members[::2]),
            ("peers-b", members[1::2], self._members[1::2]),
        ):
            if mine != before or not self._members:
                ready = [endpoint(one.host, node=one.name, zone=one.zone, ready=True) for one in mine]
                self.server.put(endpoint_slice(name, ready))
        self._members = members

    def away(self) -> None:
        self.server.refusal = 503
        self.server.cut()

    def back(self) -> None:
        self.server.refusal = None


class SlurmWorld:
    """A job, whose nodes never change."""

    def __init__(self) -> None:
        self.watched = Watched()
        self._members: Sequence[SetMember] = ()

    def source(self) -> MemberSource:
        return SlurmSource({"SLURM_JOB_NODELIST": ",".join(member.name for member in self._members)}, PORT)

    def expected(self, member: SetMember) -> ListedMember:
        return ListedMember(f"{member.name}:{PORT}", member.name)

    def set_members(self, members: Sequence[SetMember]) -> None:
        self._members = members

    def away(self) -> None:
        raise NotImplementedError

    def back(self) -> None:
        raise NotImplementedError


@asynccontextmanager
async def following(follow: Callable[[Sleeps], Awaitable[None]]) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Ends one wait and returns when the files have been read: the next wait has begun."""
    sleeps = Sleeps()
    task = asyncio.ensure_future(follow(sleeps))
    assert await sleeps.begun() == 5.0

    async def once() -> None:
        await sleeps.end_next()
        await sleeps.begun()

    try:
        yield once
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def settings_of(**given: object) -> Settings:
    return Settings.model_validate(given)


Begin = Callable[[], AbstractAsyncContextManager[World]]


@asynccontextmanager
async def _file(folder: Path) -> AsyncIterator[World]:
    yield FileWorld(folder / "peers")


@asynccontextmanager
async def _dns() -> AsyncIterator[World]:
    yield DnsWorld()


@asynccontextmanager
async def _slurm() -> AsyncIterator[World]:
    yield SlurmWorld()


@asynccontextmanager
async def kubernetes(folder: Path) -> AsyncGenerator[KubernetesWorld, None]:
    async with api_server(folder) as (server, variables):
        with pytest.MonkeyPatch.context() as environment:
            for name, value in variables.items():
                environment.setenv(name, value)
            yield KubernetesWorld(server)


def worlds(folder: Path) -> dict[str, Begin]:
    """By the name of the source: begins its world."""
    return {"file": partial(_file, folder), "dns": _dns, "kubernetes": partial(kubernetes, folder), "slurm": _slurm}


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
