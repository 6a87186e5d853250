"""The rest of prefetch after failures: it doubles with each one, up to a bound, and begins anew after a success."""

from __future__ import annotations

from outrider.core.ahead.prefetch_pause import PrefetchPause


def test_each_failure_doubles_the_pause_and_a_success_ends_that() -> None:
    pause, now, lengths = PrefetchPause(), 100.0, []
    for _ in range(8):
        pause.failed(now)
        # This one was under way with it.
        pause.failed(now + 0.01)
        lengths.append(round(pause.until - now, 6))
        now = pause.until
    assert lengths == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    pause.succeeded()
    pause.failed(now)
    assert round(pause.until - now, 6) == 0.1
