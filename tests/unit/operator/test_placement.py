"""The zones where a pod can run, by selectors, affinity, taints and tolerations."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.core.operator.affinity import ZONE_LABEL
from outrider.core.operator.placement import can_run, facts_of, zones_of

GPU = {"key": "gpu", "value": "h100", "effect": "NoSchedule"}


def node(name: str, zone: str, *taints: dict[str, str], **labels: str) -> Any:
    return facts_of({"metadata": {"name": name, "labels": {ZONE_LABEL: zone, **labels}}, "spec": {"taints": taints}})


NODES = [node("a1", "a", gpus="8"), node("b1", "b", GPU, gpus="16"), node("c1", "c"), node("d1", "d")]


def needs(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": wanted}}


def matching(*expressions: dict[str, Any]) -> dict[str, Any]:
    return required({"matchExpressions": list(expressions)})


NAMED_C = needs("metadata.name", "In", "c1")
TOLERANT = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}


@pytest.mark.parametrize(
    ("spec", "zones"),
    [
        ({}, "ac"),
        ({"nodeSelector": None, "affinity": None, "tolerations": None}, "ac"),
        ({"nodeSelector": {"gpus": "8"}}, "a"),
        (TOLERANT, "abc"),
        ({**TOLERANT, "nodeSelector": {"gpus": "16"}}, "b"),
        (matching(needs(ZONE_LABEL, "In", "c", "d")), "c"),
        (matching(needs(ZONE_LABEL, "NotIn", "c")), "a"),
        (matching(needs("gpus", "DoesNotExist")), "c"),
        (matching(needs("gpus", "Exists"), needs("gpus", "Lt", "9")), "a"),
        ({**TOLERANT, **matching(needs("gpus", "Gt", "8"))}, "b"),
        (required({"matchFields": [NAMED_C]}), "c"),
        (required({"matchExpressions": [needs("gpus", "In", "8")]}, {"matchFields": [NAMED_C]}), "ac"),
        # No node is there for these yet: the zone that they name counts, or all do.
        ({"nodeSelector": {"gpus": "32", ZONE_LABEL: "b"}}, "b"),
        (matching(needs("gpus", "In", "32"), needs(ZONE_LABEL, "In", "b", "c")), "bc"),
        ({"nodeSelector": {"gpus": "32"}}, "abc"),
        # The node is in a zone without a cache.
        ({"nodeSelector": {ZONE_LABEL: "d"}}, "abc"),
    ],
)  # fmt: skip
def test_a_pod_can_run_in_the_zones_whose_nodes_admit_it(spec: dict[str, Any], zones: str) -> None:
    assert zones_of(spec, NODES, "abc") == set(zones)


@pytest.mark.parametrize(
    ("toleration", "is_admitted"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "h100"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "h100", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "a100"}, False),
        ({"key": "tpu", "operator": "Exists"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_a_taint_keeps_pods_away_that_do_not_tolerate_it(toleration: dict[str, str], is_admitted: bool) -> None:
    assert can_run({"tolerations": [toleration]}, node("n", "z", GPU)) == is_admitted
    assert can_run({}, node("n", "z", {**GPU, "effect": "PreferNoSchedule"}))
