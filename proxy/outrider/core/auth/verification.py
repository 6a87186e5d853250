"""Verifies the signatures of clients: Signature Version 4 in the Authorization header or in a presigned URL, and
Version 2 in a URL.

Source: Amazon S3 API Reference, "Authenticating Requests (AWS Signature Version 4)".
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from outrider.core.auth import sigv2
from outrider.core.auth.sigv4 import ALGORITHM, SigningKeys, canonical_headers, known_secret, signature_of
from outrider.core.errors import (
    AccessDenied,
    AuthorizationHeaderMalformed,
    AuthorizationQueryParametersError,
    InvalidArgument,
    InvalidRequest,
    RequestTimeTooSkewed,
    S3Error,
    SignatureDoesNotMatch,
)
from outrider.core.s3.body_integrity import PayloadForm, PayloadRule, payload_of
from outrider.core.s3.encoding import (
    STORE_HEADERS,
    amz_date_of,
    amz_date_seconds,
    canonical_values,
    encode_query,
    parse_query,
    raw_bytes,
    reencode_path,
)
from outrider.core.s3.operation import SIGNATURE_QUERY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EXPIRES_MAX_S = 604_800  # seven days: the presigned limit of S3

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^,\s]+) ?, ?SignedHeaders=([^,\s]+) ?, ?Signature=([^,\s]+)"
)
_EXPIRES = re.compile(r"-?[0-9]+", re.ASCII)
# Python takes quadratic time for a number of many digits.
_EXPIRES_DIGITS_MAX = 20

_QUERY_FORM = frozenset(("x-amz-algorithm", "x-amz-credential", "x-amz-signature"))
_QUERY_NEEDED = ("x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires", "x-amz-signedheaders")

# The proxy may stand behind one that ends TLS, so it does not know the scheme that its clients use.
_DEFAULT_PORTS = ("80", "443")

# Headers that only a signed request has.
_SIGNING_HEADERS = frozenset(("authorization", "x-amz-security-token"))


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request as it came on the wire. `raw_path` ends before the `?`. Duplicate headers are kept, in order.

    Header names are in lower case. Bytes that are no UTF-8 are kept as surrogate escapes.
    """

    method: str
    raw_path: str
    raw_query: str
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """The signer of a request, and the inputs for checking the signatures of its chunks.

    A SigV2 URL has no signing key, scope and date (all are empty), and its body never has signed chunks.
    """

    access_key: str
    payload: PayloadRule
    seed_signature: str
    signing_key: bytes = field(repr=False)
    scope: str
    amz_date: str
    until: float = 0.0
    """The last moment at which a presigned URL is valid, in seconds since 1970. 0: verify each request."""


class CredentialScope(NamedTuple):
    """The access key, and the scope of its signing key. `text`: the Credential without the access key."""

    access_key: str
    date: str
    region: str
    text: str
    service: str = "s3"


class _Claim(NamedTuple):
    """A SigV4 signature from the Authorization header or from the query. `query`: the pairs that it covers."""

    scope: CredentialScope
    amz_date: str
    signed_headers: str
    payload_hash: str
    query: list[tuple[str, str]]
    signature: str
    until: float = 0.0


def verify(
    request: SignedRequest,
    *,
    secret_of: Callable[[str], str | None],
    now: float,
    keys: SigningKeys,
    skew_s: float = 900,
    bucket_of_host: str | None = None,
    covered: tuple[str, ...] = STORE_HEADERS,
    service: str = "s3",
) -> Identity | None:
    """The signer of `request`, once its signature was verified; None: the request carries no signature.

    The signature then covers every x-amz-* header, and every header of another store: a forwarded header that the
    client did not sign would be signed by the proxy. It covers every query parameter, too, but for the parameters of a
    LIST in a SigV2 URL. The body is not checked here, see `Identity.payload`. `secret_of` returns None for an unknown
    key. `bucket_of_host` is the bucket of a virtual-host style request, which SigV2 signs as part of the path.
    `covered`: the beginnings of the names of headers that must be signed. `service` of the scope.

    Raises:
        S3Error: one of AccessDenied, AuthorizationHeaderMalformed, AuthorizationQueryParametersError,
            InvalidAccessKeyId, InvalidArgument, InvalidRequest, RequestTimeTooSkewed, SignatureDoesNotMatch.
    """
    try:
        headers = canonical_values(request.headers)
        query = parse_query(request.raw_query) if request.raw_query else []
        v4 = any(name.lower() in _QUERY_FORM for name, _ in query)
        v2 = any(name in sigv2.QUERY_FORM for name, _ in query)
        authorization = headers.get("authorization")
        if (authorization is not None) + v4 + v2 > 1:
            raise InvalidArgument("Only one auth mechanism allowed; use the Authorization header or the query, once.")
        if v2:
            return _verify_v2(request, headers, query, secret_of, now, bucket_of_host)
        if v4:
            return _check(request, headers, _presigned(headers, query, now, skew_s), secret_of, keys, covered)
        if authorization is None:
            return None
        claim = _header_form(headers, authorization, query, now, skew_s, service)
        return _check(request, headers, claim, secret_of, keys, covered)
    except UnicodeEncodeError as error:
        raise InvalidRequest("The request holds characters that no UTF-8 can hold.") from error


