"""The parts of the SDK that need no proxy: signatures, the object of a URL, the announcing sampler, the stall meter."""

from __future__ import annotations

import calendar
import copy
import pickle
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from outrider_sdk import StallMeter
from outrider_sdk.signing import Keys, keys_of, signed_headers
from outrider_sdk.stall import EpochStall
from outrider_sdk.torch import AnnouncingSampler, Pace
from outrider_sdk.urls import object_of
from tests.support.held_memory import held_bytes
from tests.support.signed_requests import awkward_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

PROXY = "http://127.0.0.1:9480"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)


# -- signatures -----------------------------------------------------------------------------------------------------


@given(awkward_keys, st.binary(max_size=50), st.one_of(st.none(), st.just("to/ken==")))
def test_signatures_are_those_of_botocore(key: str, body: bytes, token: str | None) -> None:
    path = f"/bucket/{quote(key, safe='/', errors='surrogatepass')}"
    request = AWSRequest("PUT", f"http://node:9480{path}", {}, body)
    request.context["payload_signing_enabled"] = True
    S3SigV4Auth(Credentials("AKIA", "se/cret", token), "s3", "eu-west-1").add_auth(request)
    theirs = {name.lower(): value for name, value in request.headers.items()}
    at = theirs["x-amz-date"]
    now = calendar.timegm(time.strptime(at, "%Y%m%dT%H%M%SZ"))
    ours = signed_headers(Keys("AKIA", "se/cret", token, "eu-west-1"), "PUT", "node:9480", path, body, now)
    assert {name: value for name, value in ours.items() if name != "host"} == theirs


def test_keys_come_from_the_environment_both_or_none() -> None:
    both = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    assert keys_of({"AWS_ACCESS_KEY_ID": "a"}) is None
    assert keys_of(both) == Keys("a", "b", None, "us-east-1")
    assert keys_of({**both, "AWS_SESSION_TOKEN": "t", "AWS_DEFAULT_REGION": "r"}) == Keys("a", "b", "t", "r")
    assert "'b'" not in repr(keys_of(both))


# -- URLs -----------------------------------------------------------------------------------------------------------

SIGNED = (
    "X-Amz-Algorithm=A&X-Amz-Credential=C%2F1&X-Amz-Date=D&X-Amz-Expires=9&X-Amz-SignedHeaders=host&X-Amz-Signature=S"
)


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("s3://b/k/a b%20#?.tar", "s3://b/k/a b%20#?.tar"),
        ("pipe:aws s3 cp s3://b/k.tar -", "s3://b/k.tar"),
        ("pipe:aws s3 cp --only-show-errors --endpoint-url http://127.0.0.1:9480 's3://b/a b.tar' -", "s3://b/a b.tar"),
        ("pipe:/opt/s5cmd --endpoint-url http://127.0.0.1:9480/ cat s3://b/k.tar", "s3://b/k.tar"),
        ("pipe:s5cmd cat s3://b/k.tar.gz | gunzip", "s3://b/k.tar.gz"),
        (f"pipe:curl -s -f -L '{PROXY}/b/k.tar?{SIGNED}'", "s3://b/k.tar"),
        (f"{PROXY}/b/k/%C3%A4%20%25.tar", "s3://b/k/ä %.tar"),
        (f"{PROXY}/b/k.tar?{SIGNED}", "s3://b/k.tar"),
        (f"{PROXY}/b/k.tar?AWSAccessKeyId=A&Signature=S&Expires=1", "s3://b/k.tar"),
        (f"{PROXY}/b/k.tar?&x-id=GetObject&expires&", "s3://b/k.tar"),
        (f"{PROXY}/b/k.tar#{SIGNED}?versionId=1", "s3://b/k.tar"),
        ("http://localhost:9480/b/k.tar", "s3://b/k.tar"),
        # These URLs are not the proxy's, or not of one object, or ask for more than the object's bytes.
        ("http://127.0.0.1:9481/b/k.tar", None),
        ("http://elsewhere:9480/b/k.tar", None),
        (f"{PROXY}/b/k.tar?versionId=1", None),
        (f"{PROXY}/b/k.tar?{SIGNED}&partNumber=1", None),
        (f"{PROXY}/b/k.tar?x-id-=1", None),
        (f"{PROXY}?/b/k.tar", None),
        (f"{PROXY}/b/", None),
        (f"{PROXY}/", None),
        ("http://127.0.0.1:port/b/k.tar", None),
        ("pipe:aws s3 cp s3://b/k s3://b/l", None),
        ("pipe:cat /data/k.tar", None),
        ("pipe:aws s3 cp 's3://b/k -", None),
        ("pipe:" * 3000 + "s3://b/k", None),
        ("s3://b", None),
        ("s3://b/prefix/", None),
        ("gs://b/k.tar", None),
        ("/data/k.tar", None),
        ("", None),
    ],
)
def test_the_object_that_a_url_reads(url: str, names: str | None) -> None:
    assert object_of(url, PROXY) == names


def test_a_bucket_may_stand_before_the_host() -> None:
    assert object_of("https://b.c.s3.test/k/l.tar", "https://s3.test") == "s3://b.c/k/l.tar"
    assert object_of("https://s3.test:443/b/k", "https://s3.test") == "s3://b/k"
    assert object_of("https://nots3.test/b/k", "https://s3.test") is None
    assert object_of("https://b.s3.test/k", None) is None


@given(st.text(max_size=80))
def test_any_url_is_parsed_without_an_error(text: str) -> None:
    for form in (text, f"pipe:{text}", f"http://{text}", f"{PROXY}/{text}"):
        object_of(form, PROXY)


