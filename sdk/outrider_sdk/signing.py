"""Signature Version 4, for a proxy that checks signatures, with the keys of the environment.

Source: Amazon S3 API Reference, "Signature Calculations for the Authorization Header".
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote_to_bytes

_DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True)
class Keys:
    """`token`: the session token of temporary keys; None: the keys are permanent."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    region: str = _DEFAULT_REGION


def keys_of(environ: Mapping[str, str]) -> Keys | None:
    """The keys in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; None: they are not set, so nothing is signed."""
    access_key, secret_key = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
    if not access_key or not secret_key:
        return None
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
    return Keys(access_key, secret_key, environ.get("AWS_SESSION_TOKEN") or None, region)


def signed_headers(
    keys: Keys, method: str, host: str, path: str, body: bytes, now: float, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """All headers of a request without a query. `path` is escaped, `now` is in seconds since 1970, and `more` are
    further headers with names in lower case."""
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    headers = {**(more or {}), "host": host, "x-amz-content-sha256": hashlib.sha256(body).hexdigest(), "x-amz-date": at}
    if keys.token is not None:
        headers["x-amz-security-token"] = keys.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    escaped = quote(unquote_to_bytes(path), safe="/")
    request = f"{method}\n{escaped}\n\n{lines}\n{names}\n{headers['x-amz-content-sha256']}"
    scope = f"{at[:8]}/{keys.region}/s3/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{keys.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers
