"""Hypothesis settings of the fuzz tests: fixed examples in `make test`, new and more examples in `make soak`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.support.trials import SCALE, rounds


def fuzzing(short: int) -> settings:
    """A decorator: `short` examples in `make test`."""
    return settings(
        max_examples=rounds(short), derandomize=SCALE == 1, deadline=None, database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
