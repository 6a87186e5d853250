"""Credentials from the environment: the AWS chain is skipped exactly when it would find the same credentials."""

from __future__ import annotations

import os
from itertools import combinations

import pytest
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError

from outrider.adapters.origin.credentials import AwsCredentials, _make_session
from outrider.core.auth.sigv4 import Credentials
from outrider.core.errors import OriginBroke

NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_PROFILE",
         "AWS_DEFAULT_PROFILE", "AWS_CREDENTIAL_EXPIRATION")  # fmt: skip
VALUES = {"AWS_CREDENTIAL_EXPIRATION": "2999-01-01T00:00:00Z"}


async def by_the_chain() -> Credentials | None:
    """The credentials that the AWS chain finds; None: it finds none, or fails."""
    try:
        found = await get_session().get_credentials()
        if found is None:
            return None
        frozen = await found.get_frozen_credentials()
    except BotoCoreError:
        return None
    return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


async def by_us() -> Credentials | None:
    try:
        return await AwsCredentials().current()
    except OriginBroke:
        return None


@pytest.mark.parametrize("given", [chosen for count in range(5) for chosen in combinations(NAMES, count)], ids="+".join)
async def test_the_credentials_are_those_that_the_chain_finds(
    given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in given:
        monkeypatch.setenv(name, VALUES.get(name, f"the {name}"))
    assert await by_us() == await by_the_chain()


@pytest.mark.parametrize(
    ("environ", "ignored"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9480"}, True),
        ({"AWS_ENDPOINT_URL": "http://localhost:9480"}, True),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9480", "AWS_ENDPOINT_URL_STS": "http://sts"}, False),
        ({"AWS_ENDPOINT_URL": "http://minio:9000"}, False),
        ({}, False),
    ],
)
def test_the_proxy_does_not_ask_itself_for_a_role(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], ignored: bool
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_STS", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    session = _make_session("127.0.0.1:9480")
    assert bool(session.get_config_variable("ignore_configured_endpoint_urls")) == ignored
