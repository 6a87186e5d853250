"""The settings of a proxy that a command starts for itself, and the environment of that command's children."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from outrider.adapters.origin.credentials import AwsCredentials
from outrider.cli import aws_environment
from outrider.cli.admin_port import loopback_of
from outrider.cli.load_settings import load_with_origin, refuse_itself
from outrider.cli.opened_origin import opened
from outrider.cli.run.child_environment import for_child
from outrider.cli.run.stderr import say
from outrider.cli.settings_flags import Flags
from outrider.composition import Outrider
from outrider.core.errors import OriginBroke
from outrider.ports import OriginRequest
from outrider.settings import Settings

# Defaults that differ from those of `serve`: any free port, no log lines among the child's output, and no long wait for
# readers that outlive the child.
_DEFAULTS = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "log_level": "warning", "drain_s": 1.0}
# The start of the child waits no longer than this for credentials: off EC2 the metadata service does not answer.
_CREDENTIALS_WAIT_S = 1.0
# A bucket answers in far less.
_ORIGIN_WAIT_S = 4.0


def settings_of(flags: Flags, config: Path | None) -> Settings:
    settings, name = load_with_origin(flags, config, _DEFAULTS, os.environ)
    if name is not None:
        say(f"the bucket is at {settings.origin}, as {name} says (--origin URL to name another)")
    found = aws_environment.endpoint_in(os.environ) or aws_environment.endpoint_in_profile(os.environ)
    # An endpoint that was skipped because it leads here must not make the proxy use AWS S3 instead: the job's bucket is
    # not there.
    refuse_itself(settings.origin or (found and found[1]), settings.listen)
    return settings


async def check_origin(outrider: Outrider) -> None:
    """Say if the bucket does not answer, or refuses the credentials, before the first read does."""
    with suppress(OriginBroke):  # no credentials, as the log says
        await outrider.credentials.current()
        await report_if_unreachable(outrider.origin_reader.endpoint, outrider.region, outrider.credentials)


async def report_if_unreachable(
    endpoint: str, region: str, credentials: AwsCredentials, within_s: float = _ORIGIN_WAIT_S
) -> None:
    try:
        async with (
            opened(endpoint, region, credentials, connections=1, refused=credentials.refused) as origin,
            asyncio.timeout(within_s),
        ):
            (await origin.ask(OriginRequest("GET", None, ""))).close()
    except (OriginBroke, TimeoutError) as error:
        why = str(error) or f"nothing came within {within_s:.0f} s"
        say(
            f"the bucket at {endpoint} does not answer: {why}. Reads are tried again; see that --origin is right, and "
            "run `outrider doctor`."
        )


async def environment_for(outrider: Outrider) -> dict[str, str]:
    """The environment of a child that reads through `outrider`."""
    return for_child(
        os.environ,
        endpoint=reachable(outrider.endpoint),
        admin=reachable(f"http://{outrider.admin}"),
        region=outrider.settings.region or await outrider.credentials.region(),
        needs_keys=outrider.settings.auth == "loopback" and await _has_no_keys(outrider.credentials),
    )


def reachable(url: str) -> str:
    """The URL with a loopback address, if the proxy listens on all addresses."""
    parts = urlsplit(url)
    host, _, port = parts.netloc.rpartition(":")
    return f"{parts.scheme}://{loopback_of(host)}:{port}"


async def _has_no_keys(credentials: AwsCredentials) -> bool:
    """Whether the child has no credentials at all: it finds the same ones as this process."""
    if aws_environment.names_credentials(os.environ):
        return False
    try:
        async with asyncio.timeout(_CREDENTIALS_WAIT_S):
            return await credentials.current() is None
    except TimeoutError:
        return True
    except OriginBroke:
        return False  # a way to credentials is named, but fails: each read will report how
