"""The footnotes of the demo's table."""

from __future__ import annotations

from tests.bench.demo import Row, footnotes


def rows(*waits_s: float) -> list[Row]:
    return [
        Row(f"({name})", 1, samples=6000, first_batch_s=1.0, data_wait_s=wait_s, samples_per_s=6000 / (20 + wait_s),
            digest="", bucket_gets=0, bucket_bytes=0)
        for name, wait_s in zip("abcd", waits_s, strict=True)
    ]  # fmt: skip


def test_the_remaining_wait_is_given_as_a_part_of_the_wait_without_the_proxy() -> None:
    assert "straight from the bucket: 5.0% (goal: under 10%)" in footnotes(rows(10.2, 1.0, 0.7, 0.2), "curl")
    assert "nothing to compare" in footnotes(rows(0.2, 0.2, 0.2, 0.2), "curl")


def test_a_footnote_says_that_the_machine_lacks_the_cpu_for_the_job() -> None:
    assert "even in (d) it waited 17% of the time" in footnotes(rows(8.0, 12.0, 7.0, 4.0), "s5cmd")
    assert "lacks the CPU" not in footnotes(rows(8.0, 1.0, 0.5, 0.5), "s5cmd")
