"""Clients that connect to a port and say nothing: others are served meanwhile, on each port of the product."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import trustme

from outrider.adapters.kubernetes.certificates import X509Certifier
from outrider.adapters.process.listening import bind
from outrider.core.operator.certificates import Validity
from outrider.core.operator.pod_patch import Offers
from outrider.engine.operator.metrics import OperatorMetrics
from outrider.http.operator.admission import Admission
from outrider.http.operator.server import ServerCertificate, listening
from outrider.http.wire import bounded_head
from tests.support.fake_peers import FakeMember, PeerWire, Side, hello_of, peer_wire
from tests.support.nodes import until
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.bucket import Bucket
    from tests.support.tls import Certificate

ROOM = 8
HALF = ROOM // 2


def silent(port: int, source: str = "127.0.0.1") -> socket.socket:
    """A client that sends nothing."""
    client = socket.socket()
    client.bind((source, 0))
    client.connect(("127.0.0.1", port))
    return client


def test_silent_clients_of_the_s3_port_leave_room_for_others(bucket: Bucket, certificate: Certificate) -> None:
    with ExitStack() as held:
        proxy = held.enter_context(
            Proxy(bucket, max_connections=4, tls_cert=certificate.chain, tls_key=certificate.key)
        )
        port = proxy.address[1]
        for _ in range(proxy.outrider.server.accepted_max // 2 + 10):
            held.enter_context(silent(port))
        until(lambda: proxy.metric("outrider_refused_connections_total", port="s3", why="address") == 10, "refusals")
        trusting = ssl.create_default_context(cafile=certificate.authority)
        with silent(port, "127.0.0.2") as client, trusting.wrap_socket(client, server_hostname="127.0.0.1") as served:
            served.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert served.recv(5) == b"HTTP/"


@pytest.mark.parametrize("with_tls", [True, False])
async def test_silent_clients_of_the_peer_port_leave_room_for_members(*, with_tls: bool) -> None:
    """Also without TLS: only a connection that had a member's signature is none that an address is bounded in."""
    server = client = None
    if with_tls:
        authority = trustme.CA()
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.verify_mode, client.check_hostname = ssl.CERT_REQUIRED, False
        for context in (server, client):
            authority.issue_cert("member").configure_cert(context)
            authority.configure_trust(context)
    owner, edge, service = Side("owner", tls=server), Side("edge", tls=client), FakeMember(hello_of("owner"))

    def refused(why: str) -> float:
        return owner.metrics.value("outrider_refused_connections_total", port="peer", why=why)

    async with peer_wire(service, owner=owner, edge=edge, connections_max=ROOM) as wire:
        for _ in range(2):
            # One connection, which is kept: it is the member's, and no stranger's.
            await wire.client.hello(wire.member.address, hello_of("edge"))
        with ExitStack() as held:
            for _ in range(HALF):
                held.enter_context(silent(wire.port))
            there_now = (1, HALF) if with_tls else (1 + HALF, 0)
            await turns_until(lambda: connections(wire) == there_now)
        await turns_until(lambda: connections(wire) == (1, 0))
        assert refused("address") == 0, "the member's own connection is none of a stranger"
        with ExitStack() as held:
            for _ in range(HALF + 3):
                held.enter_context(silent(wire.port, "127.0.0.2"))
            await turns_until(lambda: refused("address") == 3)
            for more in range(1, HALF):
                held.enter_context(silent(wire.port))
                # The member's own connection, and those of the silent ones.
                there = (1, HALF + more) if with_tls else (1 + HALF + more, 0)
                await turns_until(lambda there=there: connections(wire) == there)  # type: ignore[misc]
            assert refused("full") == 0
            held.enter_context(silent(wire.port, "127.0.0.3"))
            await turns_until(lambda: refused("full") == 1)
            await wire.client.hello(wire.member.address, hello_of("edge"))
        await turns_until(lambda: len(wire.server.connections) + wire.listener.shaking_hands == 1)


@pytest.mark.parametrize("stage", ["handshake", "request"])
async def test_silent_clients_of_the_webhook_leave_room_for_the_api_server(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are cut after a while, whether they shake hands or not."""
    monkeypatch.setattr(bounded_head, "HEAD_TIMEOUT_S", 0.05)
    validity = Validity(time.time() - 3600, time.time() + 3600)
    authority = X509Certifier().authority(validity)
    certificate, metrics = ServerCertificate(), OperatorMetrics()
    certificate.show(X509Certifier().server(frozenset({"hook"}), authority, validity))
    trusting = ssl.create_default_context(cadata=authority.certificate)
    async with listening(
        Admission(Offers(), lambda _: (), lambda: True, metrics, name="first"), metrics, certificate,
        webhook=bind("127.0.0.1", 0), plain=bind("127.0.0.1", 0), is_ready=lambda: True,
        connections_max=ROOM, handshake_timeout_s=0.05,
    ) as (webhook, plain):  # fmt: skip
        for port, tls in ((webhook, trusting), (plain, None)):
            shaken = tls if stage == "request" else None
            name = "hook" if shaken else None
            for _ in range(2 * ROOM):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=shaken, server_hostname=name)
                assert await reader.read(1) == b""
                writer.close()
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=tls, server_hostname="hook" if tls else None
            )
            for _ in range(2):
                writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 ")
                await reader.readexactly(3 if port == plain else len("404: Not Found"))
            writer.close()


def connections(wire: PeerWire) -> tuple[int, int]:
    """How many there are whose handshake is over, and how many others."""
    return len(wire.server.connections), wire.listener.shaking_hands


async def turns_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)
