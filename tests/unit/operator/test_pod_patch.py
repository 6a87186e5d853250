"""The patch of a pod: what it adds, what it leaves alone, and that the result is a pod of each Kubernetes."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest

from outrider.core.operator.affinity import Holding
from outrider.core.operator.pod_patch import GATE, Offers, Sidecar, opened, patch_of, wishes_in
from outrider.core.operator.wishes import Inject, WishError
from tests.support.pods import KUBERNETES, Pod, near, patched, pod, validate

URL = "http://outrider.cache.svc:9480"
INSIDE = "http://127.0.0.1:9480"
SET = ("AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")
SIDECAR = Sidecar(
    {"name": "outrider", "image": "outrider:1", "volumeMounts": [{"name": "outrider-cache", "mountPath": "/cache"}]},
    [{"name": "outrider-cache", "emptyDir": {"sizeLimit": "10Gi"}}],
    INSIDE,
)
OFFERS = Offers(URL, SIDECAR)
HELD = [Holding("node-a", "zone-1", 1.0), Holding("node-b", "zone-1", 0.3), Holding(None, "zone-1", 1.0)]
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OWN_TERM = {"weight": 10, "preference": {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}}


def admitted(manifest: Pod, holdings: list[Holding] = HELD, offers: Offers = OFFERS) -> Pod:
    before = copy.deepcopy(manifest)
    result = patched(manifest, patch_of(manifest, wishes_in(manifest), offers, holdings, opener="first"))
    assert manifest == before
    for version in KUBERNETES:
        validate(result, version)
    return result


def terms_of(manifest: Pod) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = manifest["spec"]["affinity"]["nodeAffinity"][PREFERRED]
    return found


def env_of(container: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container.get("env", ())}


def test_a_pod_near_its_data_prefers_the_nodes_that_hold_it_and_requires_none() -> None:
    result = admitted(near())
    assert [term["weight"] for term in terms_of(result)] == [100, 25, 50]
    assert list(result["spec"]["affinity"]["nodeAffinity"]) == [PREFERRED]
    assert "schedulingGates" not in result["spec"]


def test_where_no_node_holds_the_data_nothing_is_changed() -> None:
    assert admitted(near(), []) == near()


@pytest.mark.parametrize(
    "affinity",
    [
        {"podAntiAffinity": {}},
        {"nodeAffinity": {}},
        {"nodeAffinity": {PREFERRED: []}},
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [OWN_TERM["preference"]]}}},
        {"nodeAffinity": {PREFERRED: [OWN_TERM]}},
        None,
    ],
)  # fmt: skip
def test_terms_of_the_user_stay_and_weigh_more(affinity: dict[str, Any] | None) -> None:
    result = admitted(near(affinity=affinity))
    own = ((affinity or {}).get("nodeAffinity") or {}).get(PREFERRED) or []
    terms = terms_of(result)
    assert terms[: len(own)] == own
    assert len(terms) > len(own)
    if own:
        assert sum(term["weight"] for term in terms[1:]) < 10 + 9
        best = [term["weight"] for term in terms[1:]]
        assert best[0] + best[-1] < 10, "a node that holds all, in its zone"
    for kind, value in (affinity or {}).items():
        if kind != "nodeAffinity":
            assert result["spec"]["affinity"][kind] == value
    assert result["spec"]["affinity"]["nodeAffinity"].get(REQUIRED) == (
        ((affinity or {}).get("nodeAffinity") or {}).get(REQUIRED)
    )


def test_a_pod_that_waits_gets_its_gate_beside_those_of_others_and_its_affinity_later() -> None:
    result = admitted(near(warm="0.9", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]))
    assert [gate["name"] for gate in result["spec"]["schedulingGates"]] == ["kueue.x-k8s.io/admission", GATE]
    assert "affinity" not in result["spec"]
    done = patched(result, opened(result, HELD))
    assert [gate["name"] for gate in done["spec"]["schedulingGates"]] == ["kueue.x-k8s.io/admission"]
    assert terms_of(done)
    assert opened(done, HELD) == []


def test_a_gate_that_was_opened_meanwhile_is_not_opened_twice() -> None:
    waiting = admitted(near(warm="0.9", schedulingGates=[{"name": "other"}]))
    patch = opened(waiting, HELD)
    waiting["spec"]["schedulingGates"].reverse()
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        patched(waiting, patch)


def test_a_pod_that_names_its_node_is_neither_gated_nor_placed() -> None:
    manifest = near(warm="0.9", nodeName="node-a")
    assert admitted(manifest) == manifest


def test_the_endpoint_is_given_to_each_container_that_names_none() -> None:
    containers = [
        {"name": "a", "image": "a"},
        {"name": "b", "image": "b", "env": [{"name": "X", "value": "1"}]},
        {"name": "c", "image": "c", "env": [{"name": "AWS_ENDPOINT_URL", "value": "http://mine"}]},
        {"name": "d", "image": "d", "env": [{"name": "AWS_ENDPOINT_URL_S3", "value": "http://mine"}]},
    ]
    manifest = pod(labels={"outrider.dev/inject": "endpoint"}, containers=containers, initContainers=containers[:1])
    result = admitted(manifest)["spec"]
    endpoints = [env_of(container).get("AWS_ENDPOINT_URL") for container in result["containers"]]
    assert endpoints == [URL, URL, "http://mine", None]
    assert env_of(result["initContainers"][0]) == dict.fromkeys(SET, URL)


def test_the_sidecar_comes_with_its_volumes_and_endpoint_in_one_patch() -> None:
    first = {"name": "setup", "image": "setup"}
    manifest = pod(labels={"outrider.dev/inject": "sidecar"}, initContainers=[first])
    spec = admitted(manifest)["spec"]
    assert [container["name"] for container in spec["initContainers"]] == ["outrider", "setup"]
    assert spec["initContainers"][0]["restartPolicy"] == "Always"
    assert spec["volumes"] == list(SIDECAR.volumes)
    assert env_of(spec["containers"][0]) == env_of(spec["initContainers"][1]) == dict.fromkeys(SET, INSIDE)
    assert "env" not in spec["initContainers"][0]


@pytest.mark.parametrize("offers", [Offers(), Offers(URL)])
def test_what_is_not_offered_is_not_put_in(offers: Offers) -> None:
    manifest = pod(labels={"outrider.dev/inject": "sidecar"})
    assert admitted(manifest, offers=offers) == manifest


@pytest.mark.parametrize("taken", [
    {"volumes": [{"name": "outrider-cache", "emptyDir": {}}]},
    {"initContainers": [{"name": "outrider", "image": "mine"}]},
])  # fmt: skip
def test_a_sidecar_of_the_users_own_is_left_alone(taken: dict[str, Any]) -> None:
    manifest = pod(labels={"outrider.dev/inject": "sidecar"}, **taken)
    assert admitted(manifest) == manifest


def test_a_pod_in_the_network_of_its_node_gets_no_sidecar_that_trusts_its_loopback() -> None:
    with pytest.raises(WishError, match="with hostNetwork all of the node could read"):
        wishes_in(pod(labels={"outrider.dev/inject": "sidecar"}, hostNetwork=True))
    assert wishes_in(pod(labels={"outrider.dev/inject": "endpoint"}, hostNetwork=True)).inject is Inject.ENDPOINT


@pytest.mark.parametrize("labels", [{}, {"outrider.dev/inject": "sidecar"}, {"outrider.dev/inject": "endpoint"}])
@pytest.mark.parametrize("warm", [None, "0.5"])
def test_a_pod_that_was_patched_is_not_patched_again(labels: dict[str, str], warm: str | None) -> None:
    if warm and "sidecar" in labels.values():
        return
    once = admitted(near(warm=warm, labels=labels))
    assert once != near(warm=warm, labels=labels)
    assert admitted(once) == once
