"""WebDataset reads a shard by each form of URL that users write, directly and through the proxy: the same samples."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tarfile
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from tests.support.bucket import Bucket
from tests.support.child import program
from tests.support.client_access import Access
from tests.support.later import Later
from tests.support.proxy import ANY_KEYS, Proxy
from tests.support.s3_clients import Boto3, PresignedV2, PresignedV4, S3Fs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAME = "clients-webdataset"
wds = Later("webdataset")
SAMPLES = 40
SAMPLE_BYTES = 150_001

Samples = list[tuple[str, str]]
Stages = list[Any]


def sample(number: int) -> bytes:
    return (bytes(range(251)) * (SAMPLE_BYTES // 251 + 2))[number : number + SAMPLE_BYTES]


def shard() -> bytes:
    """6 MB: more than one read of any opener."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as tar:
        for number in range(SAMPLES):
            member = tarfile.TarInfo(f"{number:04}.bin")
            member.size = SAMPLE_BYTES
            tar.addfile(member, io.BytesIO(sample(number)))
    return into.getvalue()


WANTED: Samples = [(f"{number:04}", hashlib.sha256(sample(number)).hexdigest()) for number in range(SAMPLES)]


def samples(*stages: Any) -> Samples:
    """Key and digest of each sample, in the order of the shard."""
    return [
        (each["__key__"], hashlib.sha256(each["bin"]).hexdigest())
        for each in wds.DataPipeline(*stages)
        if "bin" in each
    ]


def by_url(url: str) -> Samples:
    return samples(wds.SimpleShardList([url]), wds.tarfile_to_samples(handler=wds.reraise_exception))


def by_opener(opened: Callable[[str], Any], key: str) -> Samples:
    """For URLs that `gopen` cannot open: a pipeline stage that opens them, as the examples of fsspec and boto3 do."""

    def streams(shards: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for each in shards:
            with opened(each["url"]) as stream:
                yield {**each, "stream": stream}

    expanded = wds.tariterators.tar_file_expander
    grouped = wds.tariterators.group_by_keys
    return samples(wds.SimpleShardList([key]), streams, expanded, grouped)


def s5cmd_cat(access: Access, key: str) -> Samples:
    return by_url(f"pipe:{program('s5cmd')} --retry-count 0 cat s3://{NAME}/{key}")


def aws_cp(access: Access, key: str) -> Samples:
    return by_url(f"pipe:{program('aws')} s3 cp s3://{NAME}/{key} -")


def pipe_curl(access: Access, key: str) -> Samples:
    with contextlib.closing(PresignedV4(access)) as signer:
        return by_url(f"pipe:curl -s -f -L '{signer.url('get_object', Bucket=NAME, Key=key)}'")


def plain_url(access: Access, key: str) -> Samples:
    # The URL that boto3 signs by default: SigV2.
    with contextlib.closing(PresignedV2(access)) as signer:
        return by_url(signer.url("get_object", Bucket=NAME, Key=key))


def fsspec_opener(access: Access, key: str) -> Samples:
    with contextlib.closing(S3Fs(access)) as client:
        return by_opener(lambda url: client.fs.open(f"{NAME}/{url}", "rb"), key)


def boto3_opener(access: Access, key: str) -> Samples:
    with contextlib.closing(Boto3(access)) as client:
        return by_opener(lambda url: contextlib.closing(client.s3.get_object(Bucket=NAME, Key=url)["Body"]), key)


FORMS = (s5cmd_cat, aws_cp, pipe_curl, plain_url, fsspec_opener, boto3_opener)


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    with Proxy(bucket) as running:
        yield running


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_shard_gives_the_same_samples_directly_cold_and_warm(
    form: Callable[[Access, str], Samples], bucket: Bucket, proxy: Proxy, tmp_path: Path
) -> None:
    key = f"{form.__name__}.tar"
    client = bucket.client()
    client.put_object(Bucket=bucket.make_bucket(NAME), Key=key, Body=shard())
    client.close()
    accesses = {
        "direct": Access(bucket.endpoint, (bucket.access_key, bucket.secret_key), tmp_path),
        "cold": Access(proxy.endpoint, ANY_KEYS, tmp_path),
        "warm": Access(proxy.endpoint, ANY_KEYS, tmp_path),
    }
    for state, access in accesses.items():
        proxy.settle()
        sent = proxy.metric("outrider_origin_bytes_total")
        # A pipe's command finds the endpoint where a training job's would: in the environment.
        with patch.dict(os.environ, access.environment()):
            assert form(access, key) == WANTED, state
    proxy.settle()
    assert proxy.metric("outrider_origin_bytes_total") == sent, "a warm epoch takes nothing from the bucket"
