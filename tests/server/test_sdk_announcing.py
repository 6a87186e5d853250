"""The SDK's hints from real data loaders to a real proxy; without a proxy, training is unchanged."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import socket
import tarfile
import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from outrider_sdk import Client, StallMeter, announcing
from outrider_sdk.torch import AnnouncingSampler
from outrider_sdk.webdataset import announce, announced
from tests.support.child import free_ports
from tests.support.client_access import HAS_TORCH
from tests.support.fakes import RecordedPlans
from tests.support.later import Later
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

if not HAS_TORCH:
    pytest.skip("torch is pinned to a release without a wheel for this Python", allow_module_level=True)

torch, loaders, wds = Later("torch"), Later("torch.utils.data"), Later("webdataset")
NAME = "announcing"
SHARDS = 12
SAMPLES = 60
URLS = [f"s3://{NAME}/train-{number:03}.tar" for number in range(SHARDS)]
EXIT_FLUSH_S = 60.0
NO_PROXY = "training goes on without them"


def shard(number: int) -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as tar:
        member = tarfile.TarInfo(f"{number:03}.cls")
        member.size = 3
        tar.addfile(member, io.BytesIO(f"{number:03}".encode()))
    return into.getvalue()


def fill(bucket: Bucket) -> None:
    bucket.store(NAME, {f"train-{number:03}.tar": shard(number) for number in range(SHARDS)})
    bucket.store(NAME, {f"samples/{number:04}": str(number).encode() for number in range(SAMPLES)})


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    fill(bucket)
    with Proxy(bucket) as running:
        yield running


@pytest.fixture(autouse=True)
def without_announcers_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(announcing, "_announcers", {})
    # A proxy that shares a busy machine with the test answers late.
    monkeypatch.setattr(announcing, "_LOOKUP_TIMEOUT_S", EXIT_FLUSH_S)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "OUTRIDER_STATUS_URL"):
        monkeypatch.delenv(name, raising=False)
    yield
    # No hint of one test reaches the next.
    for announcer in announcing._announcers.values():
        assert announcer.flush(EXIT_FLUSH_S)


@pytest.fixture
def plans(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> RecordedPlans:
    recorded = RecordedPlans()
    proxy.outrider.control.plans = recorded
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    return recorded


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "outrider_sdk"]


def cat(url: str) -> str:
    """The form that WebDataset's users write; curl takes less time to start than aws."""
    return f"pipe:curl -s -f {os.environ['AWS_ENDPOINT_URL']}/{url.removeprefix('s3://')}"


# -- WebDataset -----------------------------------------------------------------------------------------------------


class Reading:
    """A last stage that records which worker read which shard."""

    def __call__(self, samples: Iterator[dict[str, Any]]) -> Iterator[tuple[int, str]]:
        info = torch.utils.data.get_worker_info()
        for sample in samples:
            yield (0 if info is None else info.id), f"s3://{NAME}/train-{sample['__key__']}.tar"


def loaded(dataset: Any, workers: int, **options: Any) -> dict[int, list[str]]:
    read: dict[int, list[str]] = defaultdict(list)
    for worker, url in wds.WebLoader(dataset, batch_size=None, num_workers=workers, **options):
        read[worker].append(url)
    return dict(read)


def announced_orders(plans: RecordedPlans) -> list[tuple[str, ...]]:
    return sorted(piece.urls for piece in plans.pieces)


def webdataset(stage: Any) -> Any:
    urls = [cat(url) for url in URLS]
    return wds.DataPipeline(
        wds.SimpleShardList(urls), wds.split_by_worker, wds.shuffle(100), stage, wds.tarfile_to_samples(), Reading()
    )


def test_each_worker_announces_exactly_the_order_in_which_it_reads(plans: RecordedPlans) -> None:
    # Workers that are spawned get it so.
    dataset = webdataset(pickle.loads(pickle.dumps(announce())))
    for workers in (0, 2, 2):
        plans.pieces.clear()
        read = loaded(dataset, workers)
        plans.wait(lambda seen: len(seen.urls) == SHARDS)
        assert announced_orders(plans) == sorted(map(tuple, read.values()))
        assert {(piece.start, piece.total) for piece in plans.pieces} == {
            (0, len(order)) for order in read.values()
        }  # fmt: skip
        assert {piece.client for piece in plans.pieces} == {"127.0.0.1"}


