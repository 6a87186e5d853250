"""What the commands read from the environment, and what `run` puts into that of its child."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from pathlib import Path
from urllib.parse import urlsplit

from outrider import settings
from outrider.cli import options
from outrider.settings import Settings, SettingsError

STATUS_URL = "OUTRIDER_STATUS_URL"
"""Tells an SDK in the child where the admin port is. It is no setting."""

# S3's own variable wins over the general one, as in the AWS SDKs; the last is s5cmd's.
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")
_PORTS = {"http": 80, "https": 443}
_EVERYWHERE = {"0.0.0.0", "::"}  # noqa: S104 - to compare with
_IGNORE_ENDPOINTS = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"
_PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_NO_PROXY = ("no_proxy", "NO_PROXY")

# Any of these names a way to credentials that the SDKs find without asking an instance's metadata service.
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip
_CREDENTIAL_FILES = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))


def load(flags: Mapping[str, object], config: Path | None, defaults: Mapping[str, object]) -> Settings:
    """The settings; `defaults` hold where flags, environment and file say nothing. What is wrong ends with status 2."""
    try:
        said = settings.load(flags, config)
        unsaid = {name: value for name, value in defaults.items() if name not in said.model_fields_set}
        return settings.load({**flags, **unsaid}, config) if unsaid else said
    except SettingsError as error:
        raise options.refused(error) from error


def load_with_origin(
    flags: Mapping[str, object], config: Path | None, defaults: Mapping[str, object], environ: Mapping[str, str]
) -> tuple[Settings, str | None]:
    """As `load`, and who named the origin where no setting did; None: a setting, or nobody.

    Our own address is passed over: what is set for our clients may be set where we are started, too. Said to be the
    origin, it ends with status 2.
    """
    settings = load(flags, config, defaults)
    refuse_itself(settings.origin, settings.listen)
    if settings.origin is None:
        for name, endpoint in filter(None, (endpoint_in(environ), endpoint_in_profile(environ))):
            if not leads_to(endpoint, settings.listen):
                return load({**flags, "origin": endpoint}, config, defaults), name
    return settings, None


def refuse_itself(origin: str | None, listen: str) -> None:
    """Ends with status 2 where the proxy at `listen` would be its own origin."""
    if origin and leads_to(origin, listen):
        raise options.refused(
            SettingsError(f"--origin {origin} is --listen: the proxy would ask itself. Name the real bucket's.")
        )


def leads_to(endpoint: str, listen: str) -> bool:
    """Whether who asks `endpoint` (a URL) asks the proxy at `listen` (HOST:PORT) on this machine, by whatever name."""
    host, _, port = listen.rpartition(":")
    try:
        parts = urlsplit(endpoint)
        if not parts.hostname or str(parts.port or _PORTS.get(parts.scheme)) != port:
            return False
        asked, ours = _addresses(parts.hostname), _addresses(host.strip("[]"))
    except (OSError, ValueError):
        return False  # no such host, or no URL: whoever asks it will say so
    return not asked.isdisjoint(ours) or (not ours.isdisjoint(_EVERYWHERE) and any(map(_is_of_this_machine, asked)))


def _addresses(host: str) -> set[str]:
    return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}


def _is_of_this_machine(address: str) -> bool:
    """No other can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as tried:
        tried.bind((address, 0))
        return True
    return False


