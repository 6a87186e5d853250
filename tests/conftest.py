"""What many tests stand on: one real bucket for the whole run, and calm weather before it for each test."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support.bucket import Bucket
from tests.support.certificate import Certificate, certify
from tests.support.simulator import Simulator
from tests.support.trials import SCALE, Trials

if TYPE_CHECKING:
    from collections.abc import Iterator

TRIED = Trials()

# How long an example takes is the machine's affair: with Hypothesis' usual 0.2 s, tests fail at times on a busy one.
# The same examples each time in `make test`, new ones in a long run.
settings.register_profile(
    "outrider", deadline=None, derandomize=SCALE == 1, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("outrider")


def pytest_configure() -> None:
    """What is started with nohup, or in the background of a script, ignores these, and so do its children: those of the
    tests are told to end by them."""
    for number, usual in (
        (signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL),
    ):  # fmt: skip
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.fixture(scope="session")
def bucket() -> Iterator[Bucket]:
    """SeaweedFS, shared by all tests: use a bucket or a key prefix of your own."""
    with Bucket() as running:
        yield running


@pytest.fixture
def simulator(bucket: Bucket) -> Iterator[Simulator]:
    with Simulator(bucket.address, keys=(bucket.access_key, bucket.secret_key)) as running:
        yield running


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """For an https server on 127.0.0.1."""
    return certify(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def trials() -> Trials:
    """What this run tried, for the table of docs/reliability.md."""
    return TRIED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table, in a long run."""
    if SCALE > 1 and TRIED.rows:
        terminalreporter.section("tried")
        for line in TRIED.table():
            terminalreporter.write_line(line)
