"""The demo where something is missing: the time, or torch."""

from __future__ import annotations

import os
import sys

import pytest

from tests.bench import demo
from tests.support.conditions import Counts


def test_an_epoch_that_takes_too_long_is_reported_with_the_bytes_received() -> None:
    counts = Counts({"GET": 7}, body_bytes=123_000_000, request_body_bytes=0, concurrent_max=1, connections=1)
    text = demo.overdue("b", counts, 756_000_000, "(it has printed nothing)")
    assert "an epoch of run b took over 120 s" in text
    assert "answered 7 GETs with 123 MB; the dataset has 756 MB" in text
    assert text.endswith("(it has printed nothing)")


@pytest.mark.parametrize(("words", "objects"), [((), ()), (("--real",), ()), (("--short",), ("--objects", "4"))])
def test_without_torch_an_emulated_job_reads(
    words: tuple[str, ...], objects: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []

    def execv(path: str, argv: list[str]) -> None:
        became.append(argv)
        raise SystemExit

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(sys, "argv", ["demo", *words])
    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(SystemExit):
        demo.main()
    assert became == [[sys.executable, "-m", "outrider", "demo", *objects]]
