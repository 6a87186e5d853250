"""`outrider doctor s3://BUCKET/PREFIX`: each oddity of the bucket's replies is named, and nothing of AWS's is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from outrider.cli.doctor.bucket_checks import bucket_findings
from outrider.cli.doctor.finding import Diagnosis, Level
from outrider.cli.doctor.origin_checks import opened_by
from outrider.core.auth.sigv4 import Credentials
from outrider.core.origin.oddities import Oddity
from tests.support.bucket import REGION
from tests.support.odd_origin import OddOrigin
from tests.support.oddities import AWS, ContentRange, ETag, HeadLength, IfMatch, Oddities

if TYPE_CHECKING:
    from tests.support.bucket import Bucket


async def found(oddities: Oddities, url: str = "s3://train/shards/") -> list[Diagnosis]:
    async with OddOrigin(oddities).serving() as origin:
        for number in range(4):
            origin.put("train", f"shards/{number}.tar", bytes(2000 + number))
        async with opened_by(origin.endpoint, REGION, Credentials("key", "secret")) as asked:
            findings = [finding async for finding in bucket_findings(asked, url)]
        assert origin.sent_bytes < 20_000
        return findings


async def test_a_bucket_like_aws_is_well() -> None:
    (finding,) = await found(AWS)
    assert finding.level is Level.OK
    assert "answers as AWS S3 does" in finding.text


@pytest.mark.parametrize(
    ("oddities", "kinds", "level"),
    [
        (Oddities(range_status=200), {Oddity.RANGE_AS_200}, Level.OK),
        (Oddities(ignores_range=True), {Oddity.RANGE_IGNORED}, Level.OK),
        (Oddities(content_range=ContentRange.NO_TOTAL), {Oddity.RANGE_UNPROVED}, Level.WARN),
        (Oddities(checksum_mode=400), {Oddity.CHECKSUM_MODE_REFUSED}, Level.OK),
        (Oddities(if_match=IfMatch.REFUSED), {Oddity.IF_MATCH_REFUSED}, Level.OK),
        (Oddities(if_match=IfMatch.FAILS), {Oddity.IF_MATCH_FAILS}, Level.OK),
        (Oddities(head_length=HeadLength.MISSING), {Oddity.HEAD_WITHOUT_SIZE}, Level.OK),
        (Oddities(head_length=HeadLength.ZERO), {Oddity.HEAD_SIZE_ZERO}, Level.OK),
        (Oddities(head_status=405), {Oddity.HEAD_REFUSED}, Level.OK),
        (Oddities(etag=ETag.WEAK), {Oddity.ETAG_WEAK}, Level.WARN),
        (Oddities(etag=ETag.CHANGING), {Oddity.ETAG_CHANGES}, Level.WARN),
        (Oddities(etag=ETag.CONSTANT), {Oddity.ETAG_SHARED}, Level.WARN),
        (Oddities(list_ignores_encoding=True), {Oddity.LIST_NOT_ENCODED}, Level.OK),
    ],
    ids=str,
)
async def test_each_oddity_is_named(oddities: Oddities, kinds: set[Oddity], level: Level) -> None:
    findings = await found(oddities)
    named = {kind for kind in Oddity if any(kind.value in finding.text for finding in findings)}
    assert named >= kinds
    assert max(finding.level is Level.WARN for finding in findings) == (level is Level.WARN)


async def test_a_list_without_its_end_is_reported() -> None:
    findings = await found(Oddities(list_page=2, list_without_token=True))
    assert all(finding.level is not Level.FAIL for finding in findings)
    assert any(Oddity.LIST_CUT_SHORT.value in finding.text for finding in findings)


async def test_a_bucket_without_objects_has_nothing_to_look_at() -> None:
    (finding,) = await found(AWS, "s3://train/nothing/")
    assert finding.level is Level.WARN


async def test_a_bucket_that_is_not_there_is_reported_in_the_stores_own_words(bucket: Bucket) -> None:
    async with opened_by(bucket.endpoint, REGION, Credentials(bucket.access_key, bucket.secret_key)) as asked:
        (finding,) = [finding async for finding in bucket_findings(asked, "s3://no-such-bucket/train/")]
    assert finding.level is Level.FAIL
    assert "404 NoSuchBucket: The specified bucket does not exist" in finding.text
    assert "name of the bucket" in finding.do


async def test_a_real_bucket_is_well(bucket: Bucket) -> None:
    bucket.make_bucket("looked-at")
    bucket.client().put_object(Bucket="looked-at", Key="a.bin", Body=bytes(5000))
    async with opened_by(bucket.endpoint, REGION, Credentials(bucket.access_key, bucket.secret_key)) as asked:
        findings = [finding async for finding in bucket_findings(asked, "s3://looked-at")]
    assert [finding.level for finding in findings] == [Level.OK], findings
