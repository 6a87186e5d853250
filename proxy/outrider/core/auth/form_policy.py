"""The policy of a browser's upload: which key signed it, which forms it allows, and the form signed anew for the
origin.

Sources: Amazon S3 API Reference, "Creating a POST policy", "Calculating a signature" (browser-based uploads, Signature
Version 4); Signature Version 2 signs the same document by HMAC-SHA1.
"""

from __future__ import annotations

import hmac
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from outrider.core.auth.sigv4 import ALGORITHM, Credentials, SigningKeys, known_secret
from outrider.core.auth.verification import scope_of
from outrider.core.errors import (
    AccessDenied,
    EntityTooLarge,
    EntityTooSmall,
    InvalidArgument,
    InvalidPolicyDocument,
    SignatureDoesNotMatch,
)
from outrider.core.s3.encoding import amz_date_seconds, raw_bytes
from outrider.core.s3.form_fields import Fields, PostForm, missing_field

_V2 = ("awsaccesskeyid", "signature")
_V4 = ("x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature")
_SIGNING = frozenset((*_V2, *_V4, "x-amz-security-token", "policy"))
# Fields that no condition needs to cover: S3 names these and `x-ignore-*`.
_UNCOVERED = frozenset(("awsaccesskeyid", "signature", "x-amz-signature", "policy", "file"))
_EXPIRATION = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]{1,9})?Z", re.ASCII)
_SIZE = re.compile(r"[0-9]{1,18}", re.ASCII)
# The life of a policy that the proxy makes for a form without one. The origin reads the fields as soon as they arrive,
# so it only has to outlast a difference between clocks.
_OWN_POLICY_S = 3600


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The allowed size of the file in bytes, both ends included. `stop` None: the origin alone sets a limit."""

    start: int = 0
    stop: int | None = None

    def check_so_far(self, size: int) -> None:
        """Raises EntityTooLarge: `size` bytes have come, and more than `stop`."""
        if self.stop is not None and size > self.stop:
            raise EntityTooLarge

    def check(self, size: int) -> None:
        """Raises EntityTooLarge or EntityTooSmall: the file has `size` bytes."""
        self.check_so_far(size)
        if size < self.start:
            raise EntityTooSmall


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the field `name` (in lower case). `operator` is `eq` or `starts-with`."""

    operator: str
    name: str
    value: str

    def holds(self, value: str) -> bool:
        if self.operator == "eq":
            return value == self.value
        # A content type may be a list, of which each must match (S3, "Condition matching").
        values = value.split(",") if self.name == "content-type" else [value]
        return all(each.strip().startswith(self.value) for each in values) if len(values) > 1 else (
            value.startswith(self.value)
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FormPolicy:
    """The forms that a signed policy allows until `expires_at` (seconds since 1970)."""

    expires_at: float
    conditions: tuple[Condition, ...]
    sizes: SizeRange

    def check(self, form: PostForm, bucket: str, now: float) -> None:
        """Raises AccessDenied: the policy has expired, a condition fails, or no condition covers a field."""
        if now >= self.expires_at:
            raise AccessDenied("Invalid according to Policy: Policy expired.")
        values = form.values | {"bucket": bucket}
        for condition in self.conditions:
            if not condition.holds(values.get(condition.name, "")):
                failed = json.dumps([condition.operator, f"${condition.name}", condition.value])
                raise AccessDenied(f"Invalid according to Policy: Policy Condition failed: {failed}")
        covered = {condition.name for condition in self.conditions} | _UNCOVERED
        extra = sorted(name for name in values.keys() - covered if not name.startswith("x-ignore-"))
        if extra:
            raise AccessDenied(f"Invalid according to Policy: Extra input fields: {', '.join(extra)}")


def parse_policy(encoded: str) -> FormPolicy:
    """Read a policy from its base64.

    Raises:
        InvalidPolicyDocument: the document is no policy.
    """
    document = _document(encoded)
    if document is None or document.keys() != {"expiration", "conditions"}:
        raise InvalidPolicyDocument("Invalid Policy: Invalid JSON: it must hold expiration and conditions.")
    conditions: list[Condition] = []
    sizes = SizeRange()
    if not isinstance(document["conditions"], list) or not document["conditions"]:
        raise InvalidPolicyDocument("Invalid Policy: Invalid 'conditions' value: must be a List.")
    for stated in document["conditions"]:
        match stated:
            case dict() if stated and all(isinstance(value, str) for value in stated.values()):
                conditions += [Condition("eq", name.lower(), value) for name, value in stated.items()]
            case [str(operator), str(name), str(value)] if operator.lower() in (
                "eq",
                "starts-with",
            ) and name.startswith("$"):
                conditions.append(Condition(operator.lower(), name[1:].lower(), value))
            case [str(operator), start, stop] if operator.lower() == "content-length-range":
                stated_sizes = SizeRange(_size(start), _size(stop))
                assert stated_sizes.stop is not None
                sizes = SizeRange(
                    max(sizes.start, stated_sizes.start),
                    min(stated_sizes.stop, stated_sizes.stop if sizes.stop is None else sizes.stop),
                )
            case _:
                raise InvalidPolicyDocument(f"Invalid Policy: Invalid Condition: {json.dumps(stated)[:200]}")
    return FormPolicy(_expiration(document["expiration"]), tuple(conditions), sizes)


def is_unsigned(form: PostForm) -> bool:
    """Whether the form has no policy and no part of a signature: it is anonymous."""
    return form.values.keys().isdisjoint(_SIGNING)


def signer_of(form: PostForm, *, secret_of: Callable[[str], str | None], keys: SigningKeys) -> str:
    """The access key that signed the policy of `form`, by Signature Version 4 or 2.

    Raises:
        AccessDenied: the form is not signed.
        InvalidAccessKeyId: `secret_of` does not know the key.
        InvalidArgument: a field of the signature is missing or malformed.
        SignatureDoesNotMatch: the policy was signed with another secret.
    """
    values = form.values
    v4, v2 = (any(name in values for name in names) for names in (_V4, _V2))
    if "policy" not in values and not v4 and not v2:
        raise AccessDenied("Anonymous access is not allowed here: sign the form's policy with a client key.")
    if v4 and v2:
        raise InvalidArgument("Only one auth mechanism allowed; sign the policy once.")
    for name in ("policy", *(_V4 if v4 else _V2)):
        if name not in values:
            raise missing_field(name)
    policy = values["policy"]
    if v2:
        access_key, claimed = values["awsaccesskeyid"], values["signature"]
        expected = b64encode(
            hmac.digest(raw_bytes(known_secret(secret_of, access_key)), raw_bytes(policy), "sha1")
        ).decode()
    else:
        claimed = values["x-amz-signature"]
        if values["x-amz-algorithm"] != ALGORITHM:
            raise InvalidArgument(f'X-Amz-Algorithm only supports "{ALGORITHM}".')
        if amz_date_seconds(values["x-amz-date"]) is None:
            raise InvalidArgument("X-Amz-Date must be in the ISO8601 form YYYYMMDDTHHMMSSZ.")
        scope = scope_of(values["x-amz-credential"], values["x-amz-date"], InvalidArgument)
        access_key = scope.access_key
        expected = _signature_v4(policy, known_secret(secret_of, access_key), scope.date, scope.region, keys)
    if not hmac.compare_digest(expected.encode(), raw_bytes(claimed)):
        raise SignatureDoesNotMatch
    return access_key


def signed_anew(
    form: PostForm, bucket: str, credentials: Credentials | None, region: str, now: float, keys: SigningKeys
) -> Fields:
    """The fields of `form`, signed with `credentials` for the origin. None: the fields of an anonymous form.

    The policy keeps its conditions, so that the origin checks them, too. A policy that cannot be read is signed
    unchanged, and the origin says why it is invalid. A form without a policy gets one that allows exactly these fields.
    """
    fields = tuple(
        (name, form.key if name.lower() == "key" else value)
        for name, value in form.fields
        if name.lower() not in _SIGNING
    )
    if credentials is None:
        return fields
    amz_date = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    signing = {
        "x-amz-algorithm": ALGORITHM,
        "x-amz-credential": f"{credentials.access_key}/{amz_date[:8]}/{region}/s3/aws4_request",
        "x-amz-date": amz_date,
    }
    if credentials.session_token is not None:
        signing["x-amz-security-token"] = credentials.session_token
    policy = _policy_with(form.values.get("policy"), {"bucket": bucket, **dict(fields)}, signing, now)
    signature = _signature_v4(policy, credentials.secret_key, amz_date[:8], region, keys)
    return (*fields, *signing.items(), ("policy", policy), ("x-amz-signature", signature))


def _policy_with(encoded: str | None, fields: Mapping[str, str], signing: Mapping[str, str], now: float) -> str:
    if encoded is None:
        until = datetime.fromtimestamp(now + _OWN_POLICY_S, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        document: dict[str, Any] | None = {"expiration": until, "conditions": [{n: v} for n, v in fields.items()]}
    else:
        document = _document(encoded)
    if document is None or not isinstance(document.get("conditions"), list):
        assert encoded is not None
        return encoded
    conditions = [rest for stated in document["conditions"] if (rest := _without_signing(stated)) is not None]
    conditions += [{name: value} for name, value in signing.items()]
    return b64encode(json.dumps({**document, "conditions": conditions}).encode()).decode()


def _without_signing(stated: Any) -> Any | None:
    match stated:
        case dict() if stated:
            return {name: value for name, value in stated.items() if name.lower() not in _SIGNING} or None
        case [_, str(name), _] if name[:1] == "$" and name[1:].lower() in _SIGNING:
            return None
    return stated


def _document(encoded: str) -> dict[str, Any] | None:
    try:
        document = json.loads(b64decode(raw_bytes(encoded), validate=True))
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _expiration(stated: Any) -> float:
    match = _EXPIRATION.fullmatch(stated) if isinstance(stated, str) else None
    try:
        if match is not None:
            return datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp()
    except ValueError:
        pass
    raise InvalidPolicyDocument("Invalid Policy: Invalid 'expiration' value: must be like 2030-12-31T12:00:00.000Z.")


def _size(stated: Any) -> int:
    if (isinstance(stated, int) and not isinstance(stated, bool)) or isinstance(stated, str):
        text = str(stated)
        if _SIZE.fullmatch(text):
            return int(text)
    raise InvalidPolicyDocument("Invalid Policy: Invalid content-length-range: it takes two numbers of bytes.")


def _signature_v4(policy: str, secret_key: str, date: str, region: str, keys: SigningKeys) -> str:
    return hmac.digest(keys.get(secret_key, date, region), raw_bytes(policy), "sha256").hex()
