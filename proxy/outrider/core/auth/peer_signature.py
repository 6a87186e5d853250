"""Signatures between members: Signature Version 4 with the key of the cluster, for a service of its own.

A signature covers each header that says what is asked, and the body's hash. It cannot be a presigned URL, and a
client's signature for S3 is no signature here. The answer has a proof that its sender knows the same key: whoever got
the address of a member says nothing that is believed.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from outrider.core.auth.sigv4 import Credentials, SigningKeys, sign_headers
from outrider.core.auth.verification import SignedRequest, verify
from outrider.core.errors import InvalidAccessKeyId, RequestTimeTooSkewed, S3Error
from outrider.core.s3.encoding import raw_bytes

SKEW_S = 300.0
"""A request is refused whose time differs by more."""

_SERVICE, _REGION = "outrider", "cluster"
_COVERED = ("x-outrider-", "x-amz-", "range")
PROOF = "x-outrider-proof"
_PROVED = ("x-outrider-", "content-range")


class NotAMember(Exception):
    """`why`: a metric's label: unsigned, clock, key, or signature."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def key_name(secret: str) -> str:
    """The name under which a signature shows its key: nobody finds the key by it."""
    return sha256(b"outrider peer key\n" + raw_bytes(secret)).hexdigest()[:20]


def signed(
    method: str, host: str, path: str, headers: Mapping[str, str], body_hash: str, secret: str, now: float,
    keys: SigningKeys,
) -> dict[str, str]:  # fmt: skip
    """`headers` with those of a signature. `path` is encoded; `body_hash`: SHA-256 in hex."""
    signature = sign_headers(
        method=method, host=host, path=path, query=(), headers=headers, payload_hash=body_hash,
        credentials=Credentials(key_name(secret), secret), region=_REGION, now=now, keys=keys, service=_SERVICE,
    )  # fmt: skip
    return {**headers, **signature, "host": host}


def verify_member(request: SignedRequest, secrets: Sequence[str], now: float, keys: SigningKeys) -> str:
    """The hash that the body must have, in hex, once one of `secrets` was found to have signed the request.

    Raises NotAMember.
    """
    if request.raw_query:
        raise NotAMember("signature")
    by_name = {key_name(secret): secret for secret in secrets}
    try:
        identity = verify(
            request, secret_of=by_name.get, now=now, keys=keys, skew_s=SKEW_S, covered=_COVERED, service=_SERVICE
        )
    except RequestTimeTooSkewed as error:
        raise NotAMember("clock") from error
    except InvalidAccessKeyId as error:
        raise NotAMember("key") from error
    except S3Error as error:
        raise NotAMember("signature") from error
    if identity is None:
        raise NotAMember("unsigned")
    if identity.payload.sha256 is None:
        raise NotAMember("signature")
    return identity.payload.sha256


def proof_of(
    authorization: str, secrets: Sequence[str], status: int, headers: Iterable[tuple[str, str]], body: bytes = b""
) -> str:
    """The proof of an answer, in hex, by the key that signed the request with this `authorization` header. It covers
    each header that says what is answered; names are in lower case. `body`: of a control message. Empty: the request
    was signed by none of `secrets`."""
    secret = next((each for each in secrets if f"Credential={key_name(each)}/" in authorization), None)
    if secret is None:
        return ""
    covered = sorted(f"{name}:{value}" for name, value in headers if name.startswith(_PROVED) and name != PROOF)
    answer = "\n".join(["outrider answer", authorization, str(status), *covered, sha256(body).hexdigest()])
    return hmac.digest(raw_bytes(secret), raw_bytes(answer), "sha256").hex()


def is_proved(
    authorization: str, secrets: Sequence[str], status: int, headers: Sequence[tuple[str, str]], body: bytes = b""
) -> bool:
    """Whether the answer has its proof; see `proof_of`."""
    stated = next((value for name, value in headers if name == PROOF), "")
    proof = proof_of(authorization, secrets, status, headers, body)
    return bool(proof) and hmac.compare_digest(raw_bytes(stated), raw_bytes(proof))
