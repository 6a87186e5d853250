"""The ground of many tests: one real bucket for the whole run, and no faults before it for each test."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from outrider.adapters.process.system import JsonLines
from tests.support.bucket import Bucket
from tests.support.simulator import Simulator
from tests.support.tls import Certificate, certify
from tests.support.trials import SCALE, Trials

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

TRIED = Trials()
SECONDS: defaultdict[str, float] = defaultdict(float)
CACHED_SECONDS = "outrider/seconds"
# For a first run, of the longest files only: how they compare.
USUAL_SECONDS = {
    "tests/server/test_docs.py": 60.0,
    "tests/clients/test_contract.py": 55.0,
    "tests/unit/ahead/order/test_order_search.py": 45.0,
    "tests/server/test_image.py": 45.0,
    "tests/trust/test_stop_under_load.py": 35.0,
    "tests/trust/test_cluster_faults.py": 35.0,
    "tests/unit/ahead/order/test_webdataset_shuffle.py": 30.0,
    "tests/server/test_batches.py": 30.0,
    "tests/trust/test_cluster_members_come_and_go.py": 30.0,
    "tests/trust/test_disk_faults.py": 30.0,
    "tests/server/test_prefetch.py": 30.0,
    "tests/server/test_sdk_batches.py": 30.0,
    "tests/server/test_differential_areas.py": 25.0,
    "tests/trust/test_crowds_and_slow_clients.py": 25.0,
    "tests/trust/test_histories.py": 25.0,
    "tests/server/test_dashboard.py": 25.0,
    "tests/server/test_benchmark_harness.py": 25.0,
    "tests/clients/test_streaming.py": 25.0,
    "tests/server/test_mount.py": 25.0,
    "tests/contract/test_receivers.py": 25.0,
    "tests/engine/test_cancelled_requests.py": 20.0,
    "tests/trust/test_origin_faults.py": 20.0,
    "tests/unit/cache/test_index_memory.py": 20.0,
    "tests/unit/ahead/order/test_same_order.py": 20.0,
    "tests/unit/simulator/test_cluster.py": 15.0,
    "tests/trust/test_security_secrets.py": 15.0,
    "tests/trust/test_cluster_network.py": 15.0,
    "tests/unit/ahead/order/test_shared_epoch.py": 15.0,
    "tests/server/test_run.py": 15.0,
    "tests/unit/ahead/test_planner_announced.py": 15.0,
    "tests/trust/test_sigkill_and_power_loss.py": 15.0,
    "tests/server/test_warm_pin_evict_commands.py": 15.0,
}

# How long an example takes is the machine's affair: with Hypothesis' usual 0.2 s, tests fail at times on a busy one.
# The same examples each time in `make test`, new ones in a long run.
settings.register_profile(
    "outrider",
    deadline=None,
    derandomize=SCALE == 1,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("OUTRIDER_TEST_EXAMPLES", "40" if SCALE == 1 else "100")),
)
settings.load_profile("outrider")


def pytest_configure() -> None:
    # With these variables each of a thousand proxies would read all certificates, 20 ms of CPU, for a bucket on http.
    os.environ.pop("AWS_CA_BUNDLE", None)
    if bundle := os.environ.pop("REQUESTS_CA_BUNDLE", None):
        os.environ.setdefault("PIP_CERT", bundle)
    restore_signals()


def restore_signals() -> None:
    """A process that is started with nohup, or in the background of a script, ignores these signals, and so do its
    children. The children of the tests are ended by them."""
    for number, usual in (
        (signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL),
    ):  # fmt: skip
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_sessionstart(session: pytest.Session) -> None:
    """The report of a failed test shows log lines with their fields: why a reply was cut stands in one of them."""
    plugin: Any = session.config.pluginmanager.get_plugin("logging-plugin")
    plugin.report_handler.setFormatter(JsonLines())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports and collection make half a million objects that stay until the end. No garbage collection looks for
    cycles among them, neither while they are made nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that take long come first, so that the processes which share the files out end together."""
    seconds = {**USUAL_SECONDS, **dict(known_seconds(config))}
    for item in items if config.option.markexpr else []:
        if is_for_soak(item.path):
            item.add_marker("soak")
    items.sort(key=lambda item: -seconds.get(file_of(item.nodeid), 0.0))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m soak` and `-m lowest` import no file without such a test: what others need may not be installed."""
    has_mark = HAS_MARK.get(config.option.markexpr)
    if has_mark is None or not collection_path.name.startswith("test_") or has_mark(collection_path):
        return None
    return True


def is_for_soak(path: Path) -> bool:
    return path.is_relative_to(TRUST) or LONG_FORM.search(path.read_text()) is not None


TRUST = Path(__file__).parent / "trust"
LONG_FORM = re.compile(r"^from tests\.support\.trials import .*(SCALE|fuzzing|rounds)", re.MULTILINE)
HAS_MARK: dict[str, Callable[[Path], bool]] = {
    "soak": is_for_soak,
    "lowest": lambda path: "pytest.mark.lowest" in path.read_text(),
}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    SECONDS[file_of(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    cache = getattr(session.config, "cache", None)
    # All reports come to the process that starts the others, and it is the only writer.
    if cache is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        cache.set(CACHED_SECONDS, {**known_seconds(session.config), **SECONDS})


def known_seconds(config: pytest.Config) -> dict[str, float]:
    """By file: what earlier runs on this machine took."""
    cache = getattr(config, "cache", None)
    return {} if cache is None else dict(cache.get(CACHED_SECONDS, {}))


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


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


# asyncio's streams, of which the servers of some tests are made, say so much of a client that has left.
OF_A_TESTS_SERVER = ("client_connected_cb", "StreamReaderProtocol")


class LostErrors(logging.Handler):
    """An exception that nobody retrieved, or that a callback let out: an event loop says so in its log alone."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        said, why = record.getMessage(), record.exc_info[1] if record.exc_info else None
        if not any(name in said for name in OF_A_TESTS_SERVER):
            self.said.append(f"{said}: {why!r}")


LOST_ERRORS = LostErrors()


@pytest.fixture(autouse=True)
def no_error_is_lost() -> Iterator[None]:
    """A future or a task fails, and nobody awaits it: no test shows it but by this."""
    logger = logging.getLogger("asyncio")
    logger.addHandler(LOST_ERRORS)
    yield
    logger.removeHandler(LOST_ERRORS)
    said, LOST_ERRORS.said = LOST_ERRORS.said, []
    assert not said


@pytest.fixture
def trials() -> Trials:
    """The trials of this run, for the tables at its end."""
    return TRIED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The tables, in a long run."""
    if SCALE > 1 and TRIED.rows:
        terminalreporter.section("tried")
        for line in [*TRIED.table(), "", *TRIED.summary()]:
            terminalreporter.write_line(line)
