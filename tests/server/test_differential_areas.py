"""Differential test of each area of S3's API: one history, sent to the bucket and through the proxy in both modes.

Three buckets take the same steps. Each read is sent twice, the second time to a warm cache.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from tests.server.areas import AREAS, Step, tags
from tests.server.differential import Requester, difference
from tests.support.forms import encoded, policy, post, signed
from tests.support.proxy import ANY_KEYS, Keys, Proxy
from tests.support.rawhttp import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

KEYS: Keys = ("AREAS", "areas/secret")
# These values differ from bucket to bucket and from moment to moment.
_MOMENTS = re.compile(
    rb"<(LastModified|RequestId|HostId|UploadId|VersionId|VersionIdMarker|NextVersionIdMarker|Initiated|CreationDate)>"
    rb"[^<]*<"
)
_VERSION = "x-amz-version-id"
_MOMENT_HEADERS = (
    _VERSION, "last-modified", "x-amz-copy-source-version-id", "seaweed-x-amz-version-id",
    "seaweed-x-amz-noncurrent-since-ns",
)  # fmt: skip


class Side:
    """One path to a bucket of its own, with the values that earlier answers gave (ETags, version ids, upload ids)."""

    def __init__(self, endpoint: str, keys: Keys, bucket: str) -> None:
        self.bucket = bucket
        self.keys = keys
        self.requester = Requester(endpoint, keys)
        host, _, port = endpoint.rpartition("//")[2].partition(":")
        self.address = (host, int(port))
        self.values: dict[str, str] = {}

    def take(self, step: Step) -> Answer:
        query = self._filled(step.query, escaped=True)
        headers = [(name, self._filled(value)) for name, value in step.headers]
        body = self._filled(step.body).encode() if isinstance(step.body, str) else step.body
        answer = self.requester.ask(
            step.method, self.bucket, step.key, query, headers,
            body=body, presigned=step.presigned, unsigned=not step.signed,
        )  # fmt: skip
        self._learn(step, answer)
        return self._plain(answer)

    def _filled(self, text: str, *, escaped: bool = False) -> str:
        for name, value in {**self.values, "bucket": self.bucket}.items():
            text = text.replace("{" + name + "}", quote(value, safe="") if escaped else value)
        return text

    def _learn(self, step: Step, answer: Answer) -> None:
        if (etag := answer.headers.get("etag")) is not None:
            self.values["etag"] = etag
            if (part := re.match(r"partNumber=(\d+)&uploadId", step.query)) is not None:
                self.values[f"etag{part[1]}"] = etag
        for name, header in (("version", _VERSION), ("modified", "last-modified")):
            if header in answer.headers:
                self.values[name] = answer.headers[header]
        if answer.body.startswith(b"<?xml"):
            root = ElementTree.fromstring(answer.body)
            for name, tag in (("upload", "UploadId"), ("token", "NextContinuationToken")):
                if (value := root.findtext("{*}" + tag)) is not None:
                    self.values[name] = value
            if "partNumber=" in step.query and (copied := root.findtext("{*}ETag")) is not None:
                self.values["etag" + step.query[len("partNumber=")]] = copied

    def _plain(self, answer: Answer) -> Answer:
        body = _MOMENTS.sub(rb"<\1><", answer.body.replace(self.bucket.encode(), b"BUCKET"))
        headers = {name: "a moment" if name in _MOMENT_HEADERS else value for name, value in answer.headers.items()}
        if body != answer.body:
            headers.pop("content-length", None)
        return replace(answer, body=body, headers=headers)


@pytest.fixture(scope="module")
def proxies(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Proxy]]:
    clients = tmp_path_factory.mktemp("areas") / "clients.toml"
    clients.write_text(
        f'[[client]]\naccess_key = "{KEYS[0]}"\nsecret_key = "{KEYS[1]}"\n'
        'grants = [{bucket = "*", access = "write"}]\n'
        '[[client]]\nanonymous = true\ngrants = [{bucket = "*", access = "write"}]\n'
    )
    loopback_mode = Proxy(bucket, block_size="64KiB", cross_site=True)
    with loopback_mode as loopback, Proxy(bucket, auth="sigv4", clients=clients, cross_site=True) as strict:
        yield {"loopback": loopback, "sigv4": strict}


@contextmanager
def sides(bucket: Bucket, proxies: dict[str, Proxy], area: str) -> Iterator[tuple[Side, dict[str, Side]]]:
    name = re.sub("[^a-z0-9]", "-", area)
    names = [bucket.make_bucket(f"areas-{name}-{letter}") for letter in "abc"]
    direct = Side(bucket.endpoint, (bucket.access_key, bucket.secret_key), names[0])
    through = {
        "loopback": Side(proxies["loopback"].endpoint, ANY_KEYS, names[1]),
        "sigv4": Side(proxies["sigv4"].endpoint, KEYS, names[2]),
    }
    try:
        yield direct, through
    finally:
        for side in (direct, *through.values()):
            side.requester.close()


@pytest.mark.parametrize("area", AREAS)
def test_an_area_of_the_api_is_the_same_directly_and_through_the_proxy(
    bucket: Bucket, proxies: dict[str, Proxy], area: str
) -> None:
    found = []
    with sides(bucket, proxies, area) as (direct, through):
        if "anonymous" in area:  # loopback mode signs each request
            del through["loopback"]
        for number, step in enumerate(AREAS[area]):
            wanted = direct.take(step)
            twice = step.method in ("GET", "HEAD") and "{token}" not in step.query
            for mode, side in through.items():
                for when in ("first", "again") if twice else ("",):
                    differs = difference(wanted, side.take(step))
                    if differs is not None:
                        found.append(f"{mode} {when}, step {number}, {step}: {differs}")
    assert not found, "\n".join(found)


FORMS: dict[str, tuple[dict[str, str], bytes]] = {
    "plain": ({"key": "f"}, b"body"),
    "empty": ({"key": "f"}, b""),
    "200": ({"key": "f", "success_action_status": "200"}, b"body"),
    "201": ({"key": "f", "success_action_status": "201"}, b"body"),
    "an unknown status": ({"key": "f", "success_action_status": "404"}, b"body"),
    "a redirect": ({"key": "f", "success_action_redirect": "http://127.0.0.1:1/done?a=b"}, b"body"),
    "headers": ({"key": "f", "Content-Type": "a/b", "x-amz-meta-a": "b", "acl": "private"}, b"x"),
    "a file's name": ({"key": "d/${filename}"}, b"body"),
    "odd characters": ({"key": "é +%&=?#/🚀"}, b"body"),
    "ignored": ({"key": "f", "x-ignore-me": "b"}, b"body"),
    "tags": ({"key": "f", "tagging": tags(("a", "b"))}, b"x"),
}  # fmt: skip


# The signature is verified before anything else of the form is read.
@pytest.mark.parametrize(("case", "version"), [*((case, "s3v4") for case in FORMS), ("plain", "s3"), ("headers", "s3")])
def test_a_form_upload_is_the_same_directly_and_through_the_proxy(
    bucket: Bucket, proxies: dict[str, Proxy], case: str, version: str
) -> None:
    fields, file = FORMS[case]
    key = fields["key"].replace("${filename}", "f.bin")

    def outcome(side: Side) -> list[Answer]:
        conditions = [{"bucket": side.bucket}, ["starts-with", "$key", ""]]
        conditions += [{name: value} for name, value in fields.items() if name not in ("key", "x-ignore-me")]
        made = signed(fields, policy(conditions), side.keys, version)
        answer = post(side.address, side.bucket, encoded(made.items(), file))
        headers = {
            name: value.replace(side.bucket, "BUCKET").replace(side.requester.endpoint, "ENDPOINT")
            for name, value in answer.headers.items()
        }
        body = answer.body.replace(side.bucket.encode(), b"BUCKET")
        stored = [
            side.take(Step(method, key, query)) for method, query in (("GET", ""), ("HEAD", ""), ("GET", "tagging="))
        ]
        return [replace(answer, headers=headers, body=body), *stored]

    with sides(bucket, proxies, "forms") as (direct, through):
        wanted = outcome(direct)
        for mode, side in through.items():
            differences = [difference(expected, other) for expected, other in zip(wanted, outcome(side), strict=True)]
            assert differences == [None] * 4, mode
