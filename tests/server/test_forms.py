"""Browser form uploads (POST policy) to a real bucket: the bucket's own results, and never past a grant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support import forms
from tests.support.forms import BOUNDARY, encoded, policy, post, signed
from tests.support.proxy import Keys, Proxy
from tests.support.rawhttp import RawConnection, ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket
    from tests.support.rawhttp import Answer

NAME, OTHER = "forms", "forms-other"
WRITER: Keys = ("FORMWRITER", "form-writer/secret")
READER: Keys = ("FORMREADER", "form-reader+secret")
MIB = 1024 * 1024
CONDITIONS: list[Any] = [{"bucket": NAME}, ["starts-with", "$key", ""]]


@pytest.fixture(scope="module", autouse=True)
def home(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    bucket.make_bucket(OTHER)


@pytest.fixture
def direct(bucket: Bucket) -> Iterator[Any]:
    client = bucket.client()
    yield client
    client.close()


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    with Proxy(bucket, freshness="immutable") as running:
        yield running


@pytest.fixture(scope="module")
def strict(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    clients = tmp_path_factory.mktemp("forms") / "clients.toml"
    clients.write_text(
        f'[[client]]\naccess_key = "{WRITER[0]}"\nsecret_key = "{WRITER[1]}"\n'
        f'grants = [{{bucket = "{NAME}", prefix = "up/", access = "write"}}]\n'
        f'[[client]]\naccess_key = "{READER[0]}"\nsecret_key = "{READER[1]}"\n'
        f'grants = [{{bucket = "{NAME}", access = "read"}}]\n'
    )
    with Proxy(bucket, auth="sigv4", clients=clients, freshness="immutable") as running:
        yield running


def send(
    proxy: Proxy, fields: dict[str, str], file: bytes, conditions: list[Any] | None = None, keys: Keys = WRITER,
    name: str = NAME, **more: Any,
) -> Answer:  # fmt: skip
    made = signed(fields, policy(CONDITIONS if conditions is None else conditions), keys)
    return post(proxy.address, name, encoded(made.items(), file, **more))


def keys_of(direct: Any, prefix: str = "") -> list[str]:
    listed = direct.list_objects_v2(Bucket=NAME, Prefix=prefix).get("Contents", [])
    return [str(entry["Key"]) for entry in listed]


@pytest.mark.parametrize("mode", ["proxy", "strict"])
def test_a_form_that_boto3_presigns_is_stored_and_read_as_new(
    request: pytest.FixtureRequest, direct: Any, mode: str
) -> None:
    running: Proxy = request.getfixturevalue(mode)
    keys: Keys = WRITER if mode == "strict" else ("any", "body")
    reader = running.client(keys)
    for version, files in (
        ("s3", [b"one"]),
        ("s3v4", [b"", b"--", b"x" * 3 * MIB, f"a\r\n--{BOUNDARY[:-1]}".encode()]),
    ):
        made = running.client(keys, signature_version=version).generate_presigned_post(
            NAME, "up/${filename}", Fields={"Content-Type": "text/x", "x-amz-meta-note": "kept"},
            Conditions=[{"Content-Type": "text/x"}, {"x-amz-meta-note": "kept"}, ["content-length-range", 0, 3 * MIB]],
        )  # fmt: skip
        key = f"up/{mode} é"
        for file in files:
            answer = post(running.address, NAME, encoded(made["fields"].items(), file, key[3:], [("submit", "Upload")]))
            assert (answer.status, answer.body) == (204, b""), answer
            assert reader.get_object(Bucket=NAME, Key=key)["Body"].read() == file
            stored = direct.get_object(Bucket=NAME, Key=key)
            assert stored["Body"].read() == file
            assert (stored["ContentType"], stored["Metadata"]) == ("text/x", {"note": "kept"})
    running.settle()
    assert reader.get_object(Bucket=NAME, Key=key)["ResponseMetadata"]["HTTPHeaders"]["x-cache"] == "HIT"


def test_a_form_that_the_policy_does_not_allow_is_refused_by_the_proxy_itself(strict: Proxy, direct: Any) -> None:
    """`tests/unit/auth/test_form_policy.py` has the conditions, `test_form_fields.py` the forms that are none."""
    asked = strict.metric("outrider_origin_requests_total", method="POST")
    fields = {"key": "up/refused"}
    for conditions in ([{"bucket": NAME}, {"key": "up/other"}], [{"bucket": OTHER}, ["starts-with", "$key", ""]]):
        assert send(strict, fields, b"12345", conditions).code == "AccessDenied"
    body = encoded(signed(fields, policy(CONDITIONS), WRITER).items(), b"file")
    assert post(strict.address, NAME, b"nothing of the kind").code == "MalformedPOSTRequest"
    head = [("content-type", f"multipart/form-data; boundary={BOUNDARY}"), ("transfer-encoding", "chunked")]
    assert ask(strict.address, "POST", f"/{NAME}", head, b"0\r\n\r\n").code == "MissingContentLength"
    assert strict.metric("outrider_origin_requests_total", method="POST") == asked
    assert post(strict.address, NAME, body[:-30]).code == "MalformedPOSTRequest"
    assert keys_of(direct, "up/refused") == []


def test_a_file_that_grows_too_large_is_cut_off_before_it_is_whole(strict: Proxy, direct: Any) -> None:
    conditions = [*CONDITIONS, ["content-length-range", 0, MIB]]
    made = signed({"key": "up/large"}, policy(conditions), WRITER)
    body = encoded(made.items(), b"x" * 64 * MIB)
    with RawConnection(strict.address) as connection:
        head = f"POST /{NAME} HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary={BOUNDARY}\r\n"
        connection.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[: 4 * MIB])
        assert connection.read_answer("POST").code == "EntityTooLarge"
        assert connection.is_closed_by_peer()
    assert keys_of(direct, "up/large") == []


def test_a_form_needs_a_good_signature_and_a_grant_to_write_its_key(strict: Proxy, direct: Any) -> None:
    for fields, keys, name, code in [
        ({"key": "up/granted"}, (WRITER[0], "wrong"), NAME, "SignatureDoesNotMatch"),
        ({"key": "up/granted"}, ("NOBODY", "x"), NAME, "InvalidAccessKeyId"),
        ({"key": "up/granted"}, READER, NAME, "AccessDenied"),
        ({"key": "down/k"}, WRITER, NAME, "AccessDenied"),
        ({"key": "up/../down/k"}, WRITER, NAME, "AccessDenied"),
        ({"key": "${filename}"}, WRITER, NAME, "AccessDenied"),
        ({"key": "up/granted"}, WRITER, OTHER, "AccessDenied"),
    ]:
        conditions = [{"bucket": name}, ["starts-with", "$key", ""]]
        answer = send(strict, fields, b"x", conditions, keys, name, filename="up/granted")
        assert (answer.status, answer.code) == (403, code), (fields, keys, name)
    made = signed({"key": "up/granted"}, policy(CONDITIONS, "2020-01-01T00:00:00.000Z"), WRITER)
    assert "Policy expired" in post(strict.address, NAME, encoded(made.items(), b"x")).error["Message"]
    assert post(strict.address, NAME, encoded([("key", "up/granted")], b"x")).code == "AccessDenied"
    assert keys_of(direct, "up/granted") == []
    assert keys_of(direct, "down/") == []


def test_no_second_key_reaches_the_bucket(strict: Proxy, direct: Any) -> None:
    """Parsers differ on which of two keys counts, so the granted key must be the only one."""
    made = signed({"key": "up/first"}, policy(CONDITIONS), WRITER)
    for name in ("key", "Key"):
        assert post(strict.address, NAME, encoded([*made.items(), (name, "down/second")], b"x")).code == (
            "MalformedPOSTRequest"
        )
        after = [(name, "down/second"), ("submit", "Go")]
        for _ in range(5):
            assert post(strict.address, NAME, encoded(made.items(), b"x", after=after)).status == 204
        evil = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\ndown/second'.encode()
        for _ in range(5):
            assert post(strict.address, NAME, encoded(made.items(), evil)).status == 204
    assert direct.head_object(Bucket=NAME, Key="up/first")["ContentLength"] == 0
    assert keys_of(direct, "down/") == []


def test_headers_that_no_policy_covers_are_refused(strict: Proxy, direct: Any) -> None:
    body = encoded(signed({"key": "up/headers"}, policy(CONDITIONS), WRITER).items(), b"x")
    for header in (("x-amz-acl", "public-read"), ("x-amz-copy-source", f"{OTHER}/secret")):
        assert post(strict.address, NAME, body, [header]).code == "AccessDenied"
    assert keys_of(direct, "up/headers") == []


def test_a_browsers_cors_preflight_needs_no_signature(bucket: Bucket, strict: Proxy) -> None:
    """A CORS preflight is never signed. The request after it needs a signature as usual.

    An OPTIONS that is no whole preflight gets the bucket's own answer: AWS S3 and Ceph refuse it with 400.
    """
    host, _, port = bucket.address.partition(":")
    asks = [("origin", "https://example.com"), ("access-control-request-method", "POST")]
    answer = ask(strict.address, "OPTIONS", f"/{NAME}", asks)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"]
    for headers in (asks[:1], asks[1:], []):
        by_bucket = ask((host, int(port)), "OPTIONS", f"/{NAME}", headers)
        by_proxy = ask(strict.address, "OPTIONS", f"/{NAME}", headers)
        assert (by_proxy.status, by_proxy.body) == (by_bucket.status, by_bucket.body)
    for method in ("GET", "PUT"):
        assert ask(strict.address, method, f"/{NAME}/up/x", [*asks, ("content-length", "0")]).code == "AccessDenied"


def test_a_signed_request_with_a_form_body_is_not_a_form_upload(proxy: Proxy, direct: Any) -> None:
    """An unknown request is forwarded: it needs a grant on the whole bucket, and the bucket answers it."""
    body = encoded(forms.signed_as_it_stands({"key": "up/both"}, "{", WRITER).items(), b"x")
    answer = post(proxy.address, NAME, body, [("authorization", "AWS4-HMAC-SHA256 anything")])
    assert answer.status >= 400
    assert keys_of(direct, "up/both") == []
