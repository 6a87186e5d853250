"""Stolen signed requests: a signature caught on the wire is good for its own request alone, in all forms of signing.

The S3 API's own examples of signatures are in `tests/support/signed_requests.py` with their source, and checked in
`tests/unit/auth/test_sigv4.py`.
"""

from __future__ import annotations

import ast
import re
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

import outrider
from tests.support.proxy import Proxy
from tests.support.rawhttp import Answer, RawConnection
from tests.support.signed_requests import (
    SIGNED,
    SIGNED_TRAILER,
    UNSIGNED_TRAILER,
    Chunked,
    checksum,
    chunk_signing,
    signed_head,
)
from tests.support.tenants import CLIENTS, NAME, NOBODY, OTHER, TEAM, answer_to, wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket
    from tests.support.trials import Trials

BODY = b"0123456789" * 20


@pytest.fixture(scope="module")
def proxy(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    bucket.make_bucket(NAME)
    client = bucket.client()
    for key in ("team/a", "team/b", "other/a"):
        client.put_object(Bucket=NAME, Key=key, Body=BODY)
    client.close()
    clients = tmp_path_factory.mktemp("signatures") / "clients.toml"
    clients.write_text(CLIENTS)
    with Proxy(bucket, auth="sigv4", clients=clients, freshness="immutable", client_timeout_s=1.0) as running:
        for key in ("team/a", "team/b"):
            assert answer_to(running, wire(running, TEAM, "GET", f"/{NAME}/{key}")).body == BODY
        running.settle()
        yield running


GOOD = f"/{NAME}/team/a"
TODAY = "today"
"""Stands for the date that the signature names: read when it was made, since a run may see two days."""
STOLEN = {
    "another key": (f"GET {GOOD}", f"GET /{NAME}/team/b"),
    "another spelling of another key": (f"GET {GOOD}", f"GET /{NAME}/team/%62"),
    "another method": (f"GET {GOOD}", f"DELETE {GOOD}"),
    "HEAD for GET": (f"GET {GOOD}", f"HEAD {GOOD}"),
    "another host": ("host: 127.0.0.1", "host: 127.0.0.2"),
    "a subresource more": (f"GET {GOOD} ", f"GET {GOOD}?acl "),
    "a version": (f"GET {GOOD} ", f"GET {GOOD}?versionId=null "),
    "another range": ("range: bytes=0-9", "range: bytes=0-99"),
    "no range": ("range: bytes=0-9\r\n", ""),
    "a second range": ("range: bytes=0-9\r\n", "range: bytes=0-9\r\nrange: bytes=0-99\r\n"),
    "another access key": (f"Credential={TEAM[0]}", f"Credential={OTHER[0]}"),
    "another region": ("/us-east-1/s3/", "/us-east-2/s3/"),
    "another service": ("/s3/aws4_request", "/sts/aws4_request"),
    "another day": (TODAY, "/20200101/"),
    "another time": ("x-amz-date: 20", "x-amz-date: 19"),
    "another payload": ("x-amz-content-sha256: e3", "x-amz-content-sha256: e4"),
    "an unsigned payload": (sha256(b"").hexdigest(), "UNSIGNED-PAYLOAD"),
    "a header less under the signature": ("range;", ""),
    "no host under the signature": ("SignedHeaders=host;", "SignedHeaders="),
    "an x-amz header more": ("\r\n\r\n", "\r\nx-amz-request-payer: requester\r\n\r\n"),
    "a session token more": ("\r\n\r\n", "\r\nx-amz-security-token: t\r\n\r\n"),
    "a second Authorization": ("\r\n\r\n", "\r\nauthorization: AWS4-HMAC-SHA256 x\r\n\r\n"),
    "a signature in the query as well": (f"GET {GOOD} ", f"GET {GOOD}?X-Amz-Signature=a "),
    "a SigV2 signature as well": (f"GET {GOOD} ", f"GET {GOOD}?AWSAccessKeyId=a&Signature=b&Expires=9999999999 "),
    "a signature cut short": ("Signature=", "Signature=\r\nx: "),
    "a signature in capitals": ("Signature=", "Signature=A"),
    "an older algorithm": ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1"),
}


@pytest.mark.parametrize("case", STOLEN)
def test_a_signature_is_good_for_its_own_request_alone(proxy: Proxy, case: str, trials: Trials) -> None:
    honest = wire(proxy, TEAM, "GET", GOOD, [("range", "bytes=0-9")]).decode()
    assert answer_to(proxy, honest.encode()).body == BODY[:10]
    old, new = STOLEN[case]
    if old == TODAY:
        old = re.findall(r"/[0-9]{8}/", honest)[0]
    if old == "Signature=" and new.endswith("A"):
        stolen = re.sub(
            r"Signature=[0-9a-f]+", lambda found: found[0].upper().replace("SIGNATURE", "Signature"), honest
        )
    else:
        assert old in honest
        stolen = honest.replace(old, new, 1)
    answer = answer_to(proxy, stolen.encode())
    assert answer.status in (400, 403), (case, answer)
    assert BODY[:10] not in answer.body
    trials.record("security", "a signed request, changed by a thief", "a refusal")


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_a_presigned_url_is_good_for_its_own_request_alone(proxy: Proxy, version: str, trials: Trials) -> None:
    url = urlsplit(
        proxy.client(TEAM, signature_version=version).generate_presigned_url(
            "get_object", Params={"Bucket": NAME, "Key": "team/a"}, ExpiresIn=60
        )
    )
    good = f"{url.path}?{url.query}"

    def get(target: str, method: str = "GET", extra: str = "") -> Answer:
        return answer_to(proxy, f"{method} {target} HTTP/1.1\r\nhost: {proxy.outrider.listen}\r\n{extra}\r\n".encode())

    assert get(good).body == BODY
    assert get(good, extra="range: bytes=0-4\r\n").body == BODY[:5], "S3 leaves the range of a URL open"
    expires = "X-Amz-Expires=60" if version == "s3v4" else "Expires="
    changed = [
        (good.replace("team/a", "team/b"), "GET", ""),
        (good, "PUT", "content-length: 0\r\n"),
        (good, "DELETE", ""),
        (good + "&acl", "GET", ""),
        (good + "&versionId=x", "GET", ""),
        (good + "&response-content-type=text/html", "GET", ""),
        (good.replace(expires, expires + "9"), "GET", ""),
        (good + "&uploads", "POST", "content-length: 0\r\n"),
        (good, "GET", "x-amz-copy-source: b/k\r\n"),
        (good, "GET", "x-amz-content-sha256: " + "0" * 64 + "\r\n"),
        (good.replace(TEAM[0], OTHER[0]), "GET", ""),
        (good + "&" + expires + "1", "GET", ""),
        (good, "GET", "authorization: AWS4-HMAC-SHA256 x\r\n"),
        (good.lower(), "GET", ""),
    ]
    for target, method, extra in changed:
        answer = get(target, method, extra)
        assert answer.status in (400, 403), (target, method, extra, answer)
        trials.record("security", "a presigned URL, changed by its holder", "a refusal")


BODIES: dict[str, tuple[str, bytes]] = {
    "none, where a hash was signed": (sha256(b"body").hexdigest(), b""),
    "another, where a hash was signed": (sha256(b"body").hexdigest(), b"BODY"),
    "a part, where a hash was signed": (sha256(b"body").hexdigest(), b"bod"),
    "none, where signed chunks were announced": (SIGNED, b""),
    "none, where signed chunks and a trailer were announced": (SIGNED_TRAILER, b""),
    "none, where chunks with a trailer were announced": (UNSIGNED_TRAILER, b""),
}


@pytest.mark.parametrize("case", BODIES)
def test_a_body_that_was_not_signed_is_refused(proxy: Proxy, bucket: Bucket, case: str, trials: Trials) -> None:
    """A head that is sent again without its body must not replace the object by an empty one."""
    direct = bucket.client()
    direct.put_object(Bucket=NAME, Key="team/body", Body=b"precious")
    payload, body = BODIES[case]
    announced = [("x-amz-decoded-content-length", "4")] if payload.startswith("STREAMING") else []
    for length in ("content-length: 0\r\n", "") if not body else ("",):
        data = wire(proxy, TEAM, "PUT", f"/{NAME}/team/body", announced, body, payload=payload)
        answer = answer_to(proxy, data.replace(b"\r\n\r\n", f"\r\n{length}\r\n".encode(), 1))
        assert answer.status in (400, 403, 411), answer
        assert direct.get_object(Bucket=NAME, Key="team/body")["Body"].read() == b"precious"
        trials.record("security", "an upload whose body is not the signed one", "a refusal, nothing stored")
    direct.close()


@pytest.mark.parametrize(
    "how",
    [
        "as signed",
        "chunks change places",
        "a chunk of another upload",
        "another trailer",
        "no end",
        "an unsigned trailer",
        "more after the end",
        "another key's chunks",
    ],
)
def test_signed_chunks_of_another_request_are_refused(proxy: Proxy, bucket: Bucket, how: str, trials: Trials) -> None:
    target = f"/{NAME}/team/chunks"
    upload = Chunked(BODY, SIGNED_TRAILER, ("x-amz-checksum-crc32", checksum("crc32", BODY)), chunk_bytes=64)
    head = signed_head("PUT", proxy.endpoint, target, TEAM, upload.headers(), upload.form)
    body = upload.encode(chunk_signing(head, OTHER[1] if how == "another key's chunks" else TEAM[1]))
    pieces = [len(b"40;chunk-signature=\r\n\r\n") + 64 + 64] * 2
    first, second = body[: pieces[0]], body[pieces[0] : sum(pieces)]
    if how == "chunks change places":
        body = second + first + body[sum(pieces) :]
    elif how == "a chunk of another upload":
        elsewhere = signed_head("PUT", proxy.endpoint, f"/{NAME}/team/b", TEAM, upload.headers(), upload.form)
        body = upload.encode(chunk_signing(elsewhere, TEAM[1]))[: pieces[0]] + body[pieces[0] :]
    elif how == "another trailer":
        body = body.replace(checksum("crc32", BODY).encode(), checksum("crc32", b"another").encode())
    elif how == "no end":
        body = body[:-4]
    elif how == "an unsigned trailer":
        body = re.sub(rb"x-amz-trailer-signature:[0-9a-f]+\r\n", b"", body)
    elif how == "more after the end":
        body += b"5\r\nabcde\r\n"
    lines = "".join(f"{name}: {value}\r\n" for name, value in [*head, ("content-length", str(len(body)))])
    answer = answer_to(proxy, f"PUT {target} HTTP/1.1\r\n{lines}\r\n".encode() + body)
    direct = bucket.client()
    stored = direct.list_objects_v2(Bucket=NAME, Prefix="team/chunks").get("KeyCount")
    if how == "as signed":
        assert (answer.status, stored) == (200, 1)
        direct.delete_object(Bucket=NAME, Key="team/chunks")
    else:
        assert answer.status in (400, 403), (how, answer)
        assert stored == 0
        trials.record("security", "a body of signed chunks that are not its own", "a refusal, nothing stored")
    direct.close()


def test_a_client_with_a_key_and_no_grant_may_read_nothing(proxy: Proxy) -> None:
    for target in (GOOD, f"/{NAME}", "/", f"/{NAME}?location", f"/{NAME}/", f"/{NAME}/nothing"):
        assert answer_to(proxy, wire(proxy, NOBODY, "GET", target)).code == "AccessDenied", target


# -- constant time ----------------------------------------------------------------------------------------------------

_SECRET_WORDS = re.compile(r"signature|expected|claimed|digest|token|secret|\bmac\b|signing_key")
# This function compares only public values: names, forms and the hash that the caller states.
_PUBLIC = {"_check_coverage"}


def _comparisons(tree: ast.AST) -> Iterator[tuple[str, ast.Compare]]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
                    yield function.name, node


def _suspects(source: str) -> list[str]:
    found = []
    for name, node in _comparisons(ast.parse(source)):
        sides = [side for side in (node.left, *node.comparators) if not isinstance(side, ast.Constant)]
        names = {
            part.id if isinstance(part, ast.Name) else part.attr
            for side in sides
            for part in ast.walk(side)
            if isinstance(part, ast.Name | ast.Attribute)
        }
        if len(sides) > 1 and name not in _PUBLIC and any(_SECRET_WORDS.search(word) for word in names):
            found.append(f"{name}: {ast.unparse(node)}")
    return found


KEYED = [
    "core/auth/verification.py",
    "core/auth/sigv2.py",
    "core/s3/aws_chunked.py",
    "core/auth/form_policy.py",
    "core/auth/peer_signature.py",
    "engine/write/upload.py",
    "http/admin/server.py",
    "http/access.py",
    "core/auth/sigv4.py",
]


def test_secrets_are_compared_in_constant_time() -> None:
    home = Path(outrider.__file__).parent
    compared: dict[str, Any] = {name: (home / name).read_text() for name in KEYED}
    assert {name: found for name, text in compared.items() if (found := _suspects(text))} == {}
    for name in KEYED[:-2]:
        assert "hmac.compare_digest(" in compared[name], name
    # No other module makes or compares a keyed hash.
    others = {str(path.relative_to(home)) for path in home.rglob("*.py") if re.search(r"\bhmac\b", path.read_text())}
    assert others <= set(KEYED)


def test_the_search_for_comparisons_finds_one() -> None:
    assert _suspects("def check(a, expected):\n    return a == expected")
    assert not _suspects("def check(a, b):\n    return a == b or token == 'x'")


def test_each_request_of_a_connection_is_authenticated_by_itself(proxy: Proxy) -> None:
    """A client that signed one request of a connection has not signed the next one."""
    with RawConnection(proxy.address) as connection:
        for keys, status in ((TEAM, 200), (OTHER, 403), (TEAM, 200), (NOBODY, 403)):
            connection.send(wire(proxy, keys, "GET", GOOD))
            assert connection.read_answer().status == status
