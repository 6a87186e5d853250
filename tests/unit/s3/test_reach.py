"""How far requests reach: each request of S3's API is known, and nothing else gets past a narrow grant."""

from __future__ import annotations

from collections.abc import Iterator

import botocore.session
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.auth.grants import AccessLevel, Client, Grant, missing_grant
from outrider.core.errors import BadRequest
from outrider.core.model import Headers
from outrider.core.s3.encoding import OTHER_STORE_HEADERS, encode_url_query
from outrider.core.s3.operation import ForgetScope, classify, of_form
from outrider.core.s3.reach import Reach

TEAM = Client("team", "AK", (Grant("bkt", "team/", AccessLevel.WRITE),))
OWNER = Client("owner", "AK", (Grant("bkt", "", AccessLevel.WRITE),))
READER = Client("reader", "AK", (Grant("*", "", AccessLevel.READ),))
ROOT = Client("root", "AK", (Grant("*", "", AccessLevel.WRITE),))

# Operations of S3's API that reach further than the names in their path, by method and sub-resource.
FAR = {
    *(("PUT", name) for name in ("analytics", "inventory", "logging", "notification", "replication",
                                 "metadataAnnotationTable", "metadataInventoryTable", "metadataJournalTable")),
    ("POST", "metadataConfiguration"), ("POST", "metadataTable"), ("POST", "restore"), ("GET", "session"),
}  # fmt: skip


def operations_of_s3() -> Iterator[tuple[str, str, Headers]]:
    """Each operation of botocore's model that names a bucket: its method, its target and its headers, with all optional
    parameters."""
    model = botocore.session.get_session().get_service_model("s3")
    for name in model.operation_names:
        operation = model.operation_model(name)
        path, _, fixed = operation.http["requestUri"].partition("?")
        if "{Bucket}" not in path:
            continue
        query, headers = [tuple(part.partition("=")[::2]) for part in fixed.split("&") if part], []
        for shape in operation.input_shape.members.values():
            place = shape.serialization.get("location")
            if place == "querystring":
                query.append((shape.serialization["name"], "team/" if shape.serialization["name"] == "prefix" else "1"))
            elif place in ("header", "headers"):
                prefix_only = "x" if place == "headers" else ""
                headers.append((shape.serialization["name"].lower() + prefix_only, "bkt/team/k"))
        target = path.replace("{Bucket}", "bkt").replace("{Key+}", "team/k")
        yield operation.http["method"], f"{target}?{encode_url_query(query)}", tuple(headers)


@pytest.mark.parametrize(("method", "target", "headers"), list(operations_of_s3()))
def test_each_operation_of_s3_is_known(method: str, target: str, headers: Headers) -> None:
    operation = classify(method, target, headers)
    far = any((method, name) in FAR for name, _ in operation.query)
    assert operation.reach is (Reach.SERVICE if far else Reach.NAMED), operation.reaches_by
    assert (missing_grant(OWNER, operation, ["team/k"]) is None) is not far
    # The source of a rename may be read as a bucket and a key, which this key has no grant on.
    if operation.key and not operation.renames:
        assert (missing_grant(TEAM, operation) is None) is not far