def endpoint_in(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable that names an S3 endpoint, and the endpoint; None: the job's S3 is AWS."""
    if ignores_endpoints(environ):
        return None
    return next(((name, environ[name]) for name in ENDPOINTS if environ.get(name)), None)


def endpoint_in_profile(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """As `endpoint_in`, of the AWS config file, which the variables win over: that of S3 in the `services` section of
    the profile, else the one for all services."""
    if ignores_endpoints(environ):
        return None
    config, section = _profile(environ)
    services = config.get(f"services {config.get(section, 'services', fallback='')}", "s3", fallback="")
    for line in services.splitlines():
        name, _, endpoint = map(str.strip, line.partition("="))
        if name == "endpoint_url" and endpoint:
            return "endpoint_url of S3 in the AWS profile's services", endpoint
    endpoint = _in_profile(environ, "endpoint_url") or ""
    return ("endpoint_url of the AWS profile", endpoint) if endpoint else None


def _in_profile(environ: Mapping[str, str], name: str) -> str | None:
    """What the AWS profile, or the single sign-on that it names, says of `name`."""
    config, section = _profile(environ)
    session = f"sso-session {config.get(section, 'sso_session', fallback='')}"
    return config.get(section, name, fallback="") or config.get(session, name, fallback="") or None


def _profile(environ: Mapping[str, str]) -> tuple[ConfigParser, str]:
    """The AWS config file, and the section in it that counts. Read here, since botocore's import takes a third of a
    second."""
    config = ConfigParser(interpolation=None, strict=False)
    # What is wrong with it, whoever needs it will say.
    with contextlib.suppress(ConfigParserError, OSError, ValueError):
        config.read(Path(environ.get("AWS_CONFIG_FILE", "~/.aws/config")).expanduser())
    profile = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    return config, profile if profile == "default" else f"profile {profile}"


def ignores_endpoints(environ: Mapping[str, str]) -> bool:
    """The AWS SDKs are told not to look at AWS_ENDPOINT_URL at all: by a variable, else by the profile."""
    said = environ.get(_IGNORE_ENDPOINTS)
    if said is None:
        said = _in_profile(environ, _IGNORE_ENDPOINTS.removeprefix("AWS_").lower()) or ""
    return said.lower() == "true"


def names_credentials(environ: Mapping[str, str]) -> bool:
    """Whether an SDK would find credentials, or a way to them, without an instance's metadata service."""
    return any(environ.get(name) for name in _CREDENTIALS) or any(
        Path(environ.get(name, default)).expanduser().exists() for name, default in _CREDENTIAL_FILES
    )


def for_child(
    environ: Mapping[str, str], *, endpoint: str, admin: str, region: str | None, needs_keys: bool
) -> dict[str, str]:
    """The child's environment. `needs_keys`: it has no credentials, and SDKs refuse to send what they cannot sign."""
    child = {**environ, **dict.fromkeys(ENDPOINTS, endpoint), STATUS_URL: admin}
    if ignores_endpoints(environ):
        # Not only unset: the variable wins over the profile.
        child[_IGNORE_ENDPOINTS] = "false"
    # The general variable moves every service, but the child's role is still to be had from where it was before.
    elsewhere = environ.get("AWS_ENDPOINT_URL") or _in_profile(environ, "endpoint_url")
    child.setdefault("AWS_ENDPOINT_URL_STS", elsewhere or _sts(region))
    # Which may be in another region than the buckets.
    sso_region = _in_profile(environ, "sso_region") or region
    for name, service in (("AWS_ENDPOINT_URL_SSO", "portal.sso"), ("AWS_ENDPOINT_URL_SSO_OIDC", "oidc")):
        if place := elsewhere or (sso_region and _of_aws(service, sso_region)):
            child.setdefault(name, place)
    if endpoint.startswith("http://"):
        # Rust's object_store refuses http otherwise.
        child.setdefault("AWS_ALLOW_HTTP", "true")
    if needs_keys:
        child["AWS_ACCESS_KEY_ID"] = child["AWS_SECRET_ACCESS_KEY"] = "outrider-accepts-any"  # noqa: S105 - no secret
    if any(environ.get(name) for name in _PROXIES):
        # Some tools read the one spelling, some the other: both get all.
        listed = _hosts_of(environ)
        # Beside others, `*` means nothing to curl, requests and urllib.
        hosts = "*" if set(listed) == {"*"} else ",".join(dict.fromkeys([*listed, "127.0.0.1", "localhost"]))
        child.update(dict.fromkeys(_NO_PROXY, hosts))
    return child


def _hosts_of(environ: Mapping[str, str]) -> list[str]:
    listed = ",".join(environ.get(name, "") for name in _NO_PROXY)
    return [host.strip() for host in listed.split(",") if host.strip()]


def _sts(region: str | None) -> str:
    if region is None:
        return "https://sts.amazonaws.com"
    return _of_aws("sts", region)


def _of_aws(service: str, region: str) -> str:
    return f"https://{service}.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
