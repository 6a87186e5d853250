"""Checks of `outrider doctor` towards the origin, or a proxy elsewhere: credentials, network, signature and clock."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from outrider.adapters.origin.aws_config import ca_bundle
from outrider.adapters.origin.credentials import AwsCredentials
from outrider.adapters.origin.endpoint import DEFAULT_REGION, aws_url
from outrider.adapters.origin.forward_proxy import forward_proxy_to
from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.adapters.origin.receivers import most_receivers
from outrider.adapters.process.system import usable_cores
from outrider.cli.doctor.bucket_checks import bucket_findings
from outrider.cli.doctor.finding import Diagnosis, Level, fail, ok, warn
from outrider.cli.opened_origin import opened
from outrider.core.auth.sigv4 import Credentials
from outrider.core.errors import OriginBroke
from outrider.core.origin.error_causes import REMEDIES, message_of
from outrider.core.s3.conditions import parse_http_date
from outrider.ports import OriginRequest
from outrider.settings import Settings, SettingsError

_CREDENTIALS_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 5.0
_ASK_TIMEOUT_S = 15.0
# An error reply of S3 has a few hundred bytes. The rest of a longer one, such as a list of buckets, is not needed.
_BODY_BYTES_MAX = 64 * 1024
# S3 refuses a signature whose clock is 15 minutes off.
SKEW_WARN_S, SKEW_FAIL_S = 300.0, 900.0
_PORTS = {"http": 80, "https": 443}

_DO_ON_CODE = REMEDIES | {
    "RequestTimeTooSkewed": "Set the clock of this machine (chrony or ntpd).",
    "AuthorizationHeaderMalformed": "Set --region to the region that the origin names.",
}
_NO_S3_DO = "Give the S3 endpoint of the store as --origin: another port, or another host, as a rule."
_NO_PROXY_DO = (
    "Check that a proxy runs there (in Kubernetes: kubectl describe daemonset), and firewalls on the way to it."
)
_UNSIGNED_DO = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; public buckets need none."


@dataclass(frozen=True, slots=True)
class OriginAnswer:
    """The origin's reply to a signed ListBuckets. `date` and `server` are its headers; `requested_at` and `answered_at`
    are our times."""

    status: int
    body: str
    date: str | None
    requested_at: float
    answered_at: float
    server: str = ""


async def origin_findings(settings: Settings, url: str | None = None) -> AsyncIterator[Diagnosis]:
    """`url`: s3://BUCKET/PREFIX, whose replies are looked at, too."""
    credentials = AwsCredentials()
    finding, found = await check_credentials(credentials)
    yield finding
    endpoint, region = await place_of(settings, credentials)
    way = await check_way(endpoint)
    yield way
    try:
        async with asyncio.timeout(_ASK_TIMEOUT_S):
            answer = await ask(endpoint, region, found)
    except (OriginBroke, TimeoutError) as error:
        why = str(error) or "timed out"
        do = "Check --origin (http or https?), proxies and certificates."
        yield fail("origin", f"{endpoint}: {why}", _on_no_trust(why) or do)
        return
    except SettingsError as error:
        # The proxy would not start.
        text, _, do = str(error).rpartition(". ")
        yield fail("origin", text, do)
        return
    yield check_answer(answer, endpoint, found)
    yield check_clock(answer)
    if url is not None:
        async with opened_by(endpoint, region, found) as origin:
            async for finding in bucket_findings(origin, url):
                yield finding


# -- a proxy elsewhere, as a job would reach it: `outrider doctor --endpoint` -----------------------------------------


async def endpoint_findings(endpoint: str) -> AsyncIterator[Diagnosis]:
    """`endpoint`: http://HOST:PORT, as in a job's AWS_ENDPOINT_URL. The key is the environment's, as for a job."""
    source = AwsCredentials()
    finding, found = await check_credentials(source)
    if found is None and finding.level is not Level.FAIL:
        finding = ok(finding.name, "none found: the proxy is asked unsigned")
    yield finding
    way = await check_way(endpoint)
    if way.level is Level.FAIL:
        yield fail("endpoint", way.text, _NO_PROXY_DO)
        return
    try:
        async with asyncio.timeout(_ASK_TIMEOUT_S):
            answer = await ask(endpoint, DEFAULT_REGION, found)
    except (OriginBroke, SettingsError, TimeoutError) as error:
        why = str(error) or "timed out"
        yield fail("endpoint", f"{endpoint}: {why}", _on_no_trust(why) or _NO_PROXY_DO)
        return
    yield check_proxy(answer, endpoint, found)
    yield check_clock(answer)


