"""Hand-made browser form uploads: policies signed by botocore, forms as a browser encodes them, and malformed ones."""

from __future__ import annotations

import hmac
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from botocore.auth import HmacV1PostAuth, S3SigV4PostAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.support.bucket import REGION
from tests.support.rawhttp import Answer, ask

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BOUNDARY = "----WebKitFormBoundary7MA4YWxkTrZu0gW"
LATER = "2099-12-31T12:00:00.000Z"
Fields = dict[str, str]


def policy(conditions: Sequence[Any], expiration: str | None = LATER) -> dict[str, Any]:
    return {"conditions": list(conditions)} if expiration is None else {
        "expiration": expiration, "conditions": list(conditions)
    }  # fmt: skip


def signed(fields: Fields, document: dict[str, Any], keys: tuple[str, str], version: str = "s3v4") -> Fields:
    """`fields` with those of a signature by botocore. `document` may lack conditions; botocore adds its own."""
    request = AWSRequest("POST", "http://unused")
    request.context["s3-presign-post-fields"] = made = dict(fields)
    if "conditions" in document and isinstance(document["conditions"], list):
        request.context["s3-presign-post-policy"] = document
    auth = (
        S3SigV4PostAuth(Credentials(*keys), "s3", REGION) if version == "s3v4" else HmacV1PostAuth(Credentials(*keys))
    )
    auth.add_auth(request)
    return made


def signed_as_it_stands(fields: Fields, text: str, keys: tuple[str, str]) -> Fields:
    """A Signature Version 2 over any text in the place of a policy."""
    encoded = b64encode(text.encode()).decode()
    signature = b64encode(hmac.digest(keys[1].encode(), encoded.encode(), "sha1")).decode()
    return {**fields, "AWSAccessKeyId": keys[0], "policy": encoded, "signature": signature}


def encoded(
    fields: Iterable[tuple[str, str]], file: bytes, filename: str | None = "f.bin",
    after: Iterable[tuple[str, str]] = (), file_type: str | None = None,
) -> bytes:  # fmt: skip
    def part(name: str, value: str) -> bytes:
        return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()

    named = "" if filename is None else f'; filename="{filename}"'
    kind = "" if file_type is None else f"Content-Type: {file_type}\r\n"
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"{named}\r\n{kind}\r\n'.encode()
    parts = [*(part(*pair) for pair in fields), head, file, b"\r\n", *(part(*pair) for pair in after)]
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def post(
    address: tuple[str, int],
    bucket: str,
    body: bytes,
    headers: Iterable[tuple[str, str]] = (),
    boundary: str = BOUNDARY,
) -> Answer:
    head = [("content-type", f"multipart/form-data; boundary={boundary}"), ("content-length", str(len(body))), *headers]
    return ask(address, "POST", f"/{bucket}", head, body)
