"""The HTTP proxy of the environment is used for requests to the origin; .netrc is not read."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from yarl import URL

from outrider.adapters.origin.forward_proxy import ForwardProxy, forward_proxy_to
from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.core.errors import OriginBroke
from outrider.metrics import Metrics
from outrider.ports import OriginRequest
from outrider.settings import SettingsError
from tests.contract.test_origin import Keys
from tests.support.bucket import REGION
from tests.support.fakes import pieces_of, reply_to

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


async def ask(origin: HttpOrigin, key: str) -> tuple[int, bytes]:
    await origin.open()
    try:
        async with (
            reply_to(origin, OriginRequest("GET", "forwarded", key)) as reply,
            aclosing(pieces_of(reply)) as chunks,
        ):
            return reply.status, b"".join([chunk async for chunk in chunks])
    finally:
        await origin.close()


@pytest.mark.parametrize(
    ("endpoint", "variables", "way"),
    [
        ("https://s3.test", {}, None),
        ("https://s3.test", {"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        ("https://s3.test", {"https_proxy": "proxy:3128"}, "http://proxy:3128"),
        ("https://s3.test", {"HTTP_PROXY": "http://proxy:3128"}, None),
        ("http://s3.test", {"HTTP_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        ("http://s3.test:9000", {"ALL_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        ("https://s3.test", {"HTTPS_PROXY": "http://proxy", "NO_PROXY": "s3.test"}, None),
        ("https://s3.test", {"HTTPS_PROXY": "http://proxy", "NO_PROXY": "other, .test"}, None),
        ("https://s3.test", {"HTTPS_PROXY": "http://proxy", "no_proxy": "*"}, None),
        ("https://s3.test", {"HTTPS_PROXY": "http://proxy", "NO_PROXY": "3.test"}, "http://proxy"),
        ("http://127.0.0.1:8333", {"HTTP_PROXY": "http://proxy"}, None),
        ("http://localhost:8333", {"ALL_PROXY": "http://proxy"}, None),
        ("http://[::1]:8333", {"HTTP_PROXY": "http://proxy"}, None),
    ],
)
def test_the_proxy_is_the_one_that_aws_tools_find_in_the_environment(
    endpoint: str, variables: dict[str, str], way: str | None, environment: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    assert forward_proxy_to(endpoint) == ForwardProxy(None if way is None else URL(way))


def test_the_password_of_the_proxy_is_sent_to_the_proxy_only(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HTTPS_PROXY", "http://me:p%40ss@proxy:3128")
    way = forward_proxy_to("https://s3.test")
    assert (way.url, dict(way.headers)) == (URL("http://proxy:3128"), {})
    assert way.connect_headers == {"proxy-authorization": "Basic bWU6cEBzcw=="}


@pytest.mark.parametrize("wrong", ["socks5://me:secret@proxy", "http://", "http://proxy:port"])
def test_an_invalid_proxy_is_refused_without_showing_its_password(wrong: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HTTPS_PROXY", wrong)
    with pytest.raises(SettingsError, match="HTTPS_PROXY") as refused:
        forward_proxy_to("https://s3.test")
    assert "secret" not in str(refused.value)


async def test_a_plain_origin_is_reached_through_the_proxy_and_no_netrc_is_read(
    bucket: Bucket, simulator: Simulator, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bucket.make_bucket("forwarded")
    client = bucket.client()
    client.put_object(Bucket="forwarded", Key="a b", Body=b"here")
    client.close()
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password hidden\n")
    environment.setenv("NETRC", str(netrc))
    environment.setenv("HTTP_PROXY", simulator.endpoint.replace("://", "://me:secret@"))
    # A name that only the proxy can resolve.
    origin = HttpOrigin("http://bucket.test", REGION, Keys(bucket), Metrics(), time.time, connections=2)
    assert await ask(origin, "a b") == (200, b"here")
    (request,) = simulator.log()
    assert request.path == "http://bucket.test/forwarded/a%20b"
    assert request.headers["proxy-authorization"] == "Basic bWU6c2VjcmV0"
    assert request.headers["authorization"].startswith("AWS4-HMAC-SHA256")


async def test_an_https_origin_is_reached_by_a_tunnel(bucket: Bucket, environment: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        environment.setenv("HTTPS_PROXY", f"http://me:secret@127.0.0.1:{port}")
        origin = HttpOrigin("https://bucket.test", REGION, Keys(bucket), Metrics(), time.time, connections=2)
        with pytest.raises(OriginBroke) as broken:
            await ask(origin, "key")
    assert heads[0].startswith(b"CONNECT bucket.test:443 HTTP/1.1\r\n")
    assert b"proxy-authorization: basic bwu6c2vjcmv0" in heads[0].lower()
    assert b"AWS4" not in heads[0]
    assert "secret" not in str(broken.value)
