"""Reads the AWS SDKs' environment variables and config file: the S3 endpoint, and whether credentials are named.

The file is read here, not by botocore, whose import takes a third of a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from pathlib import Path

# S3's own variable wins over the general one, as in the AWS SDKs; the last is s5cmd's.
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")
IGNORE_ENDPOINTS = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"

# Each of these names a way to credentials that the SDKs find without the instance's metadata service.
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip
_CREDENTIAL_FILES = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))


def endpoint_in(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable that names an S3 endpoint, and the endpoint; None: no variable does."""
    if ignores_endpoints(environ):
        return None
    return next(((name, environ[name]) for name in ENDPOINTS if environ.get(name)), None)


def endpoint_in_profile(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Like `endpoint_in` for the AWS config file, over which the variables win.

    The S3 endpoint in the `services` section of the profile wins over the profile's endpoint for all services.
    """
    if ignores_endpoints(environ):
        return None
    config, section = _profile(environ)
    services = config.get(f"services {config.get(section, 'services', fallback='')}", "s3", fallback="")
    for line in services.splitlines():
        name, _, endpoint = map(str.strip, line.partition("="))
        if name == "endpoint_url" and endpoint:
            return "endpoint_url of S3 in the AWS profile's services", endpoint
    endpoint = in_profile(environ, "endpoint_url") or ""
    return ("endpoint_url of the AWS profile", endpoint) if endpoint else None


def in_profile(environ: Mapping[str, str], name: str) -> str | None:
    """The value of `name` in the AWS profile, else in the single sign-on session that the profile names."""
    config, section = _profile(environ)
    session = f"sso-session {config.get(section, 'sso_session', fallback='')}"
    return config.get(section, name, fallback="") or config.get(session, name, fallback="") or None


def _profile(environ: Mapping[str, str]) -> tuple[ConfigParser, str]:
    """The AWS config file, and the name of the section that applies."""
    config = ConfigParser(interpolation=None, strict=False)
    # A broken file is reported by whoever needs it: botocore says more about it.
    with contextlib.suppress(ConfigParserError, OSError, ValueError):
        config.read(Path(environ.get("AWS_CONFIG_FILE", "~/.aws/config")).expanduser())
    profile = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    return config, profile if profile == "default" else f"profile {profile}"


def ignores_endpoints(environ: Mapping[str, str]) -> bool:
    """Whether the variable, else the profile, tells the AWS SDKs to ignore AWS_ENDPOINT_URL."""
    value = environ.get(IGNORE_ENDPOINTS)
    if value is None:
        value = in_profile(environ, IGNORE_ENDPOINTS.removeprefix("AWS_").lower()) or ""
    return value.lower() == "true"


def names_credentials(environ: Mapping[str, str]) -> bool:
    """Whether an SDK would find credentials, or a way to them, without the instance's metadata service."""
    return any(environ.get(name) for name in _CREDENTIALS) or any(
        Path(environ.get(name, default)).expanduser().exists() for name, default in _CREDENTIAL_FILES
    )
