"""Grants: requests are classified as at the port, and then authorised."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from outrider.core.auth.grants import AccessLevel, Client, Grant, missing_grant
from outrider.core.model import Headers
from outrider.core.s3.operation import classify


def may(method: str, target: str, *grants: Grant, headers: Headers = (), keys: list[str] | None = None) -> bool:
    return missing_grant(Client("c", "AK", grants), classify(method, target, headers), keys) is None


READ_ALL = Grant("*", "", AccessLevel.READ)
WRITE_ALL = Grant("*", "", AccessLevel.WRITE)
READ_TRAIN = Grant("train-*", "", AccessLevel.READ)
READ_SHARDS = Grant("train", "shards/", AccessLevel.READ)
WRITE_SHARDS = Grant("train", "shards/", AccessLevel.WRITE)
COPY_FROM = "x-amz-copy-source"


def test_no_grant_lets_nothing_through() -> None:
    assert not may("GET", "/bkt/k")
    assert not may("GET", "/")
    assert not may("HEAD", "/bkt")


@pytest.mark.parametrize(
    ("method", "target", "headers", "names"),
    [
        ("GET", "/bkt/k", (), "to read s3://bkt/k"),
        ("PUT", "/bkt/k", (), "to write s3://bkt/k"),
        ("GET", "/bkt?list-type=2&prefix=other%2F", (), "to read s3://bkt/other/"),
        ("GET", "/bkt?list-type=2", (), "to read s3://bkt/"),
        ("HEAD", "/bkt", (), "to read the bucket bkt"),
        ("PUT", "/bkt", (), "to write the whole bucket bkt"),
        ("GET", "/", (), "to read all buckets"),
        ("PUT", "/train/shards/k", ((COPY_FROM, "/bkt/k"),), "to read s3://bkt/k"),
        ("PUT", "/train/shards/k", ((COPY_FROM, "arn:aws:s3:::bkt/k"),), "to read all buckets"),
    ],
)
def test_a_refusal_names_the_missing_grant(method: str, target: str, headers: Headers, names: str) -> None:
    operation = classify(method, target, headers)
    refusal = missing_grant(Client("c", "AK", (WRITE_SHARDS,)), operation)
    assert refusal == f"No grant of this client covers the request: it takes a grant {names}."


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_read_lets_reads_through_and_no_write(method: str) -> None:
    assert may(method, "/bkt/k", READ_ALL)
    assert not may("PUT", "/bkt/k", READ_ALL)
    assert not may("DELETE", "/bkt/k", READ_ALL)
    assert not may("POST", "/bkt/k?uploads", READ_ALL)
    assert not may("OPTIONS", "/bkt/k", READ_ALL)


def test_write_includes_read() -> None:
    assert may("GET", "/bkt/k", WRITE_ALL)
    assert may("PUT", "/bkt/k", WRITE_ALL)


def test_a_bucket_glob_covers_matching_names_and_case_counts() -> None:
    assert may("GET", "/train-1/k", READ_TRAIN)
    assert not may("GET", "/train/k", READ_TRAIN)
    assert not may("GET", "/Train-1/k", READ_TRAIN)
    assert not may("GET", "/xtrain-1/k", READ_TRAIN)


def test_a_tenants_bucket_takes_a_glob_with_a_tenant_or_a_grant_on_everything() -> None:
    for bucket, target, covered in [
        ("*", "/t:train/k", True), ("t:*", "/t:train/k", True), ("*:train", "/t%3Atrain/k", True),
        (":*", "/:train/k", True), ("t*", "/t:train/k", False), ("*n", "/t:train/k", False),
        ("train", "/:train/k", False), ("t:*", "/u:train/k", False), ("t:*", "/train/k", False),
        ("*", "/train/k", True),
    ]:  # fmt: skip
        assert may("GET", target, Grant(bucket, "", AccessLevel.READ)) is covered, (bucket, target)
    assert not may("GET", "/t:train/shards/1", Grant("*", "shards/", AccessLevel.READ))
    assert not may("HEAD", "/t:train", READ_TRAIN, READ_SHARDS)


def test_a_prefix_covers_the_keys_that_begin_with_it() -> None:
    assert may("GET", "/train/shards/1.tar", READ_SHARDS)
    assert may("GET", "/train/shards/a%0Ab", READ_SHARDS)
    assert not may("GET", "/train/shards", READ_SHARDS)
    assert not may("GET", "/train/other", READ_SHARDS)
    assert not may("GET", "/train/%2e%2e/shards/1", READ_SHARDS)


@pytest.mark.parametrize(
    ("query", "let_in"),
    [("list-type=2&prefix=shards/", True), ("prefix=shards/a", True), ("list-type=2", False), ("", False),
     ("prefix=shards", False), ("prefix=other", False), ("prefix=shards/&prefix=other", False), ("prefix=", False),
     ("prefix=shards/&acl", False), ("prefix=shards/&policy", False)],
)  # fmt: skip
def test_a_list_is_covered_when_every_key_it_can_show_is(query: str, let_in: bool) -> None:
    assert may("GET", f"/train?{query}", READ_SHARDS) is let_in


def test_any_grant_on_a_bucket_shows_that_it_is_there() -> None:
    assert may("HEAD", "/train", READ_SHARDS)
    assert may("GET", "/train?location", READ_SHARDS)
    assert not may("HEAD", "/other", READ_SHARDS)
    assert not may("GET", "/train?policy", READ_SHARDS)


def test_a_buckets_own_settings_take_a_grant_without_a_prefix() -> None:
    assert may("GET", "/train-1?policy", READ_TRAIN)
    assert not may("PUT", "/train?policy", WRITE_SHARDS)
    assert not may("DELETE", "/train", WRITE_SHARDS)
    assert may("DELETE", "/train", WRITE_ALL)


def test_list_buckets_takes_a_grant_on_all_names() -> None:
    assert may("GET", "/", READ_ALL)
    assert not may("GET", "/", READ_TRAIN)
    assert not may("GET", "/", Grant("*", "a", AccessLevel.WRITE))


def test_a_copy_needs_the_source_as_well() -> None:
    headers = ((COPY_FROM, "/secret/k"),)
    assert not may("PUT", "/train/shards/1", WRITE_SHARDS, headers=headers)
    assert may("PUT", "/train/shards/1", WRITE_SHARDS, Grant("secret", "", AccessLevel.READ), headers=headers)
    assert not may("PUT", "/train/shards/1", Grant("secret", "", AccessLevel.READ), headers=headers)


def test_a_rename_takes_the_source_away_and_so_needs_write_on_it() -> None:
    headers = (("x-amz-rename-source", "old"),)
    assert not may("PUT", "/train/shards/1", WRITE_SHARDS, Grant("train", "old", AccessLevel.READ), headers=headers)
    assert may("PUT", "/train/shards/1", WRITE_SHARDS, Grant("train", "old", AccessLevel.WRITE), headers=headers)


@pytest.mark.parametrize("target", ["/old/k", "old/k"])
def test_a_rename_is_covered_however_its_source_is_read(target: str) -> None:
    """The source may be read as a path in the bucket, or as a bucket and a key in it."""
    headers = (("x-amz-rename-source", target),)
    for grant in (Grant("old", "k", AccessLevel.WRITE), Grant("train", "old/k", AccessLevel.WRITE)):
        assert not may("PUT", "/train/shards/1", WRITE_SHARDS, grant, headers=headers)
    both = (Grant("old", "k", AccessLevel.WRITE), Grant("train", "old/k", AccessLevel.WRITE))
    assert may("PUT", "/train/shards/1", WRITE_SHARDS, *both, headers=headers)


@pytest.mark.parametrize("source", ["//secret/team/a", "arn:aws:s3:r:1:accesspoint/team/object/k", "t:secret/team/a"])
def test_a_source_in_no_plain_bucket_takes_a_grant_on_everything(source: str) -> None:
    headers = ((COPY_FROM, source),)
    assert not may("PUT", "/train/shards/1", WRITE_SHARDS, Grant("*", "team/", AccessLevel.READ), headers=headers)
    assert not may("PUT", "/train/shards/1", WRITE_SHARDS, Grant("*", "secret/", AccessLevel.READ), headers=headers)
    assert may("PUT", "/train/shards/1", WRITE_SHARDS, READ_ALL, headers=headers)


@pytest.mark.parametrize(
    "key",
    ["shards//../other", "shards//..//other/x", "shards/a//../../other", "shards/..\\other", "shards\\..\\..\\other",
     "shards/./../other", "shards/../..", "shards/..", "shards/a/\\../../../other", "/shards/../../shards/x"],
)  # fmt: skip
def test_no_reading_of_a_key_leaves_the_prefix(key: str) -> None:
    """Go's path.Clean, a browser's URL and Windows each resolve dots in their own way."""
    assert not may("GET", "/train/" + quote(key, safe="/"), READ_SHARDS)
    assert not may("GET", f"/train?prefix={quote(key, safe='')}", READ_SHARDS)
    assert not may("POST", "/train?delete", WRITE_SHARDS, keys=[key])


@pytest.mark.parametrize(
    "key", ["../x", "a/../../x", "./x", "//x", "a/../b", "x/..", "..", "a/.", "x..", "a\\..\\..\\x"]
)
def test_a_key_that_may_leave_its_bucket_takes_a_grant_on_all_buckets(key: str) -> None:
    whole_bucket = Grant("train", "", AccessLevel.WRITE)
    leaves = key in ("../x", "a/../../x", "..", "a\\..\\..\\x")
    for method in ("GET", "PUT", "DELETE"):
        target = "/train/" + quote(key, safe="/")
        assert may(method, target, WRITE_ALL)
        assert may(method, target, whole_bucket) is not leaves
        assert not may(method, target, WRITE_SHARDS)
        missing = missing_grant(Client("c", "AK", (whole_bucket,)), classify(method, target, ()))
        assert missing is None or "dots" in missing
    assert may("GET", "/train/" + quote(key, safe="/"), READ_ALL)


@pytest.mark.parametrize("target", ["/admin/user", "/minio/admin/v3/info", "/minio", "/auth/v1", "/swift/v1/c/o"])
def test_a_path_that_is_no_bucket_takes_its_own_name_or_a_grant_on_everything(target: str) -> None:
    name = target.split("/")[1]
    for grant in (READ_ALL, Grant("[ams]*", "", AccessLevel.WRITE), Grant("*", target[1:2], AccessLevel.WRITE)):
        assert not may("GET", target, grant)
        assert not may("HEAD", target, grant)
    assert may("GET", target, WRITE_ALL)
    assert may("GET", target, Grant(name, "", AccessLevel.READ))


def test_a_call_to_the_service_that_is_no_listing_takes_write_on_everything() -> None:
    assert may("GET", "/?max-buckets=3&prefix=a", READ_ALL)
    for method, target in [("POST", "/"), ("POST", "/?Action=CreateUser"), ("GET", "/?events=a"), ("PUT", "/")]:
        assert not may(method, target, READ_ALL)
        assert may(method, target, WRITE_ALL)


@pytest.mark.parametrize(
    "key", ["shards/a..b", "shards/...", "shards//x", "shards/a/../b", "shards/./b", "shards/a\\b"]
)
def test_harmless_dots_and_slashes_are_covered(key: str) -> None:
    assert may("GET", "/train/" + quote(key, safe="/"), READ_SHARDS)


def test_delete_objects_is_judged_by_each_of_its_keys() -> None:
    assert may("POST", "/train?delete", WRITE_SHARDS, keys=["shards/1", "shards/2"])
    assert not may("POST", "/train?delete", WRITE_SHARDS, keys=["shards/1", "other"])
    assert not may("POST", "/train?delete", READ_ALL, keys=["shards/1"])


def test_delete_objects_with_keys_unknown_takes_the_whole_bucket() -> None:
    assert not may("POST", "/train?delete", WRITE_SHARDS, keys=None)
    assert may("POST", "/train?delete", WRITE_ALL, keys=None)


def test_a_post_form_takes_the_whole_bucket_since_its_key_is_in_the_body() -> None:
    assert not may("POST", "/train", WRITE_SHARDS)
    assert may("POST", "/train", WRITE_ALL)
