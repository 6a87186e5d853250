"""Authorisation in `sigv4` mode with real clients.

`tests/unit/auth` has the signatures and the grants, `tests/trust/test_security_*` the attacks on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.support.proxy import Keys, Proxy
from tests.support.rawhttp import RawConnection
from tests.support.signed_requests import signed_head
from tests.support.tenants import answer_to, wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

NAME, OTHER = "auth-one", "auth-two"
READER: Keys = ("AUTHREADER", "reader/secret+one")
WRITER: Keys = ("AUTHWRITER", "writer/secret+two")
TEAM: Keys = ("AUTHTEAM", "team/secret+three")
ROOT: Keys = ("AUTHROOT", "root/secret+four")

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
    for name in (NAME, OTHER):
        bucket.store(name, {key: f"{name} {key}".encode() for key in ("team/a", "other/b", "shared/c")})


@pytest.fixture(scope="module")
def proxy(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    clients = tmp_path_factory.mktemp("auth") / "clients.toml"
    clients.write_text(CLIENTS)
    with Proxy(bucket, auth="sigv4", clients=clients) as running:
        yield running


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
    # Both prefixes of one listing must be granted.
    target = f"/{NAME}?list-type=2&prefix=team%2F&prefix="
    assert answer_to(proxy, wire(proxy, TEAM, "GET", target)).code == "AccessDenied"


def test_a_copy_and_a_deletion_need_a_grant_on_each_name(proxy: Proxy) -> None:
    team = proxy.client(TEAM)
    team.copy_object(Bucket=NAME, Key="team/copy", CopySource={"Bucket": OTHER, "Key": "shared/c"})
    assert team.get_object(Bucket=NAME, Key="team/copy")["Body"].read() == f"{OTHER} shared/c".encode()
    for source in (f"{NAME}/other/b", f"/{NAME}/other%2Fb", f"{OTHER}/team/a", f"{NAME}/other/b?versionId=null"):
        assert code_of(team.copy_object, Bucket=NAME, Key="team/copy", CopySource=source) == "AccessDenied", source
    upload = team.create_multipart_upload(Bucket=NAME, Key="team/parts")["UploadId"]
    assert code_of(team.upload_part_copy, Bucket=NAME, Key="team/parts", UploadId=upload, PartNumber=1,
                   CopySource=f"{NAME}/other/b") == "AccessDenied"  # fmt: skip
    team.abort_multipart_upload(Bucket=NAME, Key="team/parts", UploadId=upload)

    def deletion(*keys: str) -> dict[str, Any]:
        return {"Objects": [{"Key": key} for key in keys]}

    assert code_of(team.delete_objects, Bucket=NAME, Delete=deletion("team/copy", "other/b")) == "AccessDenied"
    assert team.head_object(Bucket=NAME, Key="team/copy")
    assert proxy.client(READER).head_object(Bucket=NAME, Key="other/b")
    assert team.delete_objects(Bucket=NAME, Delete=deletion("team/copy"))["Deleted"]
    assert code_of(proxy.client(READER).delete_objects, Bucket=NAME, Delete=deletion("team/a")) == "AccessDenied"


def test_a_client_that_waits_for_100_continue_is_refused_before_it_sends_a_body(proxy: Proxy) -> None:
    """RFC 9110 section 10.1.1: no body is asked for where its request is refused all the same."""
    length = "content-length: 4"
    for keys, key, framing, status in (
        (TEAM, "other/b", length, 403), ((TEAM[0], "wrong"), "team/x", length, 403), (None, "team/x", length, 403),
        (TEAM, "team/x", "transfer-encoding: chunked", 411), (TEAM, "team/x?delete", length, 403),
        (TEAM, "team/x", "content-length: -4", 400),
    ):  # fmt: skip
        target = f"/{NAME}/{key}"
        head = [("host", "x")] if keys is None else signed_head("PUT", proxy.endpoint, target, keys)
        lines = "".join(f"{name}: {value}\r\n" for name, value in head)
        with RawConnection(proxy.address) as connection:
            connection.send(f"PUT {target} HTTP/1.1\r\n{lines}{framing}\r\nexpect: 100-continue\r\n\r\n".encode())
            assert connection.read_line().startswith(f"HTTP/1.1 {status} ".encode()), (keys, key, framing)


def test_refused_requests_create_no_datasets(proxy: Proxy) -> None:
    """Enough odd names would otherwise merge with another client's names into one dataset."""
    preflight = [("origin", "http://x"), ("access-control-request-method", "GET")]
    for number in range(100):
        path = f"/{NAME}/refused/{'abcdefghij'[number % 10]}{number}x{number * 7919:x}.mp4"
        with RawConnection(proxy.address) as connection:
            assert connection.ask("OPTIONS", path, preflight).status in (200, 403)
            assert connection.ask("GET", path).status == 403
    proxy.settle()
    assert proxy.outrider.metrics.usage.templates.mergers == 0
