"""Signature Version 4: the signature of a request, and the headers by which requests to the origin are signed.

Source: Amazon S3 API Reference, "Authenticating Requests (AWS Signature Version 4)": S3 encodes a path once and
never normalises it, unlike every other service.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING

from outrider.core.errors import InvalidAccessKeyId
from outrider.core.memo import Memo
from outrider.core.s3.encoding import encode_query, raw_bytes, trimmed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ALGORITHM = "AWS4-HMAC-SHA256"

# The proxy sets those of the first line itself. The HTTP library, or an intermediary, changes the others on the way.
_NEVER_SIGNED = frozenset(
    ("authorization", "host", "x-amz-date", "x-amz-content-sha256", "x-amz-security-token",
     "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade",
     "accept-encoding", "content-length", "expect", "transfer-encoding", "user-agent", "x-amzn-trace-id")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Credentials:
    """A key pair. `session_token` None: a long-lived key."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


def known_secret(secret_of: Callable[[str], str | None], access_key: str) -> str:
    """Raises InvalidAccessKeyId: `secret_of` returned None."""
    secret_key = secret_of(access_key)
    if secret_key is None:
        raise InvalidAccessKeyId
    return secret_key


class SigningKeys:
    """A bounded memo of signing keys: four of the five HMACs of a signature change only once a day. Any thread may call
    it."""

    def __init__(self, capacity: int = 256) -> None:
        self._keys: Memo[tuple[str, str, str, str], bytes] = Memo(capacity)

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, secret_key: str, date: str, region: str, service: str = "s3") -> bytes:
        """The signing key for `date` (YYYYMMDD)."""
        name = (secret_key, date, region, service)
        key = self._keys.get(name)
        if key is None:
            key = b"AWS4" + raw_bytes(secret_key)
            for part in (date, region, service, "aws4_request"):
                key = hmac.digest(key, raw_bytes(part), "sha256")
            self._keys.put(name, key)
        return key


def sign_headers(
    *,
    method: str,
    host: str,
    path: str,
    query: Sequence[tuple[str, str]],
    headers: Mapping[str, str],
    payload_hash: str,
    credentials: Credentials,
    region: str,
    now: float,
    keys: SigningKeys,
    service: str = "s3",
) -> dict[str, str]:
    """The headers to add to a request for the origin. They replace headers of the same name.

    `path` is encoded. `query` is decoded pairs, to be sent as `encode_url_query` writes them. `headers` have lower-case
    names; all are signed but those that libraries and intermediaries change. A client's x-amz-security-token must not
    be among `headers`: only the token of `credentials` is signed.
    """
    amz_date = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    added = {"x-amz-date": amz_date, "x-amz-content-sha256": payload_hash}
    if credentials.session_token is not None:
        added["x-amz-security-token"] = credentials.session_token
    signed = {name: trimmed(value) for name, value in headers.items() if name not in _NEVER_SIGNED}
    signed.update(added, host=host)
    names = sorted(signed)
    scope = f"{amz_date[:8]}/{region}/{service}/aws4_request"
    signature = signature_of(
        keys.get(credentials.secret_key, amz_date[:8], region, service),
        f"{ALGORITHM}\n{amz_date}\n{scope}\n",
        f"{method}\n{path or '/'}\n{encode_query(query) if query else ''}\n",
        canonical_headers(signed, names, payload_hash),
    )
    added["authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={';'.join(names)}, Signature={signature}"
    )
    return added


def canonical_headers(headers: Mapping[str, str], names: list[str], payload_hash: str) -> str:
    lines = "".join([f"{name}:{headers[name]}\n" for name in names])
    return f"{lines}\n{';'.join(names)}\n{payload_hash}"


def signature_of(key: bytes, prefix: str, head: str, tail: str) -> str:
    # Not `hmac.digest`, which releases the GIL for messages of any length. In a run of misses of small objects the
    # event loop spent 9 % of its time here, waiting to get the GIL back from the store's threads (py-spy).
    return hmac.new(key, raw_bytes(prefix + sha256(raw_bytes(head + tail)).hexdigest()), "sha256").hexdigest()
