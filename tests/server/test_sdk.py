"""The SDK's client before a real proxy and a real bucket: discovery, status, plans and warm-ups."""

from __future__ import annotations

import ast
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import outrider_sdk
from outrider import __version__
from outrider.metrics import SOURCES
from outrider_sdk import Client, ProxyNotFound, ProxyRefused, Warmed, expand
from outrider_sdk.warming import Gone
from tests.support.child import free_ports
from tests.support.fakes import RecordedPlans
from tests.support.proxy import Command, Proxy, python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

SIZES = {f"train-{index:03}.tar": 100_000 * (11 - index) + 251 for index in range(12)}
TEMPLATE = "s3://sdk/train-{000..011}.tar"
ENVIRONMENT = ("OUTRIDER_STATUS_URL", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "OUTRIDER_ADMIN_TOKEN")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def shards(bucket: Bucket) -> None:
    bucket.store("sdk", {key: bytes(size) for key, size in SIZES.items()} | {"of/ä b+c%.tar": b"1"})


@pytest.fixture
def proxy(bucket: Bucket, shards: None) -> Iterator[Proxy]:
    # A block that the scrubber or the comparison with the bucket reads in that moment is evicted a little later.
    with Proxy(bucket, scrub_bandwidth="0", verify_origin="off") as running:
        yield running


@pytest.fixture
def client(proxy: Proxy) -> Client:
    return Client(proxy.endpoint, proxy.admin)


def test_a_child_of_run_finds_its_proxy_without_configuration(bucket: Bucket, shards: None, tmp_path: Path) -> None:
    command = Command(bucket, tmp_path)
    sdk = str(Path(outrider_sdk.__file__).parent.parent)
    command.environ["PYTHONPATH"] = os.pathsep.join([sdk, command.environ["PYTHONPATH"]])
    program = "from outrider_sdk import Client; print(Client().warm('s3://sdk/train-001.tar').bytes, Client().status())"
    done = command.run("run", "--origin", bucket.endpoint, "--", *python(program))
    assert done.stdout.startswith(f"{SIZES['train-001.tar']} Status("), done.stderr


def test_status_and_warm_ups_come_from_the_proxy(client: Client, proxy: Proxy, bucket: Bucket) -> None:
    status = client.status()
    assert (status.version, status.ready, status.origin) == (__version__, True, bucket.endpoint)
    assert f"http://{status.listen}" == proxy.endpoint
    assert status.served_bytes == dict.fromkeys(SOURCES, 0)
    counts: list[int] = []
    warmed = client.warm(TEMPLATE, progress=lambda warmed: counts.append(warmed.objects))
    assert (warmed.objects, warmed.bytes, warmed.failures) == (len(SIZES), sum(SIZES.values()), {})
    assert (counts, counts[-1]) == (sorted(counts), len(SIZES))
    again = client.warm([f"s3://sdk/{key}" for key in SIZES])
    assert (again.bytes, again.fetched_bytes) == (sum(SIZES.values()), 0)
    assert client.warm("s3://sdk/").objects == len(SIZES) + 1
    failed = client.warm(["s3://sdk/train-001.tar", "s3://sdk/none"])
    assert (failed.objects, failed.state, failed.failures) == (1, "failed", {"s3://sdk/none": "404 NoSuchKey"})
    with pytest.raises(ProxyRefused, match="Line 2 is not s3://BUCKET/KEY"):
        client.warm(["s3://sdk/train-001.tar", "http://x/y"])

    def stop(warmed: Warmed) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        client.warm(TEMPLATE, progress=stop)
    copied = client.warm(TEMPLATE, copies=2)
    assert (copied.state, copied.notes) == ("done", ["2 copies are wanted, and this cache is alone: it keeps one"])
    (closed,) = free_ports(1)
    status = Client(proxy.endpoint, f"http://127.0.0.1:{closed}").status()
    assert (status.version, status.ready, status.listen, status.origin) == (__version__, True, None, None)


