"""Isolation of tenants: a refusal shows a client nothing of another's objects, by its text or by the time it takes."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.proxy import Proxy
from tests.support.rawhttp import Answer, RawConnection, ask
from tests.support.tenants import CLIENTS, NAME, NOBODY, OTHER, TEAM, answer_to, wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket
    from tests.support.proxy import Keys
    from tests.support.trials import Trials

HERE, GONE = f"/{NAME}/team/here", f"/{NAME}/team/gone"


@pytest.fixture(scope="module")
def proxy(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """`HERE` is a hit, `GONE` does not exist anywhere."""
    bucket.make_bucket(NAME)
    client = bucket.client()
    for key in ("team/here", "other/a"):
        client.put_object(Bucket=NAME, Key=key, Body=b"body of " + key.encode())
    client.close()
    clients = tmp_path_factory.mktemp("tenants") / "clients.toml"
    clients.write_text(CLIENTS)
    lists = ({"prefixes": "*", "ttl_s": 600},)
    with Proxy(bucket, auth="sigv4", clients=clients, freshness="immutable", list_cache=lists) as running:
        for _ in range(2):
            assert answer_to(running, wire(running, TEAM, "GET", HERE)).body == b"body of team/here"
            assert answer_to(running, wire(running, TEAM, "GET", f"/{NAME}?list-type=2&prefix=team%2F")).status == 200
            running.settle()
        yield running


def visible(answer: Answer) -> tuple[int, dict[str, str], str]:
    """All of a refusal except its request id, its date, and the name that was asked for."""
    headers = {name: value for name, value in answer.headers.items() if name not in ("date", "x-amz-request-id")}
    body = re.sub(r"<RequestId>[^<]*</RequestId>", "", answer.body.decode()).replace("team/here", "team/gone")
    return answer.status, headers, body


PAIRS = {
    "GET": ("GET", HERE, GONE, {}),
    "HEAD": ("HEAD", HERE, GONE, {}),
    "a range": ("GET", HERE, GONE, {"range": "bytes=0-0"}),
    "a range past the end": ("GET", HERE, GONE, {"range": "bytes=999-"}),
    "If-Match": ("GET", HERE, GONE, {"if-match": '"x"'}),
    "If-None-Match": ("GET", HERE, GONE, {"if-none-match": "*"}),
    "the ACL": ("GET", HERE + "?acl", GONE + "?acl", {}),
    "DELETE": ("DELETE", HERE, GONE, {}),
    "an upload": ("PUT", HERE, GONE, {"if-none-match": "*"}),
    "a LIST": ("GET", f"/{NAME}?list-type=2&prefix=team%2Fhere", f"/{NAME}?list-type=2&prefix=team%2Fgone", {}),
}
STRANGERS: dict[str, Keys | None] = {
    "another tenant": OTHER,
    "a key without a grant": NOBODY,
    "nobody": None,
    "a wrong secret": (TEAM[0], "wrong"),
    "an unknown key": ("AKUNKNOWN", "x"),
}


def request_of(proxy: Proxy, who: str, method: str, target: str, headers: dict[str, str]) -> bytes:
    keys = STRANGERS[who]
    if keys is None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{method} {target} HTTP/1.1\r\nhost: {proxy.outrider.listen}\r\n{lines}\r\n".encode()
    return wire(proxy, keys, method, target, headers.items())


@pytest.mark.parametrize("who", STRANGERS)
@pytest.mark.parametrize("case", PAIRS)
def test_a_refusal_reads_the_same_for_a_cached_object_and_for_none(
    proxy: Proxy, case: str, who: str, trials: Trials
) -> None:
    method, here, gone, headers = PAIRS[case]
    refusals = [answer_to(proxy, request_of(proxy, who, method, target, headers)) for target in (here, gone)]
    assert [answer.status for answer in refusals] == [403, 403]
    assert visible(refusals[0]) == visible(refusals[1])
    trials.record(
        "security", f"{who} asks for what is cached, and for what does not exist", "the same refusal", times=2
    )


def steps(proxy: Proxy, connection: RawConnection, data: bytes) -> Counter[str]:
    """Python functions entered on the loop's thread while these bytes are answered."""
    calls: Counter[str] = Counter()

    def note(frame: Any, event: str, _: object) -> None:
        module = frame.f_globals.get("__name__", "")
        # The server notices the connection before or after the profiling begins.
        if event == "call" and module.startswith("outrider.") and ".connection_" not in frame.f_code.co_qualname:
            calls[f"{module}.{frame.f_code.co_qualname}"] += 1

    async def watch(how: Any) -> None:
        sys.setprofile(how)

    async def accepted() -> None:
        while connection.sock.getsockname() not in {served.peername for served in proxy.outrider.server.connections}:
            await asyncio.sleep(0)

    proxy.on_loop(accepted)
    proxy.on_loop(lambda: watch(note))
    try:
        connection.send(data)
        assert connection.read_answer(data.partition(b" ")[0].decode()).status == 403
        proxy.settle()
    finally:
        proxy.on_loop(lambda: watch(None))
    # The number of times that `settle` checks for the end depends on the machine.
    ours = {name: number for name, number in calls.items() if not name.endswith((".in_flight", ".idle"))}
    return Counter({name: number for name, number in ours.items() if name.startswith(_LOOKING)})