def check_proxy(answer: OriginAnswer, endpoint: str, credentials: Credentials | None) -> Diagnosis:
    """An answer that refuses an unsigned request is that of a proxy which is well."""
    if answer.server != "outrider":
        return fail(
            "endpoint", f"{urlsplit(endpoint).netloc} answers as {answer.server or 'nobody'}, and not as outrider",
            "Give the address of a proxy's S3 port.",
        )  # fmt: skip
    found = check_answer(answer, endpoint, credentials)
    if answer.status >= 500:
        return fail(
            "endpoint", found.text, "The proxy is reached, and its bucket is not: run outrider doctor beside it."
        )
    if found.level is Level.FAIL:
        return fail("endpoint", found.text, "Give the job a key that is in the clients file of the proxy.")
    return ok("endpoint", found.text)


# -- single checks -----------------------------------------------------------------------------------------------------


def _on_no_trust(why: str) -> str:
    """Empty: there is another cause."""
    if "certificate verify failed" not in why:
        return ""
    bundle = ca_bundle(os.environ)
    trusted = f"{bundle[0]} names {bundle[1]}, which does not have it." if bundle else "The system does not know it."
    return f"Set AWS_CA_BUNDLE to a PEM file with the authority that signed the certificate. {trusted}"


def opened_by(
    endpoint: str, region: str, credentials: Credentials | None
) -> AbstractAsyncContextManager[HttpOrigin]:  # fmt: skip
    """The origin, asked with these credentials alone."""
    receivers = most_receivers(usable_cores())
    return opened(endpoint, region, _Fixed(credentials), connections=4, receivers=receivers)


async def check_credentials(source: AwsCredentials) -> tuple[Diagnosis, Credentials | None]:
    """Walk the AWS chain. botocore raises errors of many types, so their own texts are shown."""
    try:
        async with asyncio.timeout(_CREDENTIALS_TIMEOUT_S):
            found = await source.current()
    except Exception as error:  # noqa: BLE001 - any error that stops the chain is a finding
        cause = error.__cause__ or error
        text = f"the AWS chain failed: {cause}" if str(cause) else f"the AWS chain failed: {type(cause).__name__}"
        return fail("credentials", text, "Correct AWS_PROFILE, the AWS config files or the role it names."), None
    if found is None:
        return warn("credentials", "none found: the origin is asked unsigned", _UNSIGNED_DO), None
    return ok("credentials", f"found: {source.method}, key {masked(found.access_key)}"), found


def masked(access_key: str) -> str:
    """Enough of a key id to distinguish it from others. The whole id does not belong in a bug report."""
    return f"{access_key[:4]}...{access_key[-4:]}" if len(access_key) >= 12 else f"{access_key[:2]}..."


async def check_way(endpoint: str) -> Diagnosis:
    """Resolve the name and connect to the port of the origin, or of the forward proxy on the way to it.

    With a forward proxy the name of the origin need not resolve on this machine.
    """
    parts = urlsplit(str(forward_proxy_to(endpoint).url or endpoint))
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError) as error:
        return fail(
            "network",
            f"{host}: no such name: {_words(error)}",
            "Check --origin (or HTTPS_PROXY) for a typo, and the DNS of this machine.",
        )
    return await _connect(parts, host, port, str(addresses[0][4][0]))


async def _connect(parts: SplitResult, host: str, port: int, address: str) -> Diagnosis:
    began = time.perf_counter()
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        return fail(
            "network", f"{parts.netloc} ({address}): cannot connect: {_words(error)}",
            "Check --origin (or HTTPS_PROXY), that the server runs, and firewalls on the way to it.",
        )  # fmt: skip
    took_s = time.perf_counter() - began
    writer.close()
    return ok("network", f"{parts.netloc} ({address}): connected in {1000 * took_s:.1f} ms")


async def ask(endpoint: str, region: str, credentials: Credentials | None) -> OriginAnswer:
    """ListBuckets, signed as the proxy signs.

    Raises:
        OriginBroke: no reply came.
    """
    async with opened_by(endpoint, region, credentials) as origin:
        requested_at = time.time()
        with closing(await origin.ask(OriginRequest("GET", None, ""))) as reply:
            answered_at = time.time()
            body = b""
            while len(body) < _BODY_BYTES_MAX and (piece := await reply.some()):
                body += piece
            headers = dict(reply.headers)
            text, server = body.decode("utf-8", "replace"), headers.get("server", "")
            return OriginAnswer(reply.status, text, headers.get("date"), requested_at, answered_at, server)


