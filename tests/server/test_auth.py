"""Authorisation in `sigv4` mode with real clients; and no secret appears in a reply, a log or a metric."""

from __future__ import annotations

import time
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from tests.support.logs import logged
from tests.support.proxy import Keys, Proxy
from tests.support.rawhttp import Answer, RawConnection, ask
from tests.support.signed_requests import signed_head

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

NAME, OTHER = "auth-one", "auth-two"
READER: Keys = ("AUTHREADER", "reader/secret+one")
WRITER: Keys = ("AUTHWRITER", "writer/secret+two")
TEAM: Keys = ("AUTHTEAM", "team/secret+three")
ROOT: Keys = ("AUTHROOT", "root/secret+four")
EVERYBODY = (READER, WRITER, TEAM, ROOT)

CLIENTS = f"""
[[client]]
name = "reader"
access_key = "{READER[0]}"
secret_key = "{READER[1]}"
grants = [{{bucket = "auth-*", access = "read"}}]

[[client]]
name = "writer"
access_key = "{WRITER[0]}"
secret_key = "{WRITER[1]}"
grants = [{{bucket = "{NAME}", access = "write"}}]

[[client]]
name = "team"
access_key = "{TEAM[0]}"
secret_key = "{TEAM[1]}"
grants = [{{bucket = "{NAME}", prefix = "team/", access = "write"}}, {{bucket = "{OTHER}", prefix = "shared/"}}]

[[client]]
name = "root"
access_key = "{ROOT[0]}"
secret_key = "{ROOT[1]}"
grants = [{{bucket = "*", access = "write"}}]
"""


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    client = bucket.client()
    for name in (NAME, OTHER):
        bucket.make_bucket(name)
        for key in ("team/a", "other/b", "shared/c"):
            client.put_object(Bucket=name, Key=key, Body=f"{name} {key}".encode())
    client.close()


