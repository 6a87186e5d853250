"""The JSON Patch (RFC 6902) of a pod that is being created, by its wishes.

Terms of the user's own win: what a pod has already is left as it is, and preferences for nodes weigh less than the
least of the user's. A pod that was patched before is not changed again, since the API server may ask twice
(`reinvocationPolicy`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from outrider.core.operator.affinity import Holding, preferred_terms
from outrider.core.operator.wishes import INJECT, OPERATOR, SCHEDULE, Inject, WishError, Wishes, wishes_of

GATE = "outrider.dev/warm"
# The variables of SDKs and of s5cmd.
_SET = ("AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")
# Each of these sends S3 calls elsewhere.
_OWN = (*_SET, "AWS_ENDPOINT_URL_S3")
Operation = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sidecar:
    """`container`: the proxy, which becomes a native sidecar. `endpoint`: its URL inside the pod."""

    container: Mapping[str, Any]
    volumes: Sequence[Mapping[str, Any]]
    endpoint: str


@dataclass(frozen=True, slots=True)
class Offers:
    """The endpoint and the sidecar that can be put into pods. None: this operator has none."""

    endpoint: str | None = None
    sidecar: Sidecar | None = None


def wishes_in(pod: Mapping[str, Any]) -> Wishes:
    """Raises WishError: a wish makes no sense, or not for this pod."""
    metadata = pod.get("metadata") or {}
    wishes = wishes_of(metadata.get("labels") or {}, metadata.get("annotations") or {})
    # The sidecar trusts the loopback of its pod, and has the keys of the bucket.
    if wishes.inject is Inject.SIDECAR and (pod.get("spec") or {}).get("hostNetwork"):
        raise WishError(f"label {INJECT}: with hostNetwork all of the node could read through the sidecar")
    return wishes


def has_label(pod: Mapping[str, Any]) -> bool:
    """Whether it has a label of ours, by which it can be listed."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return SCHEDULE in labels or INJECT in labels


def patch_of(
    pod: Mapping[str, Any], wishes: Wishes, offers: Offers, holdings: Iterable[Holding], *, opener: str | None
) -> list[Operation]:
    """`holdings`: where the pod's data is. `opener`: the name of the operator that opens its gate; None: no pod is held
    back."""
    spec: Mapping[str, Any] = pod.get("spec") or {}
    patch: list[Operation] = []
    if not spec:
        return patch
    if wishes.inject is Inject.ENDPOINT and offers.endpoint is not None:
        patch += _with_endpoint(spec, offers.endpoint)
    elif wishes.inject is Inject.SIDECAR and offers.sidecar is not None:
        patch += _with_sidecar(spec, offers.sidecar)
    # A pod that names its node is not scheduled.
    if wishes.is_near and not spec.get("nodeName"):
        if wishes.warm is not None and opener is not None:
            patch += _gated(spec, opener)
        else:
            patch += affinity_patch(spec, holdings)
    return patch


def affinity_patch(spec: Mapping[str, Any], holdings: Iterable[Holding]) -> list[Operation]:
    """Prefers the nodes that hold the data; empty: none do, or the pod prefers some already by these means."""
    affinity: Mapping[str, Any] = spec.get("affinity") or {}
    node_affinity: Mapping[str, Any] = affinity.get("nodeAffinity") or {}
    path, name = "/spec/affinity/nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution"
    own = _each(node_affinity, name)
    terms = (
        preferred_terms(holdings, min(term.get("weight") or 1 for term in own) - 1)
        if own
        else preferred_terms(holdings)
    )
    preferences = [term.get("preference") for term in own]
    if not terms or any(term["preference"] in preferences for term in terms):
        return []
    if own:
        return [{"op": "add", "path": f"{path}/{name}/-", "value": term} for term in terms]
    if not affinity:
        return [{"op": "add", "path": "/spec/affinity", "value": {"nodeAffinity": {name: terms}}}]
    if not node_affinity:
        return [{"op": "add", "path": path, "value": {name: terms}}]
    return [{"op": "add", "path": f"{path}/{name}", "value": terms}]


def opened(pod: Mapping[str, Any], holdings: Iterable[Holding]) -> list[Operation]:
    """Opens the gate and prefers the nodes that hold the data, in one; empty: the pod has no such gate.

    Another writer may change the list of gates meanwhile. The patch then fails as a whole, and is made anew.
    """
    spec: Mapping[str, Any] = pod.get("spec") or {}
    for index, gate in enumerate(_each(spec, "schedulingGates")):
        if gate.get("name") == GATE:
            path = f"/spec/schedulingGates/{index}"
            removed = [{"op": "test", "path": f"{path}/name", "value": GATE}, {"op": "remove", "path": path}]
            return [*removed, *affinity_patch(spec, holdings)]
    return []


def is_of(pod: Mapping[str, Any], operator: str) -> bool:
    """Whether no other operator of the cluster has closed the gate of the pod."""
    annotations: Mapping[str, str] = (pod.get("metadata") or {}).get("annotations") or {}
    return annotations.get(OPERATOR, operator) == operator


def is_gated(pod: Mapping[str, Any]) -> bool:
    return any(gate.get("name") == GATE for gate in _each(pod.get("spec") or {}, "schedulingGates"))


def _gated(spec: Mapping[str, Any], opener: str) -> list[Operation]:
    """A pod that waits has annotations: those of its wishes."""
    gates = _each(spec, "schedulingGates")
    if any(gate.get("name") == GATE for gate in gates):
        return []
    mark = {"op": "add", "path": f"/metadata/annotations/{OPERATOR.replace('/', '~1')}", "value": opener}
    return [mark, *_appended("/spec/schedulingGates", gates, [{"name": GATE}])]


def _with_endpoint(spec: Mapping[str, Any], url: str) -> list[Operation]:
    patch = []
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(_each(spec, kind)):
            own = _each(container, "env")
            if container and not any(variable.get("name") in _OWN for variable in own):
                patch += _appended(f"/spec/{kind}/{index}/env", own, [{"name": name, "value": url} for name in _SET])
    return patch


def _with_sidecar(spec: Mapping[str, Any], sidecar: Sidecar) -> list[Operation]:
    name = sidecar.container["name"]
    names = [container.get("name") for kind in ("initContainers", "containers") for container in _each(spec, kind)]
    volumes = _each(spec, "volumes")
    taken = {volume.get("name") for volume in volumes}
    if name in names or any(volume["name"] in taken for volume in sidecar.volumes):
        return []
    patch = _with_endpoint(spec, sidecar.endpoint)
    patch += _appended("/spec/volumes", volumes, [deepcopy(dict(volume)) for volume in sidecar.volumes])
    # First, so that the init containers that follow can read through it.
    container = {**deepcopy(dict(sidecar.container)), "restartPolicy": "Always"}
    if spec.get("initContainers"):
        patch.append({"op": "add", "path": "/spec/initContainers/0", "value": container})
    else:
        patch.append({"op": "add", "path": "/spec/initContainers", "value": [container]})
    return patch


def _each(of: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    """The list with that name. It may be missing, or null. Kubernetes' schema allows null as its entry, too."""
    return [entry or {} for entry in of.get(name) or ()]


def _appended(path: str, present: Sequence[Any], more: Sequence[Any]) -> list[Operation]:
    """A list that is missing, null or empty is made."""
    if not more:
        return []
    if not present:
        return [{"op": "add", "path": path, "value": list(more)}]
    return [{"op": "add", "path": f"{path}/-", "value": value} for value in more]
