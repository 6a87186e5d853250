"""The proxy's own credentials for the origin, from the AWS chain that every AWS tool walks."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from outrider.adapters.origin import aws_config
from outrider.core.auth.sigv4 import Credentials
from outrider.core.errors import OriginBroke
from outrider.core.origin import error_causes
from outrider.settings import SettingsError

if TYPE_CHECKING:
    from aiobotocore.session import AioSession

log = logging.getLogger(__name__)

# The pause before the chain is walked again after it found none: it tries the metadata service, which is slow.
_ASK_AGAIN_S = 30.0
# The pause between two renewals: otherwise each request that is refused would walk the chain.
_RENEW_AGAIN_S = 5.0


class AwsCredentials:
    """Credentials from environment, profile, IRSA, Pod Identity, container or instance metadata, in aiobotocore's
    order.

    aiobotocore refreshes temporary credentials before they expire, once for all requests that wait.
    """

    def __init__(self, listen: str = "") -> None:
        """`listen`: the proxy's own address. An AWS_ENDPOINT_URL that names it is not asked for a role."""
        self._listen = listen
        self._plain = _from_environment()
        self._session: AioSession | None = None
        self._found: Any = None
        self._requested_at = 0.0
        self._renewed_at = -_RENEW_AGAIN_S
        self._logged = ""
        # The access key, and the code.
        self._refused = ("", "")
        self._lock = asyncio.Lock()
        self._renewing = asyncio.Lock()

    async def current(self) -> Credentials | None:
        """The credentials to sign with; None: the chain has none, so requests go unsigned (public buckets).

        Raises:
            OriginBroke: the chain names a way to credentials that does not work (no such profile, a role refused).
        """
        try:
            if self._plain is not None:
                return self._plain
            if self._found is None:
                await self._find()
            if self._found is None:
                return None
            frozen = await self._found.get_frozen_credentials()
        except Exception as error:
            # botocore and its HTTP library raise dozens of types here; for a request they are one. Their texts hold
            # paths, roles and the output of a credential process: they are for the log, not for clients of the proxy.
            if str(error) != self._logged:
                self._logged = str(error)
                log.warning("no credentials", extra={"error": self._logged})
            raise OriginBroke(f"no credentials: {type(error).__name__}", lasting=True) from error
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)

    async def renew(self, refused: Credentials) -> bool:
        """Walk the chain from its start, because the origin no longer accepts `refused`.

        The session of the role may have been revoked, or the keys rotated in a file. Returns whether `current` has
        other credentials now. The chain is walked at most once in a few seconds.
        """
        async with self._renewing:
            if await self.current() != refused:
                return True  # an earlier refused request has renewed them
            now = asyncio.get_running_loop().time()
            if now - self._renewed_at < _RENEW_AGAIN_S:
                return False
            self._renewed_at = now
            try:
                session = await asyncio.to_thread(_make_session, self._listen)
                found = await session.get_credentials()
                frozen = None if found is None else await found.get_frozen_credentials()
            except Exception as error:  # noqa: BLE001 - dozens of types; the refusal goes to the client
                log.warning("credentials not renewed", extra={"error": str(error)})
                return False
            if frozen is None or (frozen.access_key, frozen.secret_key, frozen.token) == (
                refused.access_key, refused.secret_key, refused.session_token,
            ):  # fmt: skip
                return False
            self._session, self._found = session, found
            log.info("credentials renewed", extra={"method": str(found.method)})
            return True

    def refused(self, credentials: Credentials, code: str) -> None:
        """The origin refuses `credentials`, and there are no others. One line for all requests that meet it."""
        if (credentials.access_key, code) != self._refused:
            self._refused = credentials.access_key, code
            log.warning("the origin refuses the credentials", extra={"code": code, "do": error_causes.REMEDIES[code]})

    @property
    def refusal(self) -> str | None:
        """The code with which the origin refused credentials last; None: it has not."""
        return self._refused[1] or None

    async def find_early(self) -> None:
        """Walk the chain before the first request has to wait for it. That request will report a failure."""
        with suppress(OriginBroke):
            await self.current()

    async def region(self) -> str | None:
        """The chain's region; None when neither environment nor profile names one.

        Raises:
            SettingsError: AWS_PROFILE or the AWS config files are wrong.
        """
        # The variables are read here first: importing the chain would delay the start of the proxy. Go, Rust and Java
        # read AWS_REGION, Python reads AWS_DEFAULT_REGION.
        for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
            if region := os.environ.get(name):
                return region
        if not aws_config.may_have_profiles(os.environ):
            return None
        session = await self._open_session()
        from botocore.exceptions import BotoCoreError

        try:
            named = session.get_config_variable("region")
        except BotoCoreError as error:
            raise SettingsError(f"AWS configuration: {error}. Correct AWS_PROFILE or the AWS config file.") from error
        return str(named) if named else None

    @property
    def method(self) -> str | None:
        """The source of the credentials as botocore names it (`env`, `assume-role`, ...); None: none found yet."""
        if self._plain is not None:
            return "env"
        return None if self._found is None else str(self._found.method)

    async def _find(self) -> None:
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._found is not None or (self._requested_at and now - self._requested_at < _ASK_AGAIN_S):
                return
            session = await self._open_session()
            self._found = await session.get_credentials()
            self._requested_at = now
            if self._found is None:
                log.warning(
                    "no AWS credentials found, asking the origin unsigned",
                    extra={"do": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"},
                )

    async def _open_session(self) -> AioSession:
        if self._session is None:
            # The import takes a third of a second. In a thread it does not delay the start of the proxy.
            self._session = await asyncio.to_thread(_make_session, self._listen)
        return self._session


def _from_environment() -> Credentials | None:
    """The credentials in the environment, if they are complete there; None: ask the chain.

    The chain would find the same ones first, but its import takes ten megabytes for as long as the process lives.

    Source: botocore.credentials, EnvProvider: the order of the two names of the token, and that an expiry means that
    the keys will change.
    """
    of = os.environ.get
    if of("AWS_PROFILE") or of("AWS_DEFAULT_PROFILE") or of("AWS_CREDENTIAL_EXPIRATION"):
        return None
    access_key, secret_key = of("AWS_ACCESS_KEY_ID"), of("AWS_SECRET_ACCESS_KEY")
    if not access_key or not secret_key:
        return None
    return Credentials(access_key, secret_key, of("AWS_SECURITY_TOKEN") or of("AWS_SESSION_TOKEN") or None)


def _make_session(listen: str) -> AioSession:
    from aiobotocore.session import get_session

    session = get_session()
    named = (
        os.environ.get("AWS_ENDPOINT_URL_STS") or os.environ.get("AWS_ENDPOINT_URL")
        or aws_config.in_services(os.environ, "sts", "endpoint_url")
        or aws_config.profile_of(os.environ).get("endpoint_url")
    )  # fmt: skip
    if _is_own_address(named or "", listen):
        session.set_config_variable("ignore_configured_endpoint_urls", True)
    return session


def _is_own_address(endpoint: str, listen: str) -> bool:
    host, _, port = listen.rpartition(":")
    parts = urlsplit(endpoint)
    named_port = str(parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0))
    return bool(port) and port == named_port and parts.hostname in {host.strip("[]"), "127.0.0.1", "localhost", "::1"}
