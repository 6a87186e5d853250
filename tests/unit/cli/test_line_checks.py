"""The doctor's check of the line: what one core carries, and whether the cores are the limit."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.cli.doctor.finding import Level
from outrider.cli.doctor.line_checks import SAMPLE_BYTES, judged, line_finding
from outrider.core.model import ObjectRef
from outrider.metrics import Metrics
from tests.contract.test_origin import Keys
from tests.support.bucket import REGION
from tests.support.tls import TlsFront

if TYPE_CHECKING:
    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator
    from tests.support.tls import Certificate


@pytest.mark.parametrize(
    ("took_s", "cpu_s", "cores", "level", "text"),
    [
        (1.0, 0.5, 2, Level.OK, "100 MB/s by 4 GETs at once; one core carries 200 MB/s, and 2 may be used"),
        (1.0, 1.7, 2, Level.WARN, "one core carries 59 MB/s, and 2 may be used: they are the limit, and not the line"),
        (1.0, 0.9, 1, Level.WARN, "they are the limit"),
        (1.0, 0.0, 1, Level.OK, "100 MB/s by 4 GETs at once"),
    ],
)
def test_the_cores_are_the_limit_where_they_are_busy(
    took_s: float, cpu_s: float, cores: int, level: Level, text: str
) -> None:
    found = judged(100_000_000, took_s, cpu_s, cores)
    assert found.level is level
    assert text in found.text
    assert bool(found.do) is (level is Level.WARN)


@pytest.mark.parametrize("is_secure", [False, True])
async def test_the_line_is_measured_as_a_fill_reads(
    is_secure: bool, bucket: Bucket, simulator: Simulator, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.make_bucket("doctor-line")
    client = bucket.client()
    client.put_object(Bucket="doctor-line", Key="k", Body=bytes(6_000_000))
    client.close()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.authority))
    with TlsFront(("127.0.0.1", simulator.port), certificate) as front:
        endpoint = front.endpoint if is_secure else simulator.endpoint
        metrics = Metrics()
        origin = HttpOrigin(endpoint, REGION, Keys(bucket), metrics, time.time, connections=4, receivers=1)
        await origin.open()
        found = await line_finding(origin, ObjectRef("doctor-line", "k"), 6_000_000, 64)
        await origin.close()
        assert (metrics.value("outrider_origin_bytes_total"), found.level) == (6_000_000, Level.OK)
    assert re.fullmatch(r"\d+ MB/s by 4 GETs at once; one core carries \d+ MB/s, and 64 may be used", found.text)
    assert SAMPLE_BYTES > 6_000_000
