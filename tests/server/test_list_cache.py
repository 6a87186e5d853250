"""The LIST cache before a real bucket: off by default, by a rule per prefix, amended by writes, shared by a cluster."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.nodes import Node, Nodes
from tests.support.proxy import Proxy
from tests.support.rawhttp import ask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

NAME = "listings"


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, dict.fromkeys(("a/1", "a/2", "b/1"), b"x"))


def listed(client: Any, prefix: str) -> tuple[list[str], str]:
    page = client.list_objects_v2(Bucket=NAME, Prefix=prefix)
    return [entry["Key"] for entry in page.get("Contents", [])], page["ResponseMetadata"]["HTTPHeaders"]["x-cache"]


def served_bytes(proxy: Proxy) -> dict[str, int]:
    """By source."""
    found: dict[str, int] = proxy.status()["served_bytes"]
    return found


def test_a_list_under_a_rule_is_forwarded_once_and_again_after_writes_that_a_head_does_not_show(
    bucket: Bucket, simulator: Simulator
) -> None:
    with Proxy(bucket, simulator.endpoint, list_cache=[{"prefixes": f"{NAME}/a*", "ttl_s": 3600}]) as proxy:
        client = proxy.client()
        simulator.reset()
        assert listed(client, "a/") == (["a/1", "a/2"], "BYPASS")
        assert 0 == served_bytes(proxy)["disk"] < served_bytes(proxy)["origin"]
        assert listed(client, "a/") == (["a/1", "a/2"], "HIT")
        assert served_bytes(proxy)["disk"] == served_bytes(proxy)["origin"]
        assert simulator.counts().gets == 1
        client.put_object(Bucket=NAME, Key="a/3", Body=b"x")
        assert listed(client, "a/") == (["a/1", "a/2", "a/3"], "BYPASS")
        client.delete_objects(Bucket=NAME, Delete={"Objects": [{"Key": "a/3"}]})
        assert listed(client, "a/") == (["a/1", "a/2"], "HIT")
        client.copy_object(Bucket=NAME, Key="a/4", CopySource={"Bucket": NAME, "Key": "a/1"})
        assert listed(client, "a/") == (["a/1", "a/2", "a/4"], "BYPASS")
        client.delete_object(Bucket=NAME, Key="a/4")
        assert listed(client, "a/") == (["a/1", "a/2"], "HIT")
        for _ in range(2):
            assert listed(client, "b/") == (["b/1"], "BYPASS")
        client.close()


def test_a_kept_list_shows_each_kind_of_write_as_the_bucket_would(bucket: Bucket, simulator: Simulator) -> None:
    with Proxy(bucket, simulator.endpoint, list_cache=[{"prefixes": f"{NAME}/c*", "ttl_s": 3600}]) as proxy:
        client, direct = proxy.client(), bucket.client()
        for number in range(4):
            direct.put_object(Bucket=NAME, Key=f"c/{number}", Body=b"x")
        shown = [client.list_objects_v2(Bucket=NAME, Prefix="c/")]
        simulator.reset()
        writes: tuple[Callable[[], Any], ...] = (
            lambda: client.put_object(Bucket=NAME, Key="c/2x", Body=b"new"),
            lambda: client.put_object(Bucket=NAME, Key="c/2", Body=b"written anew"),
            lambda: client.copy_object(Bucket=NAME, Key="c/9", CopySource={"Bucket": NAME, "Key": "c/2"}),
            lambda: client.delete_object(Bucket=NAME, Key="c/0"),
            lambda: client.delete_objects(Bucket=NAME, Delete={"Objects": [{"Key": "c/9"}, {"Key": "c/1"}]}),
        )
        for write in writes:
            write()
            shown = [each.list_objects_v2(Bucket=NAME, Prefix="c/") for each in (client, direct)]
            assert shown[0]["ResponseMetadata"]["HTTPHeaders"]["x-cache"] == "HIT"
            assert shown[0]["KeyCount"] == len(shown[0]["Contents"])
            facts = [[{name: its[name] for name in ("Key", "ETag", "Size", "LastModified")} for its in each["Contents"]]
                     for each in shown]  # fmt: skip
            assert facts[0] == facts[1]
        assert simulator.counts().gets == 0
        client.close()
        direct.close()


def test_without_a_rule_each_list_is_forwarded(bucket: Bucket) -> None:
    with Proxy(bucket) as proxy:
        client = proxy.client()
        for _ in range(2):
            assert listed(client, "a/") == (["a/1", "a/2"], "BYPASS")
        client.close()


def test_a_parameter_that_comes_twice_reaches_the_bucket_in_the_order_of_the_client(
    bucket: Bucket, simulator: Simulator
) -> None:
    queries = ["prefix=b&list-type=2&prefix=a", "prefix=a&list-type=2&prefix=b"]
    with Proxy(bucket, simulator.endpoint) as proxy:
        simulator.reset()
        for query in queries:
            assert ask(proxy.address, "GET", f"/{NAME}?{query}").status == 200, "its signature is good"
        assert [request.query for request in simulator.log()] == queries


def test_a_cluster_asks_the_bucket_for_a_list_once(bucket: Bucket, simulator: Simulator, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(f'[[list_cache]]\nprefixes = "{NAME}/*"\nttl_s = 3600\n')
    names = [f"shared-{number}/" for number in range(12)]
    bucket.store(NAME, {f"{name}{key}": b"x" for name in names for key in "12"})
    nodes = Nodes(bucket, tmp_path, 3, origin=simulator.endpoint, config=str(rules), quick_hellos=True)

    def shown(node: Node, name: str) -> tuple[list[str], str | None]:
        answer = ask(node.address, "GET", f"/{NAME}?list-type=2&prefix={name}")
        return re.findall(rf"<Key>{name}(.*?)</Key>", answer.body.decode()), answer.headers.get("x-cache")

    with nodes, ThreadPoolExecutor(3) as pool:

        def shown_by_all(name: str, keys: str) -> list[str]:
            """`x-cache` of all three, which are asked at once, and all show the keys."""
            answers = list(pool.map(lambda node: shown(node, name), nodes.all))
            assert [found for found, _ in answers] == [list(keys)] * 3
            return sorted(cache or "" for _, cache in answers)

        simulator.reset()
        for name in names:
            assert shown_by_all(name, "12") in (["BYPASS", "PEER", "PEER"], ["HIT", "PEER", "PEER"])
        assert simulator.counts().gets == len(names)
        for name in names:
            assert shown_by_all(name, "12") == ["HIT"] * 3
            assert ask(nodes[0].address, "PUT", f"/{NAME}/{name}3", (("content-length", "1"),), b"x").status == 200
            shown_by_all(name, "123")
        os.kill(nodes[2].pid, signal.SIGSTOP)
        try:
            # Whichever of the three owns a LIST, the two that are left answer.
            bucket.store(NAME, {f"later-{number}/1": b"x" for number in range(12)})
            for number in range(12):
                for node in nodes.all[:2]:
                    assert shown(node, f"later-{number}/")[0] == ["1"]
            assert nodes[0].alive() == {"node-1", "node-2"}
        finally:
            os.kill(nodes[2].pid, signal.SIGCONT)
