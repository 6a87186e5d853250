"""What `aws s3` does beyond single objects: directories both ways, listings as people read them, and shared URLs."""

from __future__ import annotations

import filecmp
from typing import TYPE_CHECKING

from tests.support.child import program
from tests.support.door import Door, require, run
from tests.support.proxy import ANY_KEYS, Proxy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bucket import Bucket

NAME = "clients-awscli"
# The second is sent and fetched in parts. Still to be found out: a sync to SeaweedFS itself hangs now and then.
FILES = {"a.tar": 1000, "deep/er/b c.tar": 9_000_001}


def test_directories_listings_and_presigned_urls_are_the_same_both_ways(bucket: Bucket, tmp_path: Path) -> None:
    require((), ("aws", "curl"))
    bucket.make_bucket(NAME)
    source = tmp_path / "source"
    for name, size in FILES.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((bytes(range(251)) * (size // 251 + 1))[:size])
    with Proxy(bucket) as proxy:
        direct = Door(bucket.endpoint, (bucket.access_key, bucket.secret_key), tmp_path)
        through = Door(proxy.endpoint, ANY_KEYS, tmp_path)

        def s3(door: Door, *words: str) -> str:
            return run(door, program("aws"), "s3", *words).decode()

        for writer, reader, prefix in ((direct, through, "theirs"), (through, direct, "ours")):
            url, into = f"s3://{NAME}/{prefix}", tmp_path / prefix
            s3(writer, "sync", "--only-show-errors", str(source), url)
            s3(reader, "sync", "--only-show-errors", url, str(into))
            _, different, unreadable = filecmp.cmpfiles(source, into, FILES, shallow=False)
            assert not different
            assert not unreadable
        # Nothing has changed, so there is nothing to send: sizes and times of the listing are the bucket's.
        assert s3(through, "sync", f"s3://{NAME}/theirs", str(tmp_path / "theirs")) == ""
        listed = s3(through, "ls", "--recursive", f"s3://{NAME}/")
        assert listed == s3(direct, "ls", "--recursive", f"s3://{NAME}/")
        assert len(listed.splitlines()) == 2 * len(FILES)

        shared = s3(through, "presign", f"s3://{NAME}/theirs/deep/er/b c.tar").strip()
        assert shared.startswith(proxy.endpoint)
        assert run(through, "curl", "--silent", "--fail", shared) == (source / "deep/er/b c.tar").read_bytes()

        s3(through, "rm", "--recursive", "--only-show-errors", f"s3://{NAME}/theirs")
        assert "theirs" not in s3(direct, "ls", "--recursive", f"s3://{NAME}/")