def test_a_complete_webdataset_is_announced_with_one_call(plans: RecordedPlans) -> None:
    dataset = wds.WebDataset([cat(url) for url in URLS], shardshuffle=100, detshuffle=True, seed=1)
    assert announced(dataset) is dataset
    read = loaded(dataset.compose(Reading()), 2, persistent_workers=True)
    plans.wait(lambda seen: len(seen.urls) == SHARDS)
    assert announced_orders(plans) == sorted(map(tuple, read.values()))
    with pytest.raises(ValueError, match="put announce"):
        announced(wds.DataPipeline(wds.SimpleShardList(URLS)))


def test_workers_announce_when_their_parent_has_announced_before(plans: RecordedPlans) -> None:
    teller = announcing.announcer(None)
    teller.plan("parent", URLS[:1], 0, None)
    assert teller.flush(EXIT_FLUSH_S)
    loaded(webdataset(announce()), 2)
    plans.wait(lambda seen: len(seen.urls) == 1 + SHARDS)


def test_an_endless_source_is_announced_piece_by_piece_ahead_of_its_reader(plans: RecordedPlans) -> None:
    drawn: list[str] = []

    def endless() -> Iterator[dict[str, str]]:
        for number in itertools.count():
            drawn.append(f"s3://{NAME}/{number}.tar")
            yield {"url": drawn[-1], "number": str(number)}

    shards = announce(ahead=100)(endless())
    got = [shard["url"] for shard in itertools.islice(shards, 1000)]
    assert got == drawn[:1000]
    assert len(drawn) <= 1100, "bounded"
    plans.wait(lambda seen: len(seen.urls) == len(drawn))
    assert plans.urls == drawn
    assert [piece.start for piece in plans.pieces] == list(
        itertools.accumulate((len(piece.urls) for piece in plans.pieces[:-1]), initial=0)
    )
    assert {piece.total for piece in plans.pieces} == {None}


