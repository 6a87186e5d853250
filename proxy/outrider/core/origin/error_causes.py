"""Causes of the origin's errors that lie in how the proxy signed: its clock and its credentials. Also removes from
error bodies what only the signer may see.

Source: S3 API reference, "List of error codes".
"""

from __future__ import annotations

import re
from html import unescape

from outrider.core.origin.backoff import seconds_of

STATUSES = (400, 403)

_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,64})</Code>")
_MESSAGE_CHARS_MAX = 300
_CREDENTIAL_CODES = frozenset(
    ("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId")
)
_OTHER_KEY = "Give the right AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) to the proxy"
REMEDIES = {
    "InvalidAccessKeyId": f"{_OTHER_KEY}: the origin does not know this key.",
    "SignatureDoesNotMatch": f"{_OTHER_KEY}: the secret does not belong to this key.",
    "ExpiredToken": "Renew the temporary credentials (aws sso login, or export new ones).",
    "InvalidToken": "Set the AWS_SESSION_TOKEN that belongs to the key, or unset it for a long-lived key.",
}
"""For each code of a refusal of the credentials, what a person can do."""
# AWS repeats parts of the request in its errors: the token that has expired (ExpiredToken, InvalidToken), the unknown
# access key, and all that was signed, with the session token, in clear and as hexadecimal bytes
# (SignatureDoesNotMatch).
_SIGNERS = re.compile(
    rb"<(Token-\d+|AWSAccessKeyId|SignatureProvided|(?:StringToSign|CanonicalRequest)(?:Bytes)?)>.*?(?:</\1>|\Z)",
    re.DOTALL,
)
# S3 accepts a signature whose date is up to this far from its clock.
_SKEW_MAX_S = 15 * 60


def code_of(body: bytes) -> str | None:
    match = _CODE.search(body)
    return None if match is None else match[1].decode("ascii")


def message_of(body: bytes) -> str:
    """The store's own message in one line, or "" if the document has none."""
    message, end, _ = body.partition(b"<Message>")[2].partition(b"</Message>")
    text = unescape(message.decode("utf-8", "replace")) if end else ""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))[:_MESSAGE_CHARS_MAX]


def without_signers(body: bytes) -> bytes:
    """The document without the parts that only the signer may see: the proxy signed the request, and not its client."""
    return _SIGNERS.sub(b"", body)


def blames_credentials(status: int, code: str | None) -> bool:
    """Whether the error is about the credentials. `code` None: the error has no body, as for a HEAD. S3 then answers
    400 for an expired token; a 403 may have any cause."""
    return status == 400 if code is None else code in _CREDENTIAL_CODES


def refusal_of_credentials(status: int, code: str | None) -> str | None:
    """The code in `REMEDIES` of a refusal of the credentials; None: its cause is another, or not known."""
    if code in REMEDIES:
        return code
    return "ExpiredToken" if blames_credentials(status, code) else None


def clock_offset(status: int, code: str | None, date: str | None, now: float, offset_s: float) -> float | None:
    """The seconds to add to `now`, our clock, to sign with the origin's time. None: the clock is not the cause.

    `date`: the error's Date header. `offset_s`: the seconds added until now. An error without a body counts if its date
    is so far off that every request would be refused.
    """
    if status != 403 or code not in (None, "RequestTimeTooSkewed") or (origin_s := seconds_of(date or "")) is None:
        return None
    if abs(origin_s - now - offset_s) > _SKEW_MAX_S:
        return origin_s - now
    # The offset came from a wrong date of the origin.
    return 0.0 if code is not None and abs(offset_s) > _SKEW_MAX_S else None
