"""The zones where a pod can run, by its own requirements and by the nodes that there are.

Source: Kubernetes' documentation, "Assigning Pods to Nodes" and "Taints and Tolerations". Resources, volumes and other
pods are left to the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.core.operator.affinity import ZONE_LABEL

Zone = str | None
"""None: unknown."""

# The effects that keep a new pod away.
_KEEPING_AWAY = ("NoSchedule", "NoExecute")
_HOSTNAME = "metadata.name"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """`labels` and `taints` (core/v1 Taint) of a node."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, Any]] = field(default=())

    @property
    def zone(self) -> Zone:
        return self.labels.get(ZONE_LABEL)


def facts_of(node: Mapping[str, Any]) -> NodeFacts:
    """`node`: as the API server has it."""
    metadata, spec = node["metadata"], node.get("spec") or {}
    return NodeFacts(metadata["name"], metadata.get("labels") or {}, spec.get("taints") or ())


def zones_of(spec: Mapping[str, Any], nodes: Iterable[NodeFacts], zones: Iterable[Zone]) -> frozenset[Zone]:
    """Those of `zones` in which a pod of this spec can run.

    A pod that fits no node may wait for one that an autoscaler makes: then its requirements on the zone count alone.
    Without such a requirement it may run in all of them, and so may a pod whose zones have no cache: the caches of
    others serve it.
    """
    among = frozenset(zones)
    fits = {node.zone for node in nodes if can_run(spec, node)}
    if not fits:
        fits = {zone for zone in among if zone is None or _may_be_in(spec, zone)}
    return (among & fits) or among


def can_run(spec: Mapping[str, Any], node: NodeFacts) -> bool:
    """Whether the node selector, the required node affinity and the tolerations of a pod admit the node."""
    tolerations = [each or {} for each in spec.get("tolerations") or ()]
    is_kept_away = any(
        taint.get("effect") in _KEEPING_AWAY and not any(_tolerates(each, taint) for each in tolerations)
        for taint in node.taints
    )
    if is_kept_away or not (spec.get("nodeSelector") or {}).items() <= node.labels.items():
        return False
    terms = _required(spec)
    return terms is None or any(_is_met(term, node) for term in terms)


def _may_be_in(spec: Mapping[str, Any], zone: str) -> bool:
    """By the requirements on the zone alone."""
    labels = {ZONE_LABEL: zone}
    if (spec.get("nodeSelector") or {}).get(ZONE_LABEL, zone) != zone:
        return False
    terms = _required(spec)
    return terms is None or any(
        all(meets(labels, each) for each in term.get("matchExpressions") or () if each.get("key") == ZONE_LABEL)
        for term in terms
    )


def _required(spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    """The terms of which a node has to meet one; None: there are none."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if not required else [term or {} for term in required.get("nodeSelectorTerms") or ()]


def _is_met(term: Mapping[str, Any], node: NodeFacts) -> bool:
    """A term without requirements admits no node."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    return bool(expressions or fields) and (
        all(meets(node.labels, each) for each in expressions)
        and all(meets({_HOSTNAME: node.name}, each) for each in fields)
    )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    key, is_any = toleration.get("key") or "", toleration.get("operator") == "Exists"
    if not key:
        return is_any
    return key == taint.get("key") and (is_any or (toleration.get("value") or "") == (taint.get("value") or ""))


# -- selectors. Source: apimachinery, pkg/labels/selector.go ----------------------------------------------------------


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A LabelSelector (meta/v1). An empty one selects all."""
    return (selector.get("matchLabels") or {}).items() <= labels.items() and all(
        meets(labels, each) for each in selector.get("matchExpressions") or ()
    )


def meets(labels: Mapping[str, str], requirement: Mapping[str, Any]) -> bool:
    """A requirement of a LabelSelector or of a NodeSelectorTerm. An operator that is not known is not met."""
    value = labels.get(requirement["key"])
    values: Sequence[str] = requirement.get("values") or ()
    match requirement.get("operator"):
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return any(_is_greater(value, bound) for bound in values)
        case "Lt":
            return any(_is_greater(bound, value) for bound in values)
    return False


def _is_greater(one: str | None, other: str | None) -> bool:
    try:
        return one is not None and other is not None and int(one) > int(other)
    except ValueError:
        return False
