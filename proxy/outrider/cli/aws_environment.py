"""The S3 endpoint of the AWS SDKs' environment variables and config file, and whether credentials are named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from outrider.adapters.origin import aws_config

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
    if endpoint := aws_config.in_services(environ, "s3", "endpoint_url"):
        return "endpoint_url of S3 in the AWS profile's services", endpoint
    endpoint = aws_config.profile_of(environ).get("endpoint_url")
    return ("endpoint_url of the AWS profile", endpoint) if endpoint else None


def ignores_endpoints(environ: Mapping[str, str]) -> bool:
    """Whether the variable, else the profile, has the AWS SDKs to ignore AWS_ENDPOINT_URL."""
    return aws_config.is_on(environ, IGNORE_ENDPOINTS.removeprefix("AWS_").lower())


def names_credentials(environ: Mapping[str, str]) -> bool:
    """Whether an SDK would find credentials, or a way to them, without the instance's metadata service."""
    return any(environ.get(name) for name in _CREDENTIALS) or any(
        Path(environ.get(name, default)).expanduser().exists() for name, default in _CREDENTIAL_FILES
    )