def check_answer(answer: OriginAnswer, endpoint: str, credentials: Credentials | None) -> Diagnosis:
    took = f"{1000 * (answer.answered_at - answer.requested_at):.0f} ms"
    code = _of_xml("Code", answer.body) or f"status {answer.status}"
    if answer.status == 200 and "<ListAllMyBucketsResult" not in answer.body:
        by = f", by {answer.server}" if answer.server else ""
        return fail(
            "origin", f"{endpoint}: answers in {took}{by}, and is no S3: its reply is no list of buckets", _NO_S3_DO
        )
    if answer.status == 200:
        return ok("origin", f"{endpoint}: answers in {took}" + (", signature accepted" if credentials else ""))
    if code == "AccessDenied" and credentials is None:
        return warn("origin", f"{endpoint}: answers in {took}, refuses unsigned requests for its list", _UNSIGNED_DO)
    if code == "AccessDenied":
        return ok("origin", f"{endpoint}: answers in {took}, knows the key (which may not list all buckets)")
    message = message_of(answer.body.encode())
    said = f"{code}: {message}" if message else code
    if code in _DO_ON_CODE:
        return fail("origin", f"{endpoint}: {said}{_named_region(answer.body)}", _DO_ON_CODE[code])
    if answer.status in (301, 302, 307, 308):
        return fail(
            "origin", f"{endpoint}: redirects elsewhere ({code})", "Give the endpoint it points to as --origin."
        )
    if answer.status in (500, 502, 503, 504):
        return fail("origin", f"{endpoint}: {said}", "The origin is there, but not well. Try again; ask its operator.")
    return fail("origin", f"{endpoint}: {said}: it is not as S3 answers", _NO_S3_DO)


def check_clock(answer: OriginAnswer) -> Diagnosis:
    """Compare this clock with the origin's Date header, whose resolution is a second. Signatures carry the time."""
    theirs = _seconds_of(answer.date)
    if theirs is None:
        return warn("clock", "the origin sends no valid Date", "Compare `date -u` with a clock that you trust.")
    # The header was written between our two times, and its second began up to 1 s before: on average half a second.
    ahead_s = (answer.requested_at + answer.answered_at) / 2 - theirs - 0.5
    text = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the origin's"
    do = "Set the clock of this machine (chrony or ntpd): S3 refuses signatures that are 15 minutes off."
    if abs(ahead_s) > SKEW_FAIL_S:
        return fail("clock", text, do)
    if abs(ahead_s) > SKEW_WARN_S:
        return warn("clock", text, do)
    return ok("clock", "agrees with the origin's" if abs(ahead_s) < 2 else text)


async def place_of(settings: Settings, credentials: AwsCredentials) -> tuple[str, str]:
    """The endpoint of the origin, and its region."""
    region = settings.region or await _region(credentials)
    return settings.origin or aws_url(region, os.environ), region


async def _region(credentials: AwsCredentials) -> str:
    try:
        return await credentials.region() or DEFAULT_REGION
    except Exception:  # noqa: BLE001 - the profile is broken, and the check of the credentials has said so
        return DEFAULT_REGION


def _named_region(body: str) -> str:
    region = _of_xml("Region", body)
    return f" (its region is {region})" if region else ""


def _of_xml(tag: str, body: str) -> str | None:
    # The reply is not parsed: it may be anything, and only a word of a known form is needed.
    match = re.search(rf"<{tag}>([A-Za-z0-9.-]{{1,64}})</{tag}>", body)
    return match[1] if match else None


def _seconds_of(date: str | None) -> float | None:
    parsed = parse_http_date(date)
    return None if parsed is None else parsed.timestamp()


def _words(error: BaseException) -> str:
    return "timed out" if isinstance(error, TimeoutError) else str(getattr(error, "strerror", None) or error)


class _Fixed:
    """A source of the credentials that the check found, if any."""

    def __init__(self, credentials: Credentials | None) -> None:
        self._credentials = credentials

    async def current(self) -> Credentials | None:
        return self._credentials

    async def renew(self, refused: Credentials) -> bool:
        return False