def is_half_signed(request: SignedRequest) -> bool:
    """Whether a request in which `verify` finds no signature has a part of one: a signature that lost its other parts
    must not turn into an anonymous request."""
    return any(name in _SIGNING_HEADERS for name, _ in request.headers) or any(
        name.lower() in SIGNATURE_QUERY - {"expires"} for name, _ in parse_query(request.raw_query)
    )


def _header_form(
    headers: Mapping[str, str], authorization: str, query: list[tuple[str, str]], now: float, skew_s: float,
    service: str,
) -> _Claim:  # fmt: skip
    match = _AUTHORIZATION.fullmatch(authorization)
    if match is None:
        raise _not_sigv4(authorization)
    amz_date, sent_at = _date_of_headers(headers)
    scope = scope_of(match[1], amz_date, AuthorizationHeaderMalformed, service)
    payload_hash = headers.get("x-amz-content-sha256")
    if payload_hash is None:
        raise InvalidRequest("Missing required header for this request: x-amz-content-sha256")
    if abs(now - sent_at) > skew_s:
        raise RequestTimeTooSkewed
    return _Claim(scope, amz_date, match[2], payload_hash, query, match[3])


def _presigned(headers: Mapping[str, str], query: list[tuple[str, str]], now: float, skew_s: float) -> _Claim:
    given: dict[str, str] = {}
    for name, value in query:
        lower = name.lower()
        if lower.startswith("x-amz-"):
            if lower in given:
                raise AuthorizationQueryParametersError(f"{name} must be given once.")
            given[lower] = value
    signature = given.get("x-amz-signature")
    if signature is None or any(name not in given for name in _QUERY_NEEDED):
        raise AuthorizationQueryParametersError(
            "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, "
            "X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters."
        )
    if given["x-amz-algorithm"] != ALGORITHM:
        raise AuthorizationQueryParametersError(f'X-Amz-Algorithm only supports "{ALGORITHM}".')
    amz_date = given["x-amz-date"]
    sent_at = amz_date_seconds(amz_date)
    if sent_at is None:
        raise AuthorizationQueryParametersError("X-Amz-Date must be in the ISO8601 form YYYYMMDDTHHMMSSZ.")
    scope = scope_of(given["x-amz-credential"], amz_date, AuthorizationQueryParametersError)
    _check_expiry(given["x-amz-expires"], sent_at, now, skew_s)
    payload_hash = given.get("x-amz-content-sha256", headers.get("x-amz-content-sha256", PayloadForm.UNSIGNED.value))
    covered = [pair for pair in query if pair[0].lower() != "x-amz-signature"]
    until = sent_at + int(given["x-amz-expires"])
    return _Claim(scope, amz_date, given["x-amz-signedheaders"], payload_hash, covered, signature, until)


def _check(
    request: SignedRequest,
    headers: Mapping[str, str],
    claim: _Claim,
    secret_of: Callable[[str], str | None],
    keys: SigningKeys,
    covered: tuple[str, ...],
) -> Identity:
    scope = claim.scope
    secret_key = known_secret(secret_of, scope.access_key)
    names = claim.signed_headers.split(";")
    _check_coverage(headers, names, claim.payload_hash, covered)
    payload = payload_of(claim.payload_hash)
    key = keys.get(secret_key, scope.date, scope.region, scope.service)
    prefix = f"{ALGORITHM}\n{claim.amz_date}\n{scope.text}\n"
    query = encode_query(claim.query)
    tail = canonical_headers(headers, names, claim.payload_hash)
    claimed = raw_bytes(claim.signature)
    # Most clients sign the path as they send it, so the encoding that S3 prescribes is tried second.
    for spelling in (str, reencode_path):
        expected = signature_of(key, prefix, f"{request.method}\n{spelling(request.raw_path) or '/'}\n{query}\n", tail)
        if hmac.compare_digest(expected.encode(), claimed):
            return Identity(scope.access_key, payload, expected, key, scope.text, claim.amz_date, claim.until)
    # SDKs sign the Host without a port that is its scheme's default. Go's HTTP client sends the port that stands in a
    # presigned URL.
    host, colon, port = headers["host"].rpartition(":")
    if colon and port in _DEFAULT_PORTS and (":" not in host or host.endswith("]")):
        return _check(request, {**headers, "host": host}, claim, secret_of, keys, covered)
    raise SignatureDoesNotMatch