# -- how far to announce --------------------------------------------------------------------------------------------


def test_by_default_a_minute_of_reading_is_announced_in_pieces() -> None:
    pace = Pace(None, None, now=100.0)
    assert (pace.fetch, pace.threshold) == (1024, 512)
    pace.passed_on(3000)
    pace.announced(110.0)
    assert (pace.fetch, pace.threshold) == (4096, 9000), "300/s: 18,000 a minute, and again at half of them"
    pace.passed_on(10)
    pace.announced(120.0)
    assert (pace.fetch, pace.threshold) == (512, 512), "a slow job, or a long validation"
    pace.passed_on(10**6)
    pace.announced(121.0)
    assert (pace.fetch, pace.threshold) == (4096, 32768), "bounded"


@pytest.mark.parametrize(
    ("fetch", "threshold", "wanted"),
    [(1536, 768, (1536, 768)), (100, None, (100, 50)), (None, 30, (60, 30)), (5, 0, (5, 0))],
)
def test_explicit_numbers_are_kept(fetch: int | None, threshold: int | None, wanted: tuple[int, int]) -> None:
    pace = Pace(fetch, threshold, now=0.0)
    pace.passed_on(10**6)
    pace.announced(1.0)
    assert (pace.fetch, pace.threshold) == wanted


@pytest.mark.parametrize(("fetch", "threshold"), [(0, None), (1, -1)])
def test_numbers_below_one_are_refused(fetch: int | None, threshold: int | None) -> None:
    with pytest.raises(ValueError, match="must be 1 or more"):
        AnnouncingSampler([], str, fetch, threshold)


class _Sampler:
    """A sampler like those of torch, with a length and an epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.epoch, 9))

    def __len__(self) -> int:
        return 9 - self.epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_without_a_proxy_a_sampler_behaves_as_the_one_it_wraps() -> None:
    def never(_: int) -> str:
        raise AssertionError("nobody asks for keys")

    sampler = AnnouncingSampler(_Sampler(), never)
    assert list(sampler) == list(range(9))
    sampler.set_epoch(4)
    assert (list(sampler), len(sampler), sampler.epoch) == ([4, 5, 6, 7, 8], 5, 4)
    assert not hasattr(sampler, "batch_size")
    assert list(copy.deepcopy(sampler)) == [4, 5, 6, 7, 8]
    assert len(pickle.loads(pickle.dumps(AnnouncingSampler([1, 2], str)))) == 2
    with pytest.raises(TypeError):
        len(AnnouncingSampler(iter([1]), never))


# -- stalls ---------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class _Loader:
    """A loader that takes the given seconds for each batch."""

    batch_size = 7

    def __init__(self, clock: Clock, waits: list[float]) -> None:
        self.clock, self.waits = clock, waits

    def __iter__(self) -> Iterator[float]:
        for wait in self.waits:
            self.clock.now += wait
            yield wait

    def __len__(self) -> int:
        return len(self.waits)


def metered(waits: list[float], step_s: float, leave_after: int | None = None) -> StallMeter:
    clock = Clock()
    meter = StallMeter(_Loader(clock, waits), clock=clock)
    for number, batch in enumerate(meter):
        assert batch == waits[number]
        clock.now += step_s
        if number + 1 == leave_after:
            break
    return meter


def test_waits_and_steps_are_distinguished() -> None:
    meter = metered([30.0, 0.5, 1.0, 0.5], step_s=2.0)
    (epoch,) = meter.epochs
    assert (epoch.steps, epoch.first_wait_s, epoch.wait_s, epoch.compute_s) == (4, 30.0, 32.0, 8.0)
    assert epoch.wait_share == 2.0 / 10.0
    assert meter.verdict().startswith("bucket-bound: after its first batch, epoch 1 waited 20.0% of the time for data")
    assert "4 steps, waited 32.00 s for data (30.00 s of it for the first batch), 8.00 s between" in str(meter)
    assert "median 1.00 s" in str(meter)
    assert "longest 30.00 s" in str(meter)


def test_a_loop_that_hardly_waits_is_gpu_bound() -> None:
    assert metered([9.0, 0.01, 0.01], step_s=1.0).verdict().startswith("GPU-bound")
    assert "too few steps" in metered([9.0], step_s=1.0).verdict()
    assert StallMeter([]).summary() == "no step yet"


def test_a_loop_that_is_left_early_counts_its_last_step() -> None:
    (epoch,) = metered([1.0] * 5, step_s=2.0, leave_after=3).epochs
    assert (epoch.steps, epoch.wait_s, epoch.compute_s) == (3, 3.0, 6.0)


def test_each_iteration_is_an_epoch_and_the_loaders_attributes_are_visible() -> None:
    meter: Any = metered([1.0, 1.0], step_s=1.0)
    list(meter)
    assert [epoch.number for epoch in meter.epochs] == [1, 2]
    assert (len(meter), meter.batch_size) == (2, 7)


def test_an_error_of_the_loader_is_passed_on() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        list(StallMeter(broken()))


def test_percentiles_are_of_all_steps_in_bounded_memory() -> None:
    epoch = EpochStall(1)
    for number in range(100_003):
        epoch.waited(float(number % 1000))
    assert held_bytes(epoch) <= 100_000
    for share in (0.01, 0.5, 0.95, 0.99):
        assert epoch.percentile(share) == pytest.approx(share * 1000, abs=25)
    assert epoch.steps == 100_003
