"""The dates of a bucket, as the doctor reads them."""

from __future__ import annotations

import pytest

from outrider.cli.doctor.origin_checks import _seconds_of


@pytest.mark.parametrize("date", [None, "", "now", "Fri, 01 Jan 2020 00:00:00 +99999999999999999999"])
def test_a_date_that_is_none_is_no_time(date: str | None) -> None:
    assert _seconds_of(date) is None


def test_a_date_is_read_as_utc() -> None:
    assert (
        _seconds_of("Fri, 24 May 2013 00:00:00 GMT") == _seconds_of("Fri, 24 May 2013 00:00:00 -0000") == 1369353600.0
    )
