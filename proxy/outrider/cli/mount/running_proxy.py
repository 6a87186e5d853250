"""Finds out whether an Outrider answers at an endpoint."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from outrider.adapters.origin.aws_config import ca_bundle
from outrider.cli.mount.missing import CannotMount
from outrider.core.cache.freshness import Freshness, shortest_under
from outrider.core.s3.operation import CONTROL_BUCKET

_TIMEOUT_S = 5.0
_STATUS_BYTES_MAX = 16 * 2**20


class Who(Enum):
    OUTRIDER = "an Outrider"
    OTHER = "another server"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class There:
    """The server at `endpoint`. `freshness`: that of an Outrider, and `rules` its exceptions by glob; None: it does not
    show them to strangers."""

    endpoint: str
    who: Who
    freshness: Freshness | None = None
    rules: tuple[tuple[str, Freshness], ...] = ()

    def freshness_under(self, bucket: str, prefix: str) -> Freshness | None:
        """The shortest freshness of all objects whose keys begin with `prefix`; None: strangers do not learn it."""
        return None if self.freshness is None else shortest_under(f"{bucket}/{prefix}", self.rules, self.freshness)


def look_up_proxy(endpoint: str, environ: Mapping[str, str]) -> There:
    """Raises CannotMount: the certificates to trust cannot be read."""
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_trust(environ))
    )
    try:
        try:
            with opener.open(f"{endpoint.rstrip('/')}/{CONTROL_BUCKET}/status.json", timeout=_TIMEOUT_S) as reply:
                server, body = reply.headers.get("server"), reply.read(_STATUS_BYTES_MAX)
        except urllib.error.HTTPError as error:
            with error:
                server, body = error.headers.get("server"), b""
    except (OSError, ValueError, http.client.HTTPException):
        return There(endpoint, Who.NOBODY)
    if server != "outrider":
        return There(endpoint, Who.OTHER)
    try:
        status = json.loads(body)
        rules = tuple((str(glob), Freshness.parse(str(text))) for glob, text in status.get("freshness_rules", ()))
        return There(endpoint, Who.OUTRIDER, Freshness.parse(str(status["freshness"])), rules)
    except (ValueError, KeyError, TypeError, AttributeError):
        return There(endpoint, Who.OUTRIDER)


def _trust(environ: Mapping[str, str]) -> ssl.SSLContext:
    name, path = ca_bundle(environ) or ("", None)
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:  # ssl.SSLError is one
        raise CannotMount(f"{name}={path}: {error.strerror or error}. Name a PEM file, or unset it.") from error
