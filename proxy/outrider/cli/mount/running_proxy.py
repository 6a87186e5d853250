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
from outrider.core.s3.operation import CONTROL_BUCKET

_TIMEOUT_S = 5.0
_STATUS_BYTES_MAX = 16 * 2**20


class Who(Enum):
    OUTRIDER = "an Outrider"
    OTHER = "another server"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class There:
    """The server at `endpoint`. `freshness`: that of an Outrider; None: it does not tell strangers."""

    endpoint: str
    who: Who
    freshness: str | None = None


def asked(endpoint: str, environ: Mapping[str, str]) -> There:
    bundle = ca_bundle(environ)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=bundle[1] if bundle else None)),
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
        freshness = json.loads(body)["freshness"]
    except (ValueError, KeyError, TypeError):
        return There(endpoint, Who.OUTRIDER)
    return There(endpoint, Who.OUTRIDER, str(freshness))
