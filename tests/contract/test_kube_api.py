"""The operator's calls against an API server, over https and with a pod's token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outrider.adapters.kubernetes.kube_api import KubeApi
from outrider.core.operator.pod_patch import GATE, opened
from outrider.engine.operator.event_writer import event_of
from outrider.operator_ports import ConflictError, KubeError
from outrider.settings import SettingsError
from tests.support.api_calls import API_CALLS
from tests.support.fake_kube import (
    CONFIGURATION,
    EVENTS,
    LEASE,
    NAME,
    NAMESPACE,
    PODS,
    SECRET,
    SLICES,
    WEBHOOKS,
    KubeServer,
    configuration,
    kube_server,
)
from tests.support.pods import near, pod
from tests.support.tls import certify

LABEL = "outrider.dev/schedule"
SECRET_OF_CA = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{NAME}-ca"}, "data": {"a": "eA=="}}


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeServer]:
    async with kube_server(tmp_path, NAMESPACE) as (served, environ):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        yield served


@pytest.fixture
async def api(server: KubeServer) -> AsyncIterator[KubeApi]:
    opened = KubeApi(service_account=server.account)
    yield opened
    await opened.close()


async def test_the_namespace_is_that_of_the_service_account(api: KubeApi, server: KubeServer) -> None:
    assert api.namespace == NAMESPACE


async def test_pending_pods_are_found_by_label(api: KubeApi, server: KubeServer) -> None:
    for name, label, phase in [("a", "true", "Pending"), ("b", "false", "Pending"), ("c", "true", "Running")]:
        server.place(PODS, {**pod(name=name, labels={LABEL: label}), "status": {"phase": phase}})
    server.place(PODS, {**pod(name="d"), "status": {"phase": "Pending"}})
    assert [each["metadata"]["name"] for each in await api.pending_pods(LABEL, "true")] == ["a"]
    assert [each["metadata"]["name"] for each in await api.pending_pods(LABEL, None)] == ["a", "b"]


async def test_pods_of_a_namespace_are_found_in_any_phase(api: KubeApi, server: KubeServer) -> None:
    for name, namespace, phase in [("a", "team", "Running"), ("b", "team", "Failed"), ("c", "other", "Running")]:
        placed = {**pod(name=name, labels={LABEL: "true"}), "status": {"phase": phase}}
        placed["metadata"]["namespace"] = namespace
        server.place(PODS, placed)
    server.place(PODS, pod(name="d"))
    assert [each["metadata"]["name"] for each in await api.pods_in("team", LABEL)] == ["a", "b"]


async def test_an_event_that_is_to_be_emitted_once_is_refused_the_second_time(api: KubeApi, server: KubeServer) -> None:
    event = event_of(pod(), "R", "n", is_warning=True, time="2026-01-01T00:00:00Z", by="one", is_once=True)
    await api.emit(event)
    with pytest.raises(ConflictError):
        await api.emit({**event, "reportingInstance": "two"})


async def test_a_pod_is_passed_on_as_the_api_server_sends_it(api: KubeApi, server: KubeServer) -> None:
    """Fields that no library knows yet, and fields that are null."""
    sent = {**near(warm="0.9"), "status": {"phase": "Pending", "newInThisVersion": {"a": [1, None, {}]}}}
    sent["spec"].update(schedulingGates=[{"name": GATE, "more": 1}], nodeSelector=None)
    server.place(PODS, sent)
    [found] = await api.pending_pods(LABEL, None)
    assert found["status"] == sent["status"]
    assert found["spec"] == sent["spec"]


async def test_a_gate_that_another_writer_has_moved_is_a_conflict(api: KubeApi, server: KubeServer) -> None:
    waiting = near(warm="0.9", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}, {"name": GATE}])
    server.place(PODS, waiting)
    moved = near(schedulingGates=[{"name": GATE}])
    with pytest.raises(ConflictError):
        await api.patch_pod("team", "train-0", opened(moved, ()))
    await api.patch_pod("team", "train-0", opened(waiting, ()))
    assert server.found(PODS, "team", "train-0")["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/admission"}]


async def test_a_pod_that_is_gone_is_no_conflict(api: KubeApi, server: KubeServer) -> None:
    with pytest.raises(KubeError) as raised:
        await api.patch_pod("team", "train-0", opened(near(schedulingGates=[{"name": GATE}]), ()))
    assert raised.value.code == 404


async def test_it_knows_which_calls_it_may_make(api: KubeApi, server: KubeServer) -> None:
    server.refused = {("patch", "", "pods")}
    assert await api.may("list", "", "pods")
    assert not await api.may("patch", "", "pods")
    assert await api.may("update", "coordination.k8s.io", "leases", namespace=NAMESPACE, name=NAME)


async def test_an_event_is_emitted_in_the_namespace_of_its_pod(api: KubeApi, server: KubeServer) -> None:
    for _ in range(2):
        await api.emit(event_of(pod(), "Warm", "is warm", is_warning=False, time="2026-01-01T00:00:00Z", by="me"))
    events = server.all_of(EVENTS)
    assert len(events) == 2
    assert {(event["metadata"]["namespace"], event["message"]) for event in events} == {("team", "is warm")}


async def test_slices_are_those_of_the_service(api: KubeApi, server: KubeServer) -> None:
    for name, service, namespace in [("a", "peers", "cache"), ("b", "other", "cache"), ("c", "peers", "team")]:
        labels = {"kubernetes.io/service-name": service}
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        server.place(SLICES, {"metadata": metadata, "addressType": "IPv4", "endpoints": []})
    assert [each["metadata"]["name"] for each in await api.endpoint_slices("cache", "peers")] == ["a"]


async def test_of_two_writers_of_a_secret_one_is_refused(api: KubeApi, server: KubeServer) -> None:
    assert await api.get(SECRET, f"{NAME}-ca") is None
    await api.create(SECRET, SECRET_OF_CA)
    with pytest.raises(ConflictError):
        await api.create(SECRET, SECRET_OF_CA)
    found = await api.get(SECRET, f"{NAME}-ca")
    assert found is not None
    assert found["data"] == {"a": "eA=="}
    await api.update(SECRET, {**found, "data": {"a": "eQ=="}})
    with pytest.raises(ConflictError):
        await api.update(SECRET, {**found, "data": {"a": "eg=="}})


async def test_a_webhook_configuration_is_patched(api: KubeApi, server: KubeServer) -> None:
    server.place(WEBHOOKS, configuration())
    await api.patch(CONFIGURATION, NAME, [{"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": "eA=="}])
    found = await api.get(CONFIGURATION, NAME)
    assert found is not None
    assert found["webhooks"][1]["clientConfig"]["caBundle"] == "eA=="
    with pytest.raises(ConflictError):
        await api.patch(CONFIGURATION, NAME, [{"op": "test", "path": "/metadata/resourceVersion", "value": "0"}])


async def test_a_refusal_and_a_server_that_is_away_are_different_errors(
    api: KubeApi, server: KubeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.refused = {("get", "coordination.k8s.io", "leases")}
    with pytest.raises(KubeError) as refused:
        await api.get(LEASE, NAME)
    assert refused.value.code == 403
    assert not isinstance(refused.value, ConflictError)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    away = KubeApi(service_account=server.account)
    with pytest.raises(KubeError) as unanswered:
        await away.get(LEASE, NAME)
    await away.close()
    assert unanswered.value.code == 0


async def test_a_renewed_token_is_read_again(api: KubeApi, server: KubeServer) -> None:
    assert await api.get(LEASE, NAME) is None
    server.rotate("second")
    assert await api.get(LEASE, NAME) is None


async def test_a_renewed_authority_of_the_api_server_is_read_again(server: KubeServer) -> None:
    file = server.account / "ca.crt"
    now = file.read_bytes()
    certify(server.account)
    file.write_bytes((server.account / "authority.pem").read_bytes())
    api = KubeApi(service_account=server.account)
    for _ in range(2):
        with pytest.raises(KubeError) as unanswered:
            await api.get(LEASE, NAME)
    assert unanswered.value.code == 0
    file.write_bytes(now)
    with pytest.raises(KubeError):
        await api.get(LEASE, NAME)
    assert await api.get(LEASE, NAME) is None
    await api.close()


def test_without_a_service_account_it_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="service account"):
        KubeApi(service_account=tmp_path)


def test_each_call_is_listed_once() -> None:
    assert len({call[:3] for call in API_CALLS}) == len(API_CALLS)