def test_a_slow_source_is_not_waited_for(plans: RecordedPlans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider_sdk.webdataset._LOOK_AHEAD_S", 0.0)
    drawn: list[str] = []

    def slow() -> Iterator[str]:
        for url in URLS:
            drawn.append(url)
            yield url

    for number, _ in enumerate(announce()(slow())):
        # However slow the source is, one more shard is drawn for each that is passed on.
        assert len(drawn) == number + 1
    plans.wait(lambda seen: seen.urls == URLS)


def test_shards_that_are_no_objects_pass_silently(
    plans: RecordedPlans, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local = tmp_path / "local.tar"
    local.write_bytes(shard(7))
    dataset = wds.DataPipeline(
        wds.SimpleShardList([f"pipe:cat {local}", cat(URLS[3])]), announce(), wds.tarfile_to_samples(), Reading()
    )
    assert [url for _, url in dataset] == [URLS[7], URLS[3]]
    plans.wait(lambda seen: seen.urls == [URLS[3]])
    assert list(announce()(iter([("odd",), {"no": "url"}, 3]))) == [("odd",), {"no": "url"}, 3]
    assert not warnings(caplog)


# -- map-style ------------------------------------------------------------------------------------------------------


class Samples:
    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return SAMPLES


def key_of(index: int) -> str:
    return f"s3://{NAME}/samples/{index:04}"


def test_a_sampler_announces_what_it_draws_in_that_order(plans: RecordedPlans) -> None:
    sampler = AnnouncingSampler(loaders.RandomSampler(Samples()), key_of)
    for workers in (0, 2):
        plans.pieces.clear()
        batches = loaders.DataLoader(Samples(), batch_size=7, sampler=sampler, num_workers=workers)
        read = [key_of(int(index)) for batch in batches for index in batch]
        plans.wait(lambda seen: len(seen.urls) == SAMPLES)
        assert plans.urls == read
        assert {(piece.start, piece.total) for piece in plans.pieces} == {(0, SAMPLES)}


def test_a_batch_sampler_announces_the_samples_of_its_batches(plans: RecordedPlans) -> None:
    batches = AnnouncingSampler(
        loaders.BatchSampler(loaders.RandomSampler(Samples()), 8, drop_last=True), key_of, fetch=16
    )
    loader = loaders.DataLoader(Samples(), batch_sampler=batches, num_workers=2)
    assert len(loader) == SAMPLES // 8
    read = [key_of(int(index)) for batch in loader for index in batch]
    plans.wait(lambda seen: len(seen.urls) == len(read))
    assert plans.urls == read
    assert [piece.start for piece in plans.pieces] == [0, 16, 32, 48]
    assert [piece.total for piece in plans.pieces] == [None, None, None, 56]


def test_a_distributed_sampler_keeps_its_epochs(plans: RecordedPlans) -> None:
    inner: Any = loaders.DistributedSampler(Samples(), num_replicas=3, rank=1, seed=5)
    sampler = AnnouncingSampler(inner, key_of)
    loader = loaders.DataLoader(Samples(), batch_size=4, sampler=sampler)
    orders = []
    for epoch in range(2):
        plans.pieces.clear()
        sampler.set_epoch(epoch)
        read = [key_of(int(index)) for batch in loader for index in batch]
        plans.wait(lambda seen: len(seen.urls) == len(sampler) == SAMPLES // 3)
        assert plans.urls == read
        orders.append(read)
    assert orders[0] != orders[1]


def test_the_next_are_announced_when_fewer_than_the_threshold_are_left(plans: RecordedPlans) -> None:
    keys: list[int] = []

    def note(index: int) -> str:
        keys.append(index)
        return key_of(index)

    indices = iter(AnnouncingSampler(loaders.SequentialSampler(Samples()), note, fetch=20, threshold=5))
    for number in range(SAMPLES):
        assert next(indices) == number
        announced_and_left = len(keys) - number
        assert 5 <= announced_and_left < 25 or len(keys) == SAMPLES
        assert len(keys) % 20 == 0
    plans.wait(lambda seen: len(seen.urls) == SAMPLES)
    assert plans.urls == [key_of(number) for number in range(SAMPLES)]


def test_an_error_of_a_source_is_raised_at_its_place(plans: RecordedPlans) -> None:
    def broken(items: list[Any]) -> Iterator[Any]:
        yield from items
        raise KeyError("theirs")

    for source, items in (
        (iter(AnnouncingSampler(broken([0, 1, 2]), key_of)), [0, 1, 2]), (announce()(broken(URLS[:3])), URLS[:3])
    ):  # fmt: skip
        assert list(itertools.islice(source, 3)) == items
        with pytest.raises(KeyError, match="theirs"):
            next(source)


def test_an_endless_sampler_is_announced_in_bounded_pieces(plans: RecordedPlans) -> None:
    indices = list(itertools.islice(AnnouncingSampler(itertools.count(), key_of), 3000))
    assert indices == list(range(3000))
    plans.wait(lambda seen: len(seen.urls) >= 3000)
    assert plans.urls[:3000] == [key_of(index) for index in indices]
    assert max(len(piece.urls) for piece in plans.pieces) <= 4096
    assert {piece.total for piece in plans.pieces} == {None}


class Stateful:
    """Like torchdata's StatefulDistributedSampler: counts the items it has yielded. `more` is part of its state,
    too."""

    def __init__(self, more: object = None) -> None:
        self.yielded = 0
        self.more = more

    def __iter__(self) -> Iterator[int]:
        while self.yielded < SAMPLES:
            self.yielded += 1
            yield self.yielded - 1
        self.yielded = 0

    def __len__(self) -> int:
        return SAMPLES

    def state_dict(self) -> dict[str, object]:
        return {"yielded": self.yielded, "more": self.more}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.yielded = state["yielded"]


def test_a_sampler_that_is_resumed_in_mid_epoch_skips_nothing(plans: RecordedPlans) -> None:
    sampler = AnnouncingSampler(Stateful(), key_of)
    assert sampler.state_dict()["yielded"] == 0
    items = iter(sampler)
    assert [next(items) for _ in range(10)] == list(range(10))
    saved = sampler.state_dict()
    assert saved == {"yielded": 10, "more": None}
    plans.wait(lambda seen: len(seen.urls) == SAMPLES)
    assert list(items) == list(range(10, SAMPLES))
    assert sampler.state_dict()["yielded"] == 0
    resumed = AnnouncingSampler(Stateful(), key_of)
    resumed.load_state_dict(saved)
    assert resumed.state_dict() == saved
    assert list(resumed) == list(range(10, SAMPLES))


@pytest.mark.parametrize("batched", [False, True])
def test_a_sampler_whose_state_cannot_be_kept_beside_each_item_is_not_announced(
    plans: RecordedPlans, caplog: pytest.LogCaptureFixture, batched: bool
) -> None:
    inner = Stateful() if batched else Stateful(more=[1, 2, 3])
    sampler = AnnouncingSampler(loaders.BatchSampler(inner, 1, False) if batched else inner, key_of)
    for _ in range(2):
        assert next(iter(sampler)) in (0, [0], 1, [1])
    assert inner.state_dict()["yielded"] == 2
    (warning,) = warnings(caplog)
    assert "not announced" in warning
    assert not plans.urls


def test_a_sample_may_have_several_objects_or_none(plans: RecordedPlans) -> None:
    sampler = AnnouncingSampler(
        [1, 2, 3], lambda index: None if index == 2 else [f"s3://bkt/{index}.jpg", f"s3://bkt/{index}.txt", "/local"]
    )
    assert list(sampler) == [1, 2, 3]
    plans.wait(lambda seen: seen.urls == ["s3://bkt/1.jpg", "s3://bkt/1.txt", "s3://bkt/3.jpg", "s3://bkt/3.txt"])
    assert plans.pieces[0].total == 4


# -- stalls ---------------------------------------------------------------------------------------------------------


def test_stalls_reach_the_metrics_of_the_proxy(plans: RecordedPlans, proxy: Proxy) -> None:
    def metric(name: str) -> float:
        return proxy.metric(f"outrider_job_{name}_total")

    steps, wait_s, compute_s = metric("steps"), metric("wait_seconds"), metric("compute_seconds")
    meter = StallMeter(loaders.DataLoader(Samples(), batch_size=10, num_workers=1))
    for _ in range(2):
        for _ in meter:
            pass
    assert announcing.announcer(None).flush(EXIT_FLUSH_S)
    assert metric("steps") - steps == 12
    assert metric("wait_seconds") - wait_s == pytest.approx(sum(epoch.wait_s for epoch in meter.epochs))
    assert metric("compute_seconds") - compute_s == pytest.approx(sum(epoch.compute_s for epoch in meter.epochs))


def test_stalls_are_reported_every_few_seconds_and_at_the_end_of_an_epoch(plans: RecordedPlans, proxy: Proxy) -> None:
    def reported() -> float:
        return proxy.metric("outrider_requests_total", op="steer", status="200")

    now = itertools.count(0, 0.5)
    meter = StallMeter(range(32), clock=lambda: float(next(now)))
    proxy.settle()  # the last report of another test may not be counted yet
    before = reported()
    # Each step takes a second, since the clock is read twice for each.
    assert list(meter) == list(range(32))
    assert announcing.announcer(None).flush(EXIT_FLUSH_S)
    proxy.settle()
    assert reported() - before == 7


# -- without a proxy ------------------------------------------------------------------------------------------------


def train() -> tuple[list[int], int]:
    """One training that uses every feature of the SDK; returns the samples that it read, and its steps."""
    loader = loaders.DataLoader(
        Samples(), batch_size=6, num_workers=2, sampler=AnnouncingSampler(loaders.SequentialSampler(Samples()), key_of)
    )
    meter = StallMeter(loader)
    shards = wds.DataPipeline(wds.SimpleShardList(URLS), wds.split_by_worker, announce())
    assert sorted(each["url"][0] for each in loaders.DataLoader(shards, num_workers=2)) == URLS
    return [int(index) for batch in meter for index in batch], meter.epochs[0].steps


def assert_unchanged(caplog: pytest.LogCaptureFixture, why: str) -> None:
    assert train() == (list(range(SAMPLES)), 10)
    assert list(AnnouncingSampler(range(3), key_of)) == [0, 1, 2]  # once more, and no second warning
    (warning,) = warnings(caplog)
    assert why in warning
    assert NO_PROXY in warning


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [("", "AWS_ENDPOINT_URL is not set"), ("http://127.0.0.1:{free}", "nothing answers"),
     ("127.0.0.1:9480", "is not the address of a proxy"), ("{bucket}", "an S3 server, but no Outrider")],
)  # fmt: skip
def test_without_a_proxy_nothing_changes_but_for_one_warning(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, endpoint: str, why: str
) -> None:
    for name, value in bucket.environment().items():
        monkeypatch.setenv(name, value)
    if endpoint:
        at = endpoint.format(free=free_ports(1)[0], bucket=bucket.endpoint)
        monkeypatch.setenv("AWS_ENDPOINT_URL", at)
    assert_unchanged(caplog, why)
    client = bucket.client()
    assert "_outrider" not in [each["Name"] for each in client.list_buckets()["Buckets"]]
    client.close()


def test_an_endpoint_that_never_answers_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(announcing, "_LOOKUP_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{mute.getsockname()[1]}")
        assert_unchanged(caplog, "nothing answers")
        mute.settimeout(0)
        mute.accept()[0].close()
        with pytest.raises(BlockingIOError):
            mute.accept()


def test_a_name_that_does_not_resolve_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answer = threading.Event()

    def resolve(*_: object, **__: object) -> None:
        answer.wait(20)
        raise socket.gaierror("no name")

    monkeypatch.setattr(announcing, "_LOOKUP_TIMEOUT_S", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://node.test:9480")
    try:
        assert_unchanged(caplog, "within 0.05 s")
    finally:
        answer.set()


def test_a_proxy_that_requires_other_keys_changes_nothing(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys = tmp_path / "clients.toml"
    keys.write_text('[[client]]\naccess_key = "a"\nsecret_key = "b"\ngrants = [{bucket = "*"}]\n')
    with Proxy(bucket, auth="sigv4", clients=str(keys)) as guarded:
        monkeypatch.setenv("AWS_ENDPOINT_URL", guarded.endpoint)
        assert_unchanged(caplog, "refuses the request: 403")


def test_a_proxy_that_ends_in_mid_training_changes_nothing(
    bucket: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(bucket) as passing:
        monkeypatch.setenv("AWS_ENDPOINT_URL", passing.endpoint)
        assert train() == (list(range(SAMPLES)), 10)
        assert not warnings(caplog)
        gone = passing.endpoint
    monkeypatch.setenv("AWS_ENDPOINT_URL", gone)
    teller = announcing.announcer(None)
    teller.plan("p", URLS, 0, None)
    assert teller.flush(EXIT_FLUSH_S)
    (warning,) = warnings(caplog)
    assert "does not answer any more" in warning
    assert train() == (list(range(SAMPLES)), 10)
    assert teller.flush(EXIT_FLUSH_S)
    assert len(warnings(caplog)) == 1


def test_a_proxy_that_does_not_answer_is_skipped_for_a_while_and_then_tried_again(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    with Proxy(bucket, listen=f"127.0.0.1:{port}") as restarting:
        teller = announcing.announcer(Client(restarting.endpoint))
        assert teller.has_proxy
        restarting.stop()

        def plan(number: int) -> None:
            teller.plan("p", URLS[number : number + 1], 0, None)
            assert teller.flush(EXIT_FLUSH_S)

        plan(0)
        with socket.create_server(("127.0.0.1", port)) as listener:
            listener.settimeout(0)
            plan(1)
            with pytest.raises(BlockingIOError):
                listener.accept()
        monkeypatch.setattr(announcing, "_PAUSE_AFTER_ERROR_S", 0.0)
        monkeypatch.setattr(announcing, "_announcers", {})
        restarting.start()
        teller = announcing.announcer(Client(restarting.endpoint))
        restarting.stop()
        plan(2)
        restarting.start()
        recorded = RecordedPlans()
        restarting.outrider.control.plans = recorded
        plan(3)
        assert recorded.urls == URLS[3:4]


def test_a_connection_that_the_proxy_closed_meanwhile_is_made_anew(
    plans: RecordedPlans, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    async def close_all() -> None:
        for connection in proxy.outrider.server.connections:
            assert connection.transport is not None
            connection.transport.abort()

    teller = announcing.announcer(None)
    for number in range(3):
        teller.plan("p", [URLS[number]], number, None)
        assert teller.flush(EXIT_FLUSH_S)
        proxy.on_loop(close_all)
    assert plans.urls == URLS[:3]
    assert not warnings(caplog)


def test_a_refused_plan_is_logged_once(plans: RecordedPlans, caplog: pytest.LogCaptureFixture) -> None:
    teller = announcing.announcer(None)
    for _ in range(3):
        teller.plan("p", ["no url"], 0, None)
    assert teller.flush(EXIT_FLUSH_S)
    (warning,) = warnings(caplog)
    assert "400 InvalidArgument: reads[0] is not the URL of an object, like s3://bucket/key: 'no url'" in warning


def test_a_client_argument_names_the_proxy_where_the_environment_does_not(proxy: Proxy) -> None:
    recorded = RecordedPlans()
    proxy.outrider.control.plans = recorded
    assert list(announce(client=Client(proxy.endpoint))(URLS)) == URLS
    recorded.wait(lambda plans: plans.urls == URLS)


def test_a_machine_without_room_for_a_thread_trains(
    plans: RecordedPlans, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    meter = StallMeter([1, 2])
    sampler = AnnouncingSampler(range(SAMPLES), key_of)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_room)
        assert (list(meter), list(sampler)) == ([1, 2], list(range(SAMPLES)))
        full.setattr(announcing, "_announcers", {})  # the proxy is not known yet
        assert list(AnnouncingSampler(range(3), key_of)) == [0, 1, 2]
    (warning,) = warnings(caplog)
    assert "can't start new thread" in warning
    assert NO_PROXY in warning
    list(sampler)
    plans.wait(lambda seen: len(seen.urls) == SAMPLES)