def test_a_warm_up_that_is_not_waited_for_goes_on_in_the_proxy(client: Client) -> None:
    warmed = client.warm(TEMPLATE, wait=False, rate="100kB")
    assert not warmed.done
    assert not warmed.wait(timeout_s=0).done
    assert [warmup["state"] for warmup in client.status().warmups] == ["running"]
    assert client.warm(TEMPLATE, wait=False, rate="100kB").name == warmed.name
    warmed.cancel()
    assert (warmed.done, warmed.state) == (True, "cancelled")
    assert client.warm(TEMPLATE).state == "done"
    warmed.cancel()
    with pytest.raises(Gone):
        warmed.refresh()
    ended = client.warm(TEMPLATE, wait=False)
    assert client.warm(TEMPLATE).state == "done"
    ended.cancel()
    assert ended.done, "it had ended just before"


def test_a_pinned_object_stays_until_it_is_unpinned(client: Client) -> None:
    pinned = client.pin("s3://sdk/train-00{1..3}.tar")
    assert (pinned.state, pinned.objects) == ("done", 3)
    assert client.status().pins[0]["reserved_bytes"] > pinned.bytes
    assert client.evict("s3://sdk/")["pinned_blocks"] == 3
    with pytest.raises(ProxyRefused, match="NoSuchKey: Nothing was pinned"):
        client.pin("s3://sdk/none")
    client.unpin("s3://sdk/train-00{1..3}.tar")
    assert client.evict("s3://sdk/")["blocks"] == 3


KEYS_FILE = """
[[client]]
access_key = "SDKKEY"
secret_key = "sdk/secret"
grants = [{bucket = "sdk"}]
"""


