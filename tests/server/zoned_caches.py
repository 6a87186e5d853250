"""Caches in several zones, as an operator meets them: real proxies at one port of many loopback addresses, and an API
server that knows their nodes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from outrider.adapters.kubernetes.caches import S3Caches
from outrider.adapters.kubernetes.kube_api import KubeApi
from outrider.core.operator.affinity import ZONE_LABEL
from outrider.core.operator.pod_patch import GATE, Offers
from outrider.engine.operator import gates
from outrider.operator_composition import Operator
from tests.support.bucket import Bucket
from tests.support.child import free_ports
from tests.support.fake_kube import (
    EVENTS,
    NAMESPACE,
    NAMESPACES,
    NODES,
    PODS,
    SLICES,
    WEBHOOKS,
    KubeServer,
    configuration,
    kube_server,
)
from tests.support.pods import Pod, near
from tests.support.proxy import ANY_KEYS, Proxy
from tests.support.simulator import Simulator

SERVICE = "peers"
_DEADLINE_S = 30.0


class ZonedCaches:
    """`zones`: the zone of each node; nodes of one zone are one cache. `node-1` is at 127.0.0.2, and so on."""

    def __init__(self, bucket: Bucket, origin: Simulator, folder: Path, zones: dict[str, str]) -> None:
        self.zones = zones
        self.origin = origin
        self.hosts = {node: f"127.0.0.{number}" for number, node in enumerate(zones, 2)}
        self.s3_port, self.admin_port, peer_port = free_ports(3)
        key = folder / "key"
        key.write_text(secrets.token_hex(32) + "\n")
        key.chmod(0o600)
        members = folder / "members"
        members.write_text("".join(f"{host}:{peer_port} name={node}\n" for node, host in self.hosts.items()))
        self.proxies = {
            node: Proxy(
                bucket, origin.endpoint, listen=f"{host}:{self.s3_port}", admin=f"{host}:{self.admin_port}",
                peers=f"file:{members}", peer_listen=f"{host}:{peer_port}", peer_name=node, peer_key_file=str(key),
                peer_zone=zones[node],
            )
            for node, host in self.hosts.items()
        }  # fmt: skip

    def slices(self) -> dict[str, Any]:
        endpoints = [
            {"addresses": [host], "nodeName": node, "zone": self.zones[node], "conditions": {"ready": True}}
            for node, host in self.hosts.items()
        ]
        metadata = {"name": "peers-1", "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": SERVICE}}
        return {"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints}

    def held_bytes(self, prefix: str) -> dict[str, int]:
        """The bytes on the disk of each node of objects whose keys begin so."""
        return {
            node: sum(
                row.get("cached_bytes", 0) for row in proxy.status()["datasets"] if row["name"].startswith(prefix)
            )
            for node, proxy in self.proxies.items()
        }


@contextmanager
def zoned_caches(bucket: Bucket, folder: Path, zones: dict[str, str]) -> Iterator[ZonedCaches]:
    with ExitStack() as stack:
        made = ZonedCaches(bucket, stack.enter_context(Simulator(bucket.address)), folder, zones)
        for proxy in made.proxies.values():
            stack.enter_context(proxy)
        yield made


class Scene:
    """An API server with the nodes of some caches. Operators look at it more often than usual."""

    def __init__(self, kube: KubeServer, caches: ZonedCaches) -> None:
        self.kube = kube
        self.caches = caches
        for node, zone in caches.zones.items():
            self.kube.place(NODES, {"metadata": {"name": node, "labels": {ZONE_LABEL: zone}}, "spec": {}})
        self.namespace("team")
        self.kube.place(SLICES, caches.slices())

    def namespace(self, name: str, **labels: str) -> None:
        self.kube.place(NAMESPACES, {"metadata": {
            "name": name, "labels": {"kubernetes.io/metadata.name": name, **labels},
        }})  # fmt: skip

    @asynccontextmanager
    async def operator(
        self, beside: str, *, name: str = "outrider-operator", namespaces: dict[str, Any] | None = None
    ) -> AsyncIterator[None]:
        """It runs on the node `beside`, and meets that one's cache at the Service."""
        self.kube.place(WEBHOOKS, {**configuration(), "metadata": {"name": name}})
        api = KubeApi(NAMESPACE, service_account=self.kube.account)
        caches = S3Caches(
            self.caches.proxies[beside].endpoint, s3_port=self.caches.s3_port, admin_port=self.caches.admin_port,
            admin_token=None,
        )  # fmt: skip
        made = Operator(
            api, caches, Offers(), cache=(NAMESPACE, SERVICE), name=name, me=f"{name}-{beside}",
            namespaces=namespaces or {},
        )  # fmt: skip
        try:
            async with caches, made.running(("127.0.0.1", 0), ("127.0.0.1", 0)):
                yield
        finally:
            await api.close()

    def wait(self, data: str, *, name: str = "train-0", namespace: str = "team", **given: Any) -> None:
        """A pod that waits at its gate for all of the data."""
        pod: Pod = near(data, warm="1.0", name=name, **given) | {"status": {"phase": "Pending"}}
        pod["spec"]["schedulingGates"] = [{"name": GATE}]
        pod["metadata"]["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        pod["metadata"]["namespace"] = namespace
        self.kube.place(PODS, pod)

    async def opened(self, name: str = "train-0", *, namespace: str = "team") -> tuple[str, str]:
        """The reason and the text of the Event, once its gate is open."""
        events = await until(lambda: [
            (event["reason"], event["message"]) for event in self.kube.all_of(EVENTS)
            if event["involvedObject"]["name"] == name and event["reason"] != "Warming"
        ])  # fmt: skip
        assert not self.kube.found(PODS, namespace, name)["spec"]["schedulingGates"]
        first: tuple[str, str] = events[0]
        return first

    def weights(self, name: str = "train-0", *, namespace: str = "team") -> dict[str, int]:
        """The weight of each node and zone that the pod prefers."""
        affinity = self.kube.found(PODS, namespace, name)["spec"].get("affinity") or {}
        terms = affinity.get("nodeAffinity", {}).get("preferredDuringSchedulingIgnoredDuringExecution", ())
        return {part["values"][0]: term["weight"] for term in terms for [part] in term["preference"].values()}


@asynccontextmanager
async def scene(caches: ZonedCaches, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    for name, value in zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ANY_KEYS, strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gates, "STEP_S", 0.1)
    async with kube_server(folder, NAMESPACE) as (server, environ):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        yield Scene(server, caches)


async def until(happened: Callable[[], Any]) -> Any:
    async with asyncio.timeout(_DEADLINE_S):
        while not (found := happened()):
            await asyncio.sleep(0.02)
        return found
