"""The operator before an API server: the emulator, and the real one with the chart's own roles, where it is in PATH."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outrider.adapters.kubernetes.certificates import X509Certifier
from outrider.adapters.kubernetes.kube_api import KubeApi
from outrider.core.operator.affinity import Holding, preferred_terms
from outrider.core.operator.pod_patch import GATE, opened
from outrider.core.operator.wishes import SCHEDULE
from outrider.engine.operator.certificate_keeper import CertificateKeeper
from outrider.engine.operator.event_writer import event_of
from outrider.engine.operator.holdings_watch import pods_of
from outrider.engine.operator.leader import Leader
from outrider.engine.operator.rights import Rights
from outrider.operator_ports import CachePod, ConflictError, KubeError
from tests.contract.real_kube import RealKube, needs_kube_apiserver, real_kube
from tests.support.fake_kube import (
    EVENTS,
    LEASES,
    NAME,
    NAMESPACE,
    PODS,
    SECRETS,
    SLICES,
    WEBHOOKS,
    KubeServer,
    configuration,
    kube_server,
)
from tests.support.pods import near

OTHERS_GATE = "kueue.x-k8s.io/admission"
HELD = [Holding("node-a", "zone-a", 1.0), Holding(None, "zone-a", 1.0)]


@asynccontextmanager
async def begun(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeServer | RealKube]:
    if kind == "real":
        with real_kube(folder) as (real, environ):
            for name, value in environ.items():
                monkeypatch.setenv(name, value)
            yield real
        return
    async with kube_server(folder, NAMESPACE) as (server, environ):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        server.place(WEBHOOKS, configuration())
        yield server


@pytest.mark.parametrize("kind", ["emulated", pytest.param("real", marks=needs_kube_apiserver)])
async def test_the_rights_of_the_chart_are_enough_for_all_that_the_operator_does(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with begun(kind, tmp_path, monkeypatch) as server:
        api = KubeApi(service_account=server.account)
        try:
            await allowed(Rights(api, NAME, monotonic=time.monotonic))
            await of_two_one_acts(api, server)
            await the_api_server_trusts_the_certificate(api, server)
            await the_caches_are_found(api, server)
            await a_pod_is_let_go(api, server)
            if kind == "real":
                with pytest.raises(KubeError) as raised:
                    await api.get("Secret", "of-somebody-else")
                assert raised.value.code == 403
        finally:
            await api.close()


async def allowed(rights: Rights) -> None:
    """Roles that were just made count a moment later."""
    while not rights.may_open():
        try:
            await rights.step()
        except KubeError:
            await asyncio.sleep(0.1)


async def of_two_one_acts(api: KubeApi, server: KubeServer | RealKube) -> None:
    one, two = (Leader(api, NAME, me, monotonic=time.monotonic, clock=time.time) for me in ("one", "two"))
    for each in (one, two, one):
        await each.step()
    assert not two.is_leader()
    assert server.found(LEASES, NAMESPACE, NAME)["spec"]["holderIdentity"] == "one"
    await one.release()


async def the_api_server_trusts_the_certificate(api: KubeApi, server: KubeServer | RealKube) -> None:
    shown: list[str] = []
    keeper = CertificateKeeper(
        api, X509Certifier(), lambda issued: shown.append(issued.certificate), name=NAME, monotonic=time.monotonic,
        wall_clock=time.time,
    )  # fmt: skip
    await keeper.step()
    assert keeper.is_ready
    data = server.found(SECRETS, NAMESPACE, f"{NAME}-ca")["data"]
    assert [base64.b64decode(data["tls.crt"]).decode()] == shown
    for each in server.found(WEBHOOKS, None, NAME)["webhooks"]:
        assert each["clientConfig"]["caBundle"] == data["ca.crt"]


async def the_caches_are_found(api: KubeApi, server: KubeServer | RealKube) -> None:
    metadata = {"name": "peers-1", "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": "peers"}}
    endpoints = [{"addresses": ["10.1.0.1"], "nodeName": "node-a", "zone": "zone-a", "conditions": {"ready": True}}]
    server.place(SLICES, {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4",
        "endpoints": endpoints,
    })  # fmt: skip
    assert pods_of(await api.endpoint_slices(NAMESPACE, "peers")) == [CachePod("10.1.0.1", "node-a", "zone-a")]


async def a_pod_is_let_go(api: KubeApi, server: KubeServer | RealKube) -> None:
    """One patch opens the gate and prefers nodes: the API server allows that for a pod that is gated."""
    pod = near(warm="0.9", schedulingGates=[{"name": OTHERS_GATE}, {"name": GATE}])
    server.place(PODS, {**pod, "status": {"phase": "Pending"}})
    [found] = await api.pending_pods(SCHEDULE, "true")
    await api.patch_pod("team", "train-0", opened(found, HELD))
    with pytest.raises(ConflictError):
        await api.patch_pod("team", "train-0", opened(found, HELD))
    spec = server.found(PODS, "team", "train-0")["spec"]
    assert spec["schedulingGates"] == [{"name": OTHERS_GATE}]
    [(_, terms)] = spec["affinity"]["nodeAffinity"].items()
    assert terms == preferred_terms(HELD)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    await api.emit(event_of(found, "Warm", "is warm", is_warning=False, time=now, by="one"))
    [event] = [each for each in server.all_of(EVENTS) if each["reason"] == "Warm"]
    assert (event["metadata"]["namespace"], event["message"]) == ("team", "is warm")