# The modules and packages that decide about a request or look at the cache. A refusal that takes more steps there for
# one name than for another gives the name away. Riding ahead works beside the requests and is left out.
_DECIDING = tuple(
    f"outrider.{name}"
    for name in (
        "core.auth",
        "core.cache.freshness",
        "core.errors",
        "core.s3",
        "engine.fill.origin_reader",
        "engine.listing",
        "engine.read",
        "engine.write.passthrough",
        "http.access",
        "http.s3.fast_path",
        "http.s3.server",
    )
)
_LOOKING = tuple(f"{name}." for name in _DECIDING)


def test_each_module_that_is_watched_exists() -> None:
    """A module that moved away would be watched no longer, and the test below would see less."""
    assert [name for name in _DECIDING if importlib.util.find_spec(name) is None] == []


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("who", STRANGERS)
def test_a_refusal_takes_the_same_steps_for_a_cached_object_and_for_none(
    proxy: Proxy, who: str, method: str, trials: Trials
) -> None:
    """A difference in time can be measured over many tries. The cache is therefore not looked at before the refusal."""
    taken = []
    for target in (HERE, GONE, HERE, GONE):
        with RawConnection(proxy.address) as connection:
            taken.append(steps(proxy, connection, request_of(proxy, who, method, target, {})))
    here, gone = taken[2:]  # the first two fill the memos of spellings and keys
    assert here == gone
    assert here, "no step was recorded"
    assert not [name for name in here if name.startswith("outrider.engine.")], here
    trials.record("security", f"{who}: steps of a refusal, for what is cached and what is not", "equal", times=2)


# -- plans, stalls and status -----------------------------------------------------------------------------------------


def plan(key: str) -> bytes:
    return json.dumps({"reads": [f"s3://{NAME}/{key}"]}).encode()


def test_a_tenant_neither_sees_nor_touches_the_plans_of_another(proxy: Proxy, trials: Trials) -> None:
    assert answer_to(proxy, wire(proxy, TEAM, "PUT", "/_outrider/plan/mine", body=plan("team/here"))).status == 200
    before = answer_to(proxy, wire(proxy, TEAM, "GET", "/_outrider/plan/mine")).body
    here, gone = (answer_to(proxy, wire(proxy, OTHER, "GET", f"/_outrider/plan/{name}")) for name in ("mine", "none"))
    assert here.status == gone.status == 404
    assert visible(here)[2].replace("mine", "none") == visible(gone)[2]
    assert answer_to(proxy, wire(proxy, OTHER, "DELETE", "/_outrider/plan/mine")).status == 204, (
        "OTHER has no such plan, and S3 answers so"
    )
    assert answer_to(proxy, wire(proxy, OTHER, "PUT", "/_outrider/plan/mine", body=plan("other/a"))).status == 200
    assert b"mine" not in answer_to(proxy, wire(proxy, NOBODY, "GET", "/_outrider?list-type=2")).body
    listed = answer_to(proxy, wire(proxy, OTHER, "GET", "/_outrider?list-type=2")).body
    assert listed.count(b"<Key>plan/") == 1
    assert answer_to(proxy, wire(proxy, TEAM, "GET", "/_outrider/plan/mine")).body == before
    trials.record("security", "a tenant at another's plan", "nothing to see, nothing changed")


@pytest.mark.parametrize(
    "url",
    [
        f"s3://{NAME}/team/here",
        f"s3://{NAME}/other/../team/here",
        f"s3://{NAME}/other//../team/here",
        "s3://another/other/x",
        f"s3://{NAME}/other\\..\\..\\team/here",
    ],
)
def test_a_plan_fetches_nothing_that_its_client_may_not_read(proxy: Proxy, url: str, trials: Trials) -> None:
    body = json.dumps({"reads": [f"s3://{NAME}/other/a", url]}).encode()
    assert answer_to(proxy, wire(proxy, OTHER, "PUT", "/_outrider/plan/stolen", body=body)).code == "AccessDenied"
    assert answer_to(proxy, wire(proxy, OTHER, "GET", "/_outrider/plan/stolen")).status == 404
    trials.record("security", "a plan that names what its teller may not read", "AccessDenied")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/x",
        "file:///etc/passwd",
        "s3://127.0.0.1:1@x/y",
        "//x/y",
        "s3:///x",
        "s3://_outrider/status.json",
        "s3://b/k\r\nx: y",
        "gopher://x",
        "s3://a b/c",
    ],
)
def test_a_plan_reaches_no_other_host(proxy: Proxy, url: str) -> None:
    answer = answer_to(
        proxy, wire(proxy, OTHER, "PUT", "/_outrider/plan/x", body=json.dumps({"reads": [url]}).encode())
    )
    assert answer.code in ("InvalidArgument", "AccessDenied")


def test_the_status_for_a_tenant_has_no_names_and_no_addresses(proxy: Proxy) -> None:
    body = answer_to(proxy, wire(proxy, OTHER, "GET", "/_outrider/status.json")).body.decode()
    for word in ("127.0.0.1", "http", NAME, "team", TEAM[0]):
        assert word not in body


@pytest.mark.parametrize("who", STRANGERS)
def test_the_admin_port_serves_no_objects(proxy: Proxy, who: str) -> None:
    host, _, port = proxy.outrider.admin.rpartition(":")
    for target in (HERE, "/_outrider/status.json", f"/{NAME}?list-type=2"):
        assert ask((host, int(port)), "GET", target).status == 404