@pytest.fixture(scope="module")
def guarded(bucket: Bucket, shards: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    keys = tmp_path_factory.mktemp("sdk") / "clients.toml"
    keys.write_text(KEYS_FILE)
    with Proxy(bucket, auth="sigv4", clients=str(keys)) as proxy:
        yield proxy


@pytest.fixture
def signing(guarded: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SDKKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sdk/secret")


@pytest.mark.parametrize("key", ["NOSUCHKEY", None])
def test_a_proxy_that_requires_signatures_is_named_as_such(
    guarded: Proxy, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key or "")
    client = Client(guarded.endpoint, guarded.admin)
    for ask in (client.warm, client.plan):
        with pytest.raises(ProxyNotFound, match=r"refuses the request: 403 .*AWS_ACCESS_KEY_ID"):
            ask("s3://sdk/train-001.tar")


@pytest.mark.usefixtures("signing")
def test_where_signatures_are_required_the_keys_of_the_environment_sign(guarded: Proxy) -> None:
    client, plans = Client(guarded.endpoint), RecordedPlans()
    guarded.outrider.control.plans = plans
    assert client.warm(["s3://sdk/train-001.tar", "s3://sdk/of/ä b+c%.tar"], rate="1GB").failures == {}
    client.plan("s3://sdk/of/ä b+c%.tar", name="of ä/b+c%~'(")
    assert [(piece.client, piece.urls) for piece in plans.pieces] == [("127.0.0.1 SDKKEY", ("s3://sdk/of/ä b+c%.tar",))]
    with pytest.raises(ProxyRefused, match="403 AccessDenied: No grant of this client covers s3://else/where"):
        client.plan(["s3://sdk/a", "s3://else/where"])


def test_a_plan_is_sent_in_parts_with_its_indexes(client: Client, proxy: Proxy) -> None:
    plans = RecordedPlans()
    proxy.outrider.control.plans = plans
    assert client.plan("s3://sdk/{000000..023456}.tar", start=5) == 23457
    assert plans.urls == [f"s3://sdk/{number:06}.tar" for number in range(23457)]
    numbers = [piece.start + place for piece in plans.pieces for place in range(len(piece.urls))]
    assert numbers == list(range(5, 5 + 23457))
    assert {piece.total for piece in plans.pieces} == {5 + 23457}
    plans.pieces.clear()
    client.plan(["pipe:aws s3 cp s3://sdk/a{1}.tar -", f"{proxy.endpoint}/sdk/b%20c"], total=99)
    assert [(piece.urls, piece.start, piece.total) for piece in plans.pieces] == [
        (("s3://sdk/a{1}.tar", "s3://sdk/b c"), 0, 99)
    ]
    with pytest.raises(ValueError, match="must be s3://BUCKET/KEY"):
        client.plan("s3://sdk/prefix/")


def test_a_plan_can_be_withdrawn(bucket: Bucket) -> None:
    with Proxy(bucket, prefetch="epoch") as proxy:
        client = Client(proxy.endpoint)
        client.plan("s3://sdk-nowhere/{000..019}.tar")
        progress = client.planned()
        assert (progress["told"], progress["read"], progress["here"], progress["left"]) == (20, 0, 0, 20)
        assert (client.unplan(), client.planned(), client.unplan()) == (20, {}, 0)


def test_without_a_proxy_the_error_says_what_to_do(bucket: Bucket) -> None:
    s3, admin = free_ports(2)
    nobody = Client(f"http://127.0.0.1:{s3}", f"http://127.0.0.1:{admin}")
    anonymous = Client(bucket.endpoint, bucket.endpoint)
    for call, says in (
        (partial(nobody.plan, "s3://a/b"), "start `outrider serve`"), (nobody.status, "outrider run --"),
        (partial(nobody.warm, "s3://a/b"), "start `outrider serve`"),
        (anonymous.status, "answered /status with|is no Outrider"),
        (partial(anonymous.plan, "s3://sdk/train-001.tar"), "an S3 server, but no Outrider"),
    ):  # fmt: skip
        with pytest.raises(ProxyNotFound, match=says):
            call()
    with pytest.raises(ValueError, match="write http://HOST:PORT"):
        Client("127.0.0.1:9480")


def test_the_admin_token_is_sent(bucket: Bucket, shards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy(bucket, admin_token="hush") as proxy:
        with pytest.raises(ProxyNotFound, match="set OUTRIDER_ADMIN_TOKEN"):
            Client(proxy.endpoint, proxy.admin).status()
        monkeypatch.setenv("OUTRIDER_ADMIN_TOKEN", "hush\n")
        assert Client(proxy.endpoint, proxy.admin).status().ready


@pytest.mark.parametrize(
    ("environ", "endpoint", "admin"),
    [
        ({}, "http://127.0.0.1:9480", "http://127.0.0.1:9481"),
        ({"AWS_ENDPOINT_URL": "http://node:9480/"}, "http://node:9480", "http://node:9481"),
        ({"AWS_ENDPOINT_URL": "http://a:1", "AWS_ENDPOINT_URL_S3": "http://[::1]:2"}, "http://[::1]:2", "http://[::1]:9481"),
        (
            {"AWS_ENDPOINT_URL": "http://a:1", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "TRUE"},
            "http://127.0.0.1:9480", "http://127.0.0.1:9481",
        ),
        ({"AWS_ENDPOINT_URL": "http://a:1", "OUTRIDER_STATUS_URL": "http://a:7"}, "http://a:1", "http://a:7"),
    ],
)  # fmt: skip
def test_the_environment_variables_that_name_the_proxy(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], endpoint: str, admin: str
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    client = Client()
    assert (client.endpoint, client.admin) == (endpoint, admin)


@pytest.mark.parametrize(
    ("template", "urls"),
    [
        ("s3://b/k", ["s3://b/k"]),
        ("s3://b/{08..11}", ["s3://b/08", "s3://b/09", "s3://b/10", "s3://b/11"]),
        ("s3://b/{8..10}", ["s3://b/8", "s3://b/9", "s3://b/10"]),
        ("s3://b/{2..0}", ["s3://b/2", "s3://b/1", "s3://b/0"]),
        ("{a,b}-{0..1}.tar", ["a-0.tar", "a-1.tar", "b-0.tar", "b-1.tar"]),
        ("{x,}", ["x", ""]),
    ],
)
def test_templates(template: str, urls: list[str]) -> None:
    assert list(expand(template)) == urls
    for wrong in ("{", "a}", "{{0..1}}", "{}", "{0...3}", "{a..b}"):
        with pytest.raises(ValueError, match=r"brace|neither"):
            next(expand(wrong))
    assert next(expand("{000000000..999999999}-{000000000..999999999}")) == "000000000-000000000", "not made at once"


def test_the_sdk_imports_only_the_standard_library() -> None:
    folder = Path(outrider_sdk.__file__).parent
    allowed = {*sys.stdlib_module_names, "outrider_sdk"}
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 10))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= allowed, path
