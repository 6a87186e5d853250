"""The parts of `outrider run` that need no proxy: the child's environment, its signals, and the line at the end."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any, cast

import pytest

from outrider.adapters.process.system import new_event_loop
from outrider.cli.aws_environment import endpoint_in
from outrider.cli.load_settings import leads_to
from outrider.cli.run.child_environment import for_child
from outrider.cli.run.child_process import Signals, ended, start, status_of
from outrider.cli.run.summary import Summary
from outrider.core.text import in_words

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


def child(environ: dict[str, str], region: str | None = None, endpoint: str = "http://e") -> dict[str, str]:
    return for_child(environ, endpoint=endpoint, admin="http://a", region=region, needs_keys=False)


def test_a_child_that_ignores_configured_endpoints_gets_the_endpoint_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile own]\nignore_configured_endpoint_urls = true\n")
    for ignoring in (
        {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}, {"AWS_PROFILE": "own"},
        {"AWS_PROFILE": "own", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "True"},
    ):  # fmt: skip
        environ = {"AWS_CONFIG_FILE": f"{tmp_path}/config", "AWS_ENDPOINT_URL": "http://elsewhere", **ignoring}
        assert endpoint_in(environ) is None
        # As botocore reads it: see `tests/unit/adapters/test_aws_config.py`.
        assert endpoint_in(child(environ)) == ("AWS_ENDPOINT_URL_S3", "http://e")


def test_loopback_is_kept_from_an_http_proxy() -> None:
    environ = {"http_proxy": "http://corporate:3128", "NO_PROXY": "internal, 127.0.0.1"}
    made = child(environ)
    assert made["no_proxy"] == made["NO_PROXY"] == "internal,127.0.0.1,localhost"
    environ = {"http_proxy": "http://web", "no_proxy": "*"}
    made = child(environ)
    assert made["no_proxy"] == made["NO_PROXY"] == "*", "a star beside other hosts would have no effect"
    assert "NO_PROXY" not in child({})


@pytest.mark.parametrize(
    ("environ", "region", "sts"),
    [
        ({}, "eu-west-1", "https://sts.eu-west-1.amazonaws.com"),
        ({}, "cn-north-1", "https://sts.cn-north-1.amazonaws.com.cn"),
        ({"AWS_ENDPOINT_URL": "http://minio"}, None, "http://minio"),
        ({"AWS_ENDPOINT_URL_STS": "http://sts"}, None, "http://sts"),
    ],
)
def test_a_child_with_a_role_requests_it_from_its_own_endpoint(
    environ: dict[str, str], region: str | None, sts: str
) -> None:
    assert child(environ, region)["AWS_ENDPOINT_URL_STS"] == sts


def test_a_child_with_a_single_sign_on_requests_it_from_its_own_endpoint(tmp_path: Path) -> None:
    names = ("AWS_ENDPOINT_URL_SSO", "AWS_ENDPOINT_URL_SSO_OIDC")

    def endpoints_of(environ: dict[str, str], region: str | None) -> list[str | None]:
        made = child(environ, region)
        return [made.get(name) for name in names]

    aws = "eu-west-1.amazonaws.com"
    assert endpoints_of({}, "eu-west-1") == [f"https://portal.sso.{aws}", f"https://oidc.{aws}"]
    assert endpoints_of({"AWS_ENDPOINT_URL": "http://minio"}, None) == ["http://minio", "http://minio"]
    config = tmp_path / "config"
    config.write_text("[profile dev]\nsso_session = corp\n[sso-session corp]\nsso_region = us-west-2\n")
    profile = {"AWS_CONFIG_FILE": str(config), "AWS_PROFILE": "dev"}
    assert endpoints_of(profile, "eu-west-1")[0] == "https://portal.sso.us-west-2.amazonaws.com"
    assert endpoints_of(dict.fromkeys(names, "http://sso"), "eu-west-1") == ["http://sso", "http://sso"]


@pytest.mark.parametrize(
    ("endpoint", "environ", "allowed"),
    [("http://e", {}, "true"), ("http://e", {"AWS_ALLOW_HTTP": "false"}, "false"), ("https://e", {}, None)],
)
def test_a_child_that_refuses_http_accepts_the_proxys_endpoint(
    endpoint: str, environ: dict[str, str], allowed: str | None
) -> None:
    assert child(environ, endpoint=endpoint).get("AWS_ALLOW_HTTP") == allowed


@pytest.mark.parametrize(
    ("endpoint", "listen", "ours"),
    [
        ("http://127.0.0.1:9480", "127.0.0.1:9480", True),
        ("http://localhost:9480/", "127.0.0.1:9480", True),
        ("http://localhost:9480", "0.0.0.0:9480", True),
        ("http://127.0.0.2:9480", "0.0.0.0:9480", True),
        ("http://127.0.0.2:9480", "127.0.0.1:9480", False),
        ("http://127.0.0.1:9000", "127.0.0.1:9480", False),
        ("http://192.0.2.1:9480", "0.0.0.0:9480", False),
        ("https://127.0.0.1", "127.0.0.1:443", True),
        ("http://[::1:9480", "127.0.0.1:9480", False),
        ("http://nowhere.invalid:9480", "0.0.0.0:9480", False),
        ("9480", "127.0.0.1:9480", False),
    ],
)
def test_addresses_that_lead_back_to_the_proxy(endpoint: str, listen: str, ours: bool) -> None:
    assert leads_to(endpoint, listen) == ours


async def test_a_signal_that_comes_before_the_child_starts_is_passed_on_later() -> None:
    signals = Signals()
    signals.install()
    try:
        for number in (signal.SIGUSR1, signal.SIGTERM):
            os.kill(os.getpid(), number)
        while signals.ended_by is None:
            await asyncio.sleep(0)
        assert signals.ended_by is signal.SIGTERM
        child = start(["sleep", "60"], os.environ)
        signals.to(child)
        assert status_of(await ended(child)) == 128 + signal.SIGTERM
    finally:
        signals.remove()


async def test_a_signal_before_the_child_is_known_at_once() -> None:
    """The child may be started before the loop runs on."""
    signals = Signals()
    signals.install()
    try:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.ended_by is signal.SIGINT
        await signals.ending.wait()
    finally:
        signals.remove()


async def test_handlers_are_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    signals = Signals()
    signals.install()
    signals.remove()
    assert [signal.getsignal(number) for number in signal.valid_signals()] == before
    # A library that was loaded before Python may have installed one: Python does not know it.
    real = signal.signal

    def unknown(number: signal.Signals, handler: Any) -> Any:
        before = real(number, handler)
        return None if number is signal.SIGUSR2 else before

    monkeypatch.setattr(signal, "signal", unknown)
    signals = Signals()
    signals.install()
    signals.remove()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def test_a_signal_that_comes_with_another_one_is_passed_on_once() -> None:
    sent: list[signal.Signals] = []

    class Child:
        send_signal = sent.append

    async def run() -> None:
        signals = Signals()
        signals.install()
        # The loop sleeps, and has begun to look at one signal when the next one comes.
        before = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        try:
            signals.to(cast("subprocess.Popen[bytes]", Child))
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            while not sent:
                await asyncio.sleep(1)
        finally:
            signal.signal(signal.SIGALRM, before)
            signals.remove()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())
    assert sent == [signal.SIGTERM]


@pytest.mark.parametrize(
    ("summary", "text"),
    [
        (
            Summary(0, 0, 0, 0, 0),
            "no request reached the proxy. If the command reads S3, its client ignores AWS_ENDPOINT_URL: see "
            "docs/frameworks.md.",
        ),
        (Summary(0, 0, 0, 0, 1, other_requests=1), "no object was read; the proxy had 1 other request"),
        (Summary(1, 0, 0, 300, 1), "1 read, nothing served"),
        (Summary(1, 10, 10, 0, 0), "1 read, 100 % from the cache, nothing from the bucket, 10 B saved"),
        (
            Summary(1204, 14_300_000_000, 12_441_000_000, 1_900_000_000, 9),
            "1,204 reads, 87 % from the cache, 1.9 GB from the bucket, 12.4 GB saved",
        ),
        (Summary(2, 100, 0, 8_000, 1), "2 reads, nothing from the cache, 8.0 kB from the bucket, nothing saved"),
    ],
)
def test_the_line_at_the_end(summary: Summary, text: str) -> None:
    assert summary.text() == text


def test_the_summary_has_the_verdict_on_all_of_the_run() -> None:
    said = {"slow": "bucket", "level": "slower", "text": "bucket-bound: 60 %", "next": "Warm."}
    early = {"slow": "unknown", "level": "none", "text": "too early to say: too few reads of late", "next": ""}
    for verdict, text in ((said, "bucket-bound: 60 %. Warm."), (early, None), ({}, None)):
        assert Summary(2, 100, 0, 100, 1, verdict).verdict_text() == text


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_999, "1.0 MB"), (99_400, "99.4 kB"), (123_456_789, "123 MB")],
)
def test_sizes_in_words(size: int, words: str) -> None:
    assert in_words(size) == words