def _check_coverage(headers: Mapping[str, str], names: list[str], payload_hash: str, covered: tuple[str, ...]) -> None:
    if "host" not in names:
        raise AccessDenied("The host header must be signed.")
    for name, value in headers.items():
        if name.startswith(covered) and name not in names:
            # A presigned URL states nothing about the body. Some libraries add this header unsigned; with this value
            # it states nothing, either.
            if name == "x-amz-content-sha256" and value == payload_hash == PayloadForm.UNSIGNED.value:
                continue
            raise AccessDenied(f"There were headers present in the request which were not signed: {name}")
    if headers.get("x-amz-content-sha256", payload_hash) != payload_hash:
        raise InvalidArgument("X-Amz-Content-Sha256 in the query and in the headers do not agree.")
    if not headers.keys() >= set(names):
        raise SignatureDoesNotMatch("A header that SignedHeaders names did not arrive.")


def _verify_v2(
    request: SignedRequest,
    headers: Mapping[str, str],
    query: list[tuple[str, str]],
    secret_of: Callable[[str], str | None],
    now: float,
    bucket_of_host: str | None,
) -> Identity:
    payload = payload_of(headers.get("x-amz-content-sha256", PayloadForm.UNSIGNED.value))
    if payload.chunks_signed:
        raise InvalidRequest("A Signature Version 2 URL cannot carry signed chunks; use AWS4-HMAC-SHA256.")
    access_key, signature = sigv2.verify_url(
        method=request.method,
        paths=(request.raw_path or "/", reencode_path(request.raw_path)),
        query=query,
        headers=request.headers,
        secret_of=secret_of,
        now=now,
        bucket_of_host=bucket_of_host,
    )
    return Identity(access_key, payload, signature, b"", "", "")


def _not_sigv4(authorization: str) -> S3Error:
    kind = authorization.partition(" ")[0]
    if kind == ALGORITHM:
        return AuthorizationHeaderMalformed()
    if kind == "AWS" or kind.startswith("AWS4-"):
        return InvalidRequest(
            f"The authorization mechanism you have provided is not supported. Please use {ALGORITHM}."
        )
    return InvalidArgument("Unsupported Authorization Type.")


def scope_of(credential: str, amz_date: str, error: type[S3Error], wanted: str = "s3") -> CredentialScope:
    """The parts of a Credential. Raises `error`: it is malformed, or of another day than `amz_date`."""
    # Split from the right: an access key may hold a slash, a scope cannot.
    parts = credential.rsplit("/", 4)
    if len(parts) != 5 or not parts[0] or not parts[2]:
        raise error(f"The Credential must be <access-key>/<YYYYMMDD>/<region>/{wanted}/aws4_request.")
    access_key, date, region, service, end = parts
    if service != wanted or end != "aws4_request":
        raise error(f"The Credential is for another service; it must end in {wanted}/aws4_request.")
    if date != amz_date[:8]:
        raise error("The date of the Credential is not the date of the request.")
    return CredentialScope(access_key, date, region, credential[len(access_key) + 1 :], service)


def _check_expiry(expires: str, sent_at: float, now: float, skew_s: float) -> None:
    """Refuse in AWS's words. An expiry of 0 or less is over when it begins, which Ceph answers so, too."""
    if _EXPIRES.fullmatch(expires) is None:
        raise AuthorizationQueryParametersError("X-Amz-Expires should be a number")
    if expires.startswith("-") or not expires.strip("0"):
        raise AccessDenied("Request has expired")
    if len(expires) > _EXPIRES_DIGITS_MAX or int(expires) > EXPIRES_MAX_S:
        raise AuthorizationQueryParametersError(
            "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than "
            f"{EXPIRES_MAX_S} seconds"
        )
    if now > sent_at + int(expires):
        raise AccessDenied("Request has expired")
    if sent_at > now + skew_s:
        raise AccessDenied("Request is not valid yet")


def _date_of_headers(headers: Mapping[str, str]) -> tuple[str, float]:
    amz_date = headers.get("x-amz-date")
    if amz_date is None:
        amz_date = amz_date_of(headers.get("date", ""))
    sent_at = amz_date_seconds(amz_date)
    if sent_at is None:
        raise AccessDenied("AWS authentication requires a valid Date or x-amz-date header")
    return amz_date, sent_at
