"""Refusals of the origin that are owed to how it was asked (which clock, whose keys), and not to what for; and what of
them is nobody's business.

Source: S3 API reference, "List of error codes".
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime

STATUSES = (400, 403)

_CODE = re.compile(rb"<Code>([A-Za-z]{1,64})</Code>")
_CREDENTIAL_CODES = frozenset(
    ("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId")
)
# What AWS tells the sender of what it sent: the token that has expired (ExpiredToken, InvalidToken), whose key is not
# known, and all that was signed, a session token among it, once more as hexadecimal bytes (SignatureDoesNotMatch).
_SIGNERS = re.compile(
    rb"<(Token-\d+|AWSAccessKeyId|SignatureProvided|(?:StringToSign|CanonicalRequest)(?:Bytes)?)>.*?(?:</\1>|\Z)",
    re.DOTALL,
)
# S3 takes a signature of up to this long ago or ahead.
_SKEW_MAX_S = 15 * 60


def code_of(body: bytes) -> str | None:
    match = _CODE.search(body)
    return None if match is None else match[1].decode("ascii")


def without_signers(body: bytes) -> bytes:
    """The document without what only who signed the question may see: here that is the proxy, and not its client."""
    return _SIGNERS.sub(b"", body)


def blames_credentials(status: int, code: str | None) -> bool:
    """`code` None: the refusal has no words, as that of a HEAD. S3 says 400 then of a token that expired; 403 may be
    anything."""
    return status == 400 if code is None else code in _CREDENTIAL_CODES


def clock_offset(status: int, code: str | None, date: str | None, now: float, offset_s: float) -> float | None:
    """What to add to `now`, seconds of our clock, to sign in the origin's time; None: what was added is not to blame.

    `date` is the refusal's header, `offset_s` what was added until now. A refusal without words counts when its date is
    off by so much that any question would be refused.
    """
    if status != 403 or code not in (None, "RequestTimeTooSkewed") or (told := _seconds(date)) is None:
        return None
    if abs(told - now - offset_s) > _SKEW_MAX_S:
        return told - now
    # Its own date misled us before.
    return 0.0 if code is not None and abs(offset_s) > _SKEW_MAX_S else None


def _seconds(date: str | None) -> float | None:
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
