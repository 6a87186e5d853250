"""`aws s3` beyond single objects: sync of directories both ways, listings for people, and presigned URLs."""

from __future__ import annotations

import filecmp
from typing import TYPE_CHECKING

from tests.support.client_access import Access, require, run
from tests.support.proxy import ANY_KEYS, Proxy
from tests.support.s3_clients import aws

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bucket import Bucket

NAME = "clients-awscli"
# The second file is sent and fetched in parts.
FILES = {"a.tar": 1000, "deep/er/b c.tar": 9_000_001}
# This file goes through the proxy alone. At SeaweedFS it makes the whole sync hang, more often than not: aws waits for
# a 100 before it sends its empty body, Go's server (rightly) answers 200 at once, and awscli 1.46.2 then misreads the
# next answer on that connection. `test_an_empty_body_that_expects_100_continue_gets_it_too` shows why it works here.
EMPTY = {"empty": 0}


def make(directory: Path, files: dict[str, int]) -> None:
    for name, size in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((bytes(range(251)) * (size // 251 + 1))[:size])


def test_directories_listings_and_presigned_urls_are_the_same_both_ways(bucket: Bucket, tmp_path: Path) -> None:
    require((), ("aws", "curl"))
    bucket.make_bucket(NAME)
    with Proxy(bucket) as proxy:
        direct = Access(bucket.endpoint, (bucket.access_key, bucket.secret_key), tmp_path)
        through = Access(proxy.endpoint, ANY_KEYS, tmp_path)

        def s3(access: Access, *words: str) -> str:
            return aws(access, "s3", *words).decode()

        for writer, reader, prefix, files in (
            (direct, through, "theirs", FILES),
            (through, direct, "ours", FILES | EMPTY),
        ):
            url, source, into = f"s3://{NAME}/{prefix}", tmp_path / f"{prefix}-source", tmp_path / prefix
            make(source, files)
            s3(writer, "sync", "--only-show-errors", str(source), url)
            s3(reader, "sync", "--only-show-errors", url, str(into))
            assert filecmp.cmpfiles(source, into, files, shallow=False) == (list(files), [], [])
        # Nothing has changed, so nothing is sent: sizes and times of the listing are the bucket's.
        assert s3(through, "sync", f"s3://{NAME}/theirs", str(tmp_path / "theirs")) == ""
        listed = s3(through, "ls", "--recursive", f"s3://{NAME}/")
        assert listed == s3(direct, "ls", "--recursive", f"s3://{NAME}/")
        assert len(listed.splitlines()) == 2 * len(FILES) + len(EMPTY)

        shared = s3(through, "presign", f"s3://{NAME}/theirs/deep/er/b c.tar").strip()
        assert shared.startswith(proxy.endpoint)
        assert run(through, "curl", "--silent", "--fail", shared) == (tmp_path / "theirs/deep/er/b c.tar").read_bytes()

        s3(through, "rm", "--recursive", "--only-show-errors", f"s3://{NAME}/theirs")
        assert "theirs" not in s3(direct, "ls", "--recursive", f"s3://{NAME}/")
