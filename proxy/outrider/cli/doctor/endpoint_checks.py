"""Checks of `outrider doctor --endpoint`: would a job here be served by the proxy at this address?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from outrider.adapters.origin.credentials import AwsCredentials
from outrider.adapters.origin.endpoint import DEFAULT_REGION
from outrider.cli.doctor.finding import Diagnosis, Level, fail, ok
from outrider.cli.doctor.origin_checks import (
    ASK_TIMEOUT_S,
    OriginAnswer,
    ask,
    check_answer,
    check_clock,
    check_credentials,
    check_way,
)
from outrider.core.auth.sigv4 import Credentials
from outrider.core.errors import OriginBroke
from outrider.settings import SettingsError

_DO = "Check that a proxy runs there (in Kubernetes: kubectl describe daemonset), and firewalls on the way to it."


async def endpoint_findings(endpoint: str) -> AsyncIterator[Diagnosis]:
    """`endpoint`: http://HOST:PORT, as in a job's AWS_ENDPOINT_URL. The key is the environment's, as for a job."""
    source = AwsCredentials()
    finding, found = await check_credentials(source)
    if found is None and finding.level is not Level.FAIL:
        finding = ok(finding.name, "none found: the proxy is asked unsigned")
    yield finding
    way = await check_way(endpoint)
    if way.level is Level.FAIL:
        yield fail("endpoint", way.text, _DO)
        return
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            answer = await ask(endpoint, DEFAULT_REGION, found)
    except (OriginBroke, SettingsError, TimeoutError) as error:
        yield fail("endpoint", f"{endpoint}: {error or 'timed out'}", _DO)
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