@pytest.mark.parametrize(
    ("method", "target", "headers", "least"),
    [
        # MinIO: an archive that is unpacked, a file in an archive, a folder that is deleted.
        ("PUT", "/bkt/team/a.tar", (("x-amz-meta-snowball-auto-extract", "true"),), OWNER),
        ("PUT", "/bkt/team/a.tar", (("x-amz-meta-minio-snowball-prefix", "other"),), OWNER),
        ("GET", "/bkt/team/a.zip/x", (("x-minio-extract", "true"),), OWNER),
        ("GET", "/bkt?prefix=team/a.zip/", (("x-minio-extract", "true"),), OWNER),
        ("DELETE", "/bkt/team/", (("x-minio-force-delete", "true"),), OWNER),
        # MinIO: a site that replicates chooses the ETag, the date and the version.
        *(
            ("PUT", "/bkt/team/k", ((name, "1"),), ROOT)
            for name in (
                "x-minio-source-etag",
                "x-minio-source-mtime",
                "x-minio-source-replication-request",
                "x-minio-replication-actual-object-size",
                "x-minio-from-peer",
                "x-amz-replication-status",
            )
        ),
        # Another store's words, and another tenant's names.
        *(("PUT", "/bkt/team/k", ((f"{store}invented-tomorrow", "1"),), ROOT) for store in OTHER_STORE_HEADERS),
        ("PUT", "/bkt/team/k", (("x-oss-symlink-target", "other/k"),), ROOT),
        ("GET", "/bkt/team/k", (("x-emc-namespace", "other"),), ROOT),
        ("GET", "/bkt/team/k?rgwx-uid=other", (), ROOT),
        ("PUT", "/bkt/team/k?compose", (), ROOT),
        ("GET", "/bkt/team/k?x-image-save-object=other/k", (), ROOT),
        ("POST", "/bkt/team/k?x-oss-process", (), ROOT),
        ("POST", "/bkt/team/k?name=other&rename", (), ROOT),
        # Headers in the query: a grant on a source is checked for headers alone.
        ("PUT", "/bkt/team/k?x-amz-acl=private&content-type=text/x&content-md5=a", (), TEAM),
        ("PUT", "/bkt/team/k?X-Amz-Copy-Source=bkt/other/k", (), ROOT),
        ("PUT", "/bkt/team/k?x-amz-meta-snowball-auto-extract=true", (), OWNER),
        # A sub-resource of the bucket in the path of a key: MinIO and SeaweedFS obey some.
        ("POST", "/bkt/team/k?delete", (), ROOT),
        ("POST", "/bkt/team/k?uploads&delete", (), ROOT),
        ("POST", "/bkt/team/k", (), ROOT),
        ("GET", "/bkt/team/k?uploads", (), ROOT),
        ("PUT", "/bkt/team/k?policy", (), ROOT),
        # A body that names a bucket for results, and methods that are none of S3's.
        ("POST", "/bkt/team/k?restore", (), ROOT),
        ("COPY", "/bkt/team/k", (("destination", "/bkt/other/k"),), ROOT),
        ("PATCH", "/bkt/team/k", (), ROOT),
        # The keys of the origin: sessions, STS, IAM.
        ("GET", "/bkt?session", (), ROOT),
        ("POST", "/?Action=AssumeRole", (), ROOT),
        ("POST", "/", (), ROOT),
        ("GET", "/?events=s3:ObjectCreated", (), ROOT),
        # Ordinary requests.
        ("PUT", "/bkt/team/k", (("x-amz-meta-note", "1"), ("x-amz-tagging", "a=b")), TEAM),
        ("PUT", "/bkt/team/k?append&position=0", (), TEAM),
        ("POST", "/bkt/team/k?uploads", (("x-amz-acl", "private"),), TEAM),
        ("GET", "/bkt/team/k", (("x-goog-if-generation-match", "1"),), TEAM),
    ],
)
def test_what_reaches_further_takes_a_wider_grant(method: str, target: str, headers: Headers, least: Client) -> None:
    operation = classify(method, target, headers)
    for client in (TEAM, OWNER, ROOT)[: (TEAM, OWNER, ROOT).index(least)]:
        missing = missing_grant(client, operation)
        assert missing, client.name
        assert operation.reaches_by in missing
    assert missing_grant(least, operation) is None
    assert (missing_grant(READER, operation) is None) <= (method == "GET" and least is not ROOT)
    if method != "GET":
        assert (operation.forgets is ForgetScope.KEY) is (least is TEAM)


NAMES = st.sampled_from(
    ["x-amz-meta-snowball-auto-extract", "x-amz-meta-a", "x-minio-extract", "x-minio-source-etag", "x-amz-acl",
     "x-amz-copy-source", "x-amz-rename-source", "x-emc-namespace", "rgwx-uid", "delete", "uploads", "uploadId",
     "policy", "acl", "tagging", "restore", "prefix", "versionId", "x-oss-process", "select", "x-amz-unheard-of"]
)  # fmt: skip
VALUES = st.sampled_from(
    ["", "true", "bkt/team/a", "bkt/other/b", "team/a", "other/b", "/bkt/team/../other/b", "arn:a"]
)
NARROW = frozenset(
    ("x-amz-meta-a", "x-amz-acl", "x-amz-copy-source", "x-amz-rename-source", "uploads", "uploadId", "acl", "tagging",
     "versionId", "select", "prefix")
)  # fmt: skip
OF_BUCKET_AT_KEY = frozenset(("uploads", "prefix"))


@given(
    st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "PATCH"]),
    st.lists(st.tuples(NAMES, VALUES), max_size=3),
    st.lists(st.tuples(NAMES.filter(lambda name: name.startswith(("x-", "rgwx-"))), VALUES), max_size=3),
)
def test_nothing_that_is_added_to_a_granted_key_leads_beyond_the_grant(
    method: str, query: list[tuple[str, str]], headers: list[tuple[str, str]]
) -> None:
    """A client with a grant on one prefix gets no request through that names anything else."""
    try:
        operation = classify(method, f"/bkt/team/k?{encode_url_query(query)}", tuple(headers))
    except BadRequest:
        return
    if missing_grant(TEAM, operation) is not None:
        return
    assert {name for name, _ in (*query, *headers)} <= NARROW
    assert not any(name.startswith("x-amz-copy") for name, _ in query)
    assert OF_BUCKET_AT_KEY.isdisjoint(name for name, _ in query) or method == "POST"
    assert method != "PATCH"
    for name, value in headers:
        assert name != "x-amz-rename-source"
        assert name != "x-amz-copy-source" or value == "bkt/team/a"


def test_a_form_reaches_as_far_as_its_fields() -> None:
    form = classify("POST", "/bkt", ())
    plain = of_form(form, "team/k", ["key", "policy", "tagging", "x-amz-algorithm", "x-amz-meta-a", "submit"])
    assert (plain.forgets, missing_grant(TEAM, plain)) == (ForgetScope.KEY, None)
    many = of_form(form, "team/k", ["key", "x-minio-fanout-list"])
    assert many.forgets is ForgetScope.BUCKET
    assert "x-minio-fanout-list" in (missing_grant(TEAM, many) or "")
    assert missing_grant(OWNER, many) is None
    assert missing_grant(OWNER, of_form(form, "team/k", ["x-minio-source-etag"])) is not None