@pytest.fixture(scope="module")
def proxy(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    clients = tmp_path_factory.mktemp("auth") / "clients.toml"
    clients.write_text(CLIENTS)
    with Proxy(bucket, auth="sigv4", clients=clients) as running:
        yield running


@pytest.fixture(autouse=True)
def exposed(proxy: Proxy, bucket: Bucket) -> Iterator[list[str]]:
    """A list for whatever a test appends, the logs and the metrics: no secret may be in any of it."""
    texts: list[str] = []
    with logged("outrider") as records:
        yield texts
        proxy.settle()
    texts += [ask(admin_address(proxy), "GET", path).body.decode() for path in ("/metrics", "/status")]
    texts += [f"{record.getMessage()} {vars(record)}" for record in records]
    assert any("outrider.access" in text for text in texts), "the log was not seen"
    secrets = [keys[1] for keys in EVERYBODY] + [
        bucket.secret_key,
        "X-Amz-Signature=",
        "Signature=",
        "AWS4-HMAC-SHA256 ",
    ]
    for text in texts:
        for secret in secrets:
            assert secret not in text, text


def admin_address(proxy: Proxy) -> tuple[str, int]:
    host, _, port = proxy.outrider.admin.rpartition(":")
    return host, int(port)


def code_of(call: Any, **parameters: Any) -> str:
    """The S3 error code with which a boto3 call is refused."""
    with pytest.raises(ClientError) as refused:
        call(**parameters)
    return str(refused.value.response["Error"]["Code"])


def test_each_key_reads_what_it_was_granted(proxy: Proxy) -> None:
    def body(keys: Keys, name: str, key: str) -> bytes:
        return bytes(proxy.client(keys).get_object(Bucket=name, Key=key)["Body"].read())

    for keys, name, key in [(READER, NAME, "team/a"), (READER, OTHER, "shared/c"), (WRITER, NAME, "other/b"),
                            (TEAM, NAME, "team/a"), (TEAM, OTHER, "shared/c"), (ROOT, OTHER, "team/a")]:  # fmt: skip
        for _ in range(2):
            assert body(keys, name, key) == f"{name} {key}".encode()
    for keys, name, key in [(WRITER, OTHER, "team/a"), (TEAM, NAME, "other/b"), (TEAM, OTHER, "team/a")]:
        client = proxy.client(keys)
        # Both objects are here, and fresh: a hit is authorised exactly like a miss.
        assert code_of(client.get_object, Bucket=name, Key=key) == "AccessDenied"
        assert code_of(client.head_object, Bucket=name, Key=key) == "403"
        assert code_of(client.get_object_tagging, Bucket=name, Key=key) == "AccessDenied"


def test_each_key_writes_what_it_was_granted(proxy: Proxy) -> None:
    proxy.client(WRITER).put_object(Bucket=NAME, Key="team/new", Body=b"new")
    proxy.client(TEAM).put_object(Bucket=NAME, Key="team/new", Body=b"newer")
    assert proxy.client(READER).get_object(Bucket=NAME, Key="team/new")["Body"].read() == b"newer"
    for keys, name, key in [(READER, NAME, "team/new"), (TEAM, NAME, "other/new"), (TEAM, OTHER, "shared/new"),
                            (WRITER, OTHER, "team/new")]:  # fmt: skip
        client = proxy.client(keys)
        assert code_of(client.put_object, Bucket=name, Key=key, Body=b"stolen") == "AccessDenied"
        assert code_of(client.delete_object, Bucket=name, Key=key) == "AccessDenied"
        assert code_of(client.create_multipart_upload, Bucket=name, Key=key) == "AccessDenied"
    assert code_of(proxy.client(TEAM).delete_bucket, Bucket=NAME) == "AccessDenied"
    assert code_of(proxy.client(READER).create_bucket, Bucket="auth-three") == "AccessDenied"


def test_a_listing_needs_a_grant_on_all_that_it_may_name(proxy: Proxy) -> None:
    listed = proxy.client(TEAM).list_objects_v2(Bucket=NAME, Prefix="team/")
    assert all(entry["Key"].startswith("team/") for entry in listed["Contents"])
    for prefix in ("", "t", "team", "other/"):
        assert code_of(proxy.client(TEAM).list_objects_v2, Bucket=NAME, Prefix=prefix) == "AccessDenied"
    assert code_of(proxy.client(TEAM).list_objects, Bucket=NAME) == "AccessDenied"
    assert code_of(proxy.client(TEAM).list_buckets) == "AccessDenied"
    assert code_of(proxy.client(READER).list_buckets) == "AccessDenied"
    assert proxy.client(READER).list_objects_v2(Bucket=OTHER)["KeyCount"] >= 3
    assert proxy.client(TEAM).head_bucket(Bucket=NAME)
    assert NAME in [entry["Name"] for entry in proxy.client(ROOT).list_buckets()["Buckets"]]


def test_two_prefixes_in_one_listing_must_both_be_granted(proxy: Proxy) -> None:
    query = "list-type=2&prefix=team%2F&prefix="
    answer = signed(proxy, TEAM, "GET", f"/{NAME}?{query}")
    assert answer.code == "AccessDenied"


def test_a_copy_needs_a_grant_on_its_source(proxy: Proxy) -> None:
    team = proxy.client(TEAM)
    team.copy_object(Bucket=NAME, Key="team/copy", CopySource={"Bucket": OTHER, "Key": "shared/c"})
    assert team.get_object(Bucket=NAME, Key="team/copy")["Body"].read() == f"{OTHER} shared/c".encode()
    for source in (f"{NAME}/other/b", f"/{NAME}/other/b", f"{NAME}/other%2Fb", f"{OTHER}/team/a",
                   f"{NAME}/other/b?versionId=null"):  # fmt: skip
        assert code_of(team.copy_object, Bucket=NAME, Key="team/copy", CopySource=source) == "AccessDenied", source
    # Stores differ in where the path of a source ends, if its query is not `versionId`.
    for source in (f"{NAME}/team/a?/../../other/b", f"{NAME}/team/a?versionid=/../../other/b",
                   f"{NAME}/team/a?versionId=%zz/../../other/b", f"{NAME}/team/a#/../../other/b"):  # fmt: skip
        headers = {"x-amz-copy-source": source, "content-length": "0"}
        assert signed(proxy, TEAM, "PUT", f"/{NAME}/team/copy", headers=headers).code == "AccessDenied", source
    upload = team.create_multipart_upload(Bucket=NAME, Key="team/parts")["UploadId"]
    assert code_of(team.upload_part_copy, Bucket=NAME, Key="team/parts", UploadId=upload, PartNumber=1,
                   CopySource=f"{NAME}/other/b") == "AccessDenied"  # fmt: skip
    team.abort_multipart_upload(Bucket=NAME, Key="team/parts", UploadId=upload)


def test_one_key_outside_the_grant_stops_the_whole_deletion(proxy: Proxy, bucket: Bucket) -> None:
    team = proxy.client(TEAM)
    team.put_object(Bucket=NAME, Key="team/doomed", Body=b"")

    def deletion(*keys: str) -> dict[str, Any]:
        return {"Objects": [{"Key": key} for key in keys]}

    assert code_of(team.delete_objects, Bucket=NAME, Delete=deletion("team/doomed", "other/b")) == "AccessDenied"
    assert team.head_object(Bucket=NAME, Key="team/doomed")
    assert proxy.client(READER).head_object(Bucket=NAME, Key="other/b")
    assert team.delete_objects(Bucket=NAME, Delete=deletion("team/doomed"))["Deleted"]
    assert code_of(proxy.client(READER).delete_objects, Bucket=NAME, Delete=deletion("team/a")) == "AccessDenied"
    direct = bucket.client()
    assert direct.head_object(Bucket=NAME, Key="team/a")
    direct.close()


def test_a_key_that_climbs_out_of_its_prefix_is_not_covered(proxy: Proxy) -> None:
    """Some origins resolve dots in a path, so a key must be granted both as written and as resolved."""
    for target in (f"/{NAME}/team/../other/b", f"/{NAME}/team/%2e%2e/other/b", f"/{NAME}/team/x/../../other/b",
                   f"/{OTHER}/shared/../../{NAME}/other/b", f"/{NAME}/team/.."):  # fmt: skip
        assert signed(proxy, TEAM, "GET", target).code == "AccessDenied", target
    assert signed(proxy, WRITER, "GET", f"/{NAME}/../{OTHER}/team/a").code == "AccessDenied"
    assert signed(proxy, WRITER, "GET", f"/{NAME}/a/../b").code == "InvalidRequest", "SeaweedFS's own answer"


def test_no_sub_resource_of_a_key_reaches_the_rest_of_the_bucket(proxy: Proxy, bucket: Bucket) -> None:
    """SeaweedFS and MinIO obey some sub-resources of a bucket in the path of a key, too."""
    deletion = b"<Delete><Object><Key>other/b</Key></Object></Delete>"
    assert signed(proxy, TEAM, "POST", f"/{NAME}/team/a?delete", body=deletion).code == "AccessDenied"
    direct = bucket.client()
    assert direct.head_object(Bucket=NAME, Key="other/b")
    direct.close()
    assert signed(proxy, TEAM, "GET", f"/{NAME}/team/a?uploads").code == "AccessDenied"


def signed(
    proxy: Proxy,
    keys: Keys,
    method: str,
    target: str,
    *extra: tuple[str, str],
    body: bytes = b"",
    headers: dict[str, str] | None = None,
) -> Answer:
    """A signed request with `headers`, and with `extra` headers added after the signature."""
    head = signed_head(method, proxy.endpoint, target, keys, (headers or {}).items(), sha256(body).hexdigest())
    if body:
        head.append(("content-length", str(len(body))))
    with RawConnection(proxy.address) as connection:
        lines = "".join(f"{name}: {value}\r\n" for name, value in [*head, *extra])
        connection.send(f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        return connection.read_answer(method)


@pytest.mark.parametrize(
    ("keys", "key", "length", "status"),
    [(TEAM, "other/b", "content-length: 4", 403), ((TEAM[0], "wrong"), "team/x", "content-length: 4", 403),
     (None, "team/x", "content-length: 4", 403), (TEAM, "team/x", "transfer-encoding: chunked", 411),
     (TEAM, "team/x?delete", "content-length: 4", 403), (TEAM, "team/x", "content-length: -4", 400)],
)  # fmt: skip
def test_a_client_that_waits_for_100_continue_is_refused_before_it_sends_a_body(
    proxy: Proxy, keys: Keys | None, key: str, length: str, status: int
) -> None:
    """RFC 9110 section 10.1.1: no body is asked for where its request is refused all the same."""
    target = f"/{NAME}/{key}"
    head = [("host", "x")] if keys is None else signed_head("PUT", proxy.endpoint, target, keys)
    lines = "".join(f"{name}: {value}\r\n" for name, value in head)
    with RawConnection(proxy.address) as connection:
        connection.send(f"PUT {target} HTTP/1.1\r\n{lines}{length}\r\nexpect: 100-continue\r\n\r\n".encode())
        assert connection.read_line().startswith(f"HTTP/1.1 {status} ".encode())


def test_a_client_that_does_not_know_the_secret_is_refused(proxy: Proxy, exposed: list[str]) -> None:
    for keys, code in [((READER[0], "wrong"), "SignatureDoesNotMatch"), (("NOBODY", READER[1]), "InvalidAccessKeyId")]:
        assert code_of(proxy.client(keys).get_object, Bucket=NAME, Key="team/a") == code
        refused = signed(proxy, keys, "GET", f"/{NAME}/team/a")
        assert refused.status == 403
        exposed.append(refused.body.decode())
    anonymous = ask(proxy.address, "GET", f"/{NAME}/team/a")
    assert (anonymous.status, anonymous.code) == (403, "AccessDenied")
    assert ask(proxy.address, "PUT", f"/{NAME}/team/a", [("content-length", "1")], b"x").code == "AccessDenied"
    assert ask(proxy.address, "GET", "/").code == "AccessDenied"


def test_refused_requests_create_no_datasets(proxy: Proxy) -> None:
    """Enough odd names would otherwise merge with another client's names into one dataset."""
    preflight = [("origin", "http://x"), ("access-control-request-method", "GET")]
    for number in range(100):
        path = f"/{NAME}/refused/{'abcdefghij'[number % 10]}{number}x{number * 7919:x}.mp4"
        with RawConnection(proxy.address) as connection:
            assert connection.ask("OPTIONS", path, preflight).status in (200, 403)
            assert connection.ask("GET", path).status == 403
    proxy.settle()
    templates = proxy.outrider.metrics.usage.templates
    assert templates.mergers == 0
    assert not any("refused" in place.name for place in templates._variants)


def test_the_origins_own_keys_are_not_accepted_from_clients(proxy: Proxy, bucket: Bucket) -> None:
    keys = (bucket.access_key, bucket.secret_key)
    assert code_of(proxy.client(keys).get_object, Bucket=NAME, Key="team/a") == "InvalidAccessKeyId"


def test_a_presigned_url_is_accepted_until_it_expires(proxy: Proxy, exposed: list[str]) -> None:
    def target(**config: Any) -> str:
        url = urlsplit(proxy.client(READER, **config).generate_presigned_url(
            "get_object", Params={"Bucket": NAME, "Key": "team/a"}, ExpiresIn=60))  # fmt: skip
        exposed.append(url.path)
        return f"{url.path}?{url.query}"

    host = [("host", proxy.outrider.listen)]

    def get(at: str) -> Answer:
        with RawConnection(proxy.address) as connection:
            connection.send(f"GET {at} HTTP/1.1\r\nhost: {host[0][1]}\r\n\r\n".encode())
            return connection.read_answer()

    for version in ("s3v4", "s3"):
        good = target(signature_version=version)
        assert ("X-Amz-Signature" in good) == (version == "s3v4")
        for _ in range(2):
            assert get(good).body == f"{NAME} team/a".encode()
        assert get(good.replace("team/a", "other/b")).code == "SignatureDoesNotMatch"
    assert get(target(signature_version="s3").replace("Expires=", "Expires=9")).code == "SignatureDoesNotMatch"
    expired = "X-Amz-Date=20200101T000000Z&X-Amz-Expires=60"
    query = (f"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={READER[0]}%2F20200101%2Fus-east-1%2Fs3%2Faws4_request"
             f"&{expired}&X-Amz-SignedHeaders=host&X-Amz-Signature={'0' * 64}")  # fmt: skip
    answer = get(f"/{NAME}/team/a?{query}")
    assert (answer.status, answer.code) == (403, "AccessDenied")
    assert "expired" in answer.error["Message"]
    old = f"AWSAccessKeyId={READER[0]}&Signature=AAAA&Expires={int(time.time()) - 10}"
    assert get(f"/{NAME}/team/a?{old}").code == "AccessDenied"
    exposed += [answer.body.decode()]


def test_an_unsigned_amz_header_is_refused(proxy: Proxy, bucket: Bucket) -> None:
    """The proxy would otherwise sign a header that the client did not sign, with the proxy's own keys."""
    for header in [("x-amz-copy-source", f"{NAME}/other/b"), ("x-amz-acl", "public-read"), ("x-amz-meta-a", "b")]:
        answer = signed(proxy, WRITER, "PUT", f"/{NAME}/team/unsigned", header, ("content-length", "0"))
        assert (answer.status, answer.code) == (403, "AccessDenied")
    direct = bucket.client()
    assert code_of(direct.head_object, Bucket=NAME, Key="team/unsigned") == "404"
    direct.close()


def test_a_changed_request_is_refused(proxy: Proxy) -> None:
    head = signed_head("GET", proxy.endpoint, f"/{NAME}/team/a", READER)
    lines = "".join(f"{name}: {value}\r\n" for name, value in head)
    for line in (f"GET /{NAME}/other/b", f"HEAD /{NAME}/team/a", f"GET /{NAME}/team/a?acl", f"DELETE /{NAME}/team/a"):
        with RawConnection(proxy.address) as connection:
            connection.send(f"{line} HTTP/1.1\r\n{lines}\r\n".encode())
            answer = connection.read_answer(line.split()[0])
            assert answer.status == 403, line


def test_an_old_request_is_refused(proxy: Proxy) -> None:
    head = signed_head("GET", proxy.endpoint, f"/{NAME}/team/a", READER)
    dated = [(name, "20200101T000000Z" if name == "x-amz-date" else value) for name, value in head]
    credential = [(name, value.replace(head_date(head), "20200101")) for name, value in dated]
    with RawConnection(proxy.address) as connection:
        lines = "".join(f"{name}: {value}\r\n" for name, value in credential)
        connection.send(f"GET /{NAME}/team/a HTTP/1.1\r\n{lines}\r\n".encode())
        assert connection.read_answer().code == "RequestTimeTooSkewed"


def head_date(head: list[tuple[str, str]]) -> str:
    return dict(head)["x-amz-date"][:8]


def test_a_loopback_proxy_takes_any_signature_or_none(bucket: Bucket) -> None:
    with Proxy(bucket) as open_to_all:
        assert ask(open_to_all.address, "GET", f"/{NAME}/team/a").status == 200
        client = open_to_all.client(("who", "ever"))
        assert client.get_object(Bucket=NAME, Key="team/a")["Body"].read() == f"{NAME} team/a".encode()
        url = client.generate_presigned_url("get_object", Params={"Bucket": NAME, "Key": "team/a"})
        assert ask(open_to_all.address, "GET", url.removeprefix(open_to_all.endpoint)).status == 200
