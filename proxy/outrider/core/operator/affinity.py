"""Preferred node affinity for pods that read a dataset: first the nodes that hold it, then their zones.

Preferences only. A pod whose nodes are all taken runs elsewhere, and reads through the cache there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# The weight of a node that holds so much of the data: the largest that applies.
_WEIGHTS = ((0.95, 100), (0.75, 75), (0.50, 50), (0.25, 25))
_ZONE_SHARE, _ZONE_WEIGHT = 0.5, 50
# Terms of each pod. The API server keeps them with the pod, and the scheduler judges each for each node.
_NODES_MAX, _ZONES_MAX = 16, 4
# A node in its zone has both weights.
_WEIGHT_MAX = _WEIGHTS[0][1] + _ZONE_WEIGHT
ZONE_LABEL = "topology.kubernetes.io/zone"


@dataclass(frozen=True, slots=True)
class Holding:
    """The share of a pod's data, from 0.0 to 1.0, that the cache of a node holds verified. `node` None: the caches of
    the zone together. `zone` None: unknown."""

    node: str | None
    zone: str | None
    share: float


def preferred_terms(holdings: Iterable[Holding], weight_max: int = _WEIGHT_MAX) -> list[dict[str, Any]]:
    """`PreferredSchedulingTerm`s (Kubernetes core/v1), the strongest first. `weight_max`: the sum of the weights of a
    node that has all of the data. Empty: the data is nowhere."""
    terms: list[tuple[int, dict[str, Any]]] = []
    # By name: the label `kubernetes.io/hostname` may differ from it.
    ranked = sorted(holdings, key=lambda holding: (-holding.share, holding.node or "", holding.zone or ""))
    nodes = [(holding.node, holding.share) for holding in ranked if holding.node is not None]
    zones = [(holding.zone, holding.share) for holding in ranked if holding.node is None and holding.zone]
    for node, held in nodes[:_NODES_MAX]:
        weight = next((weight for share, weight in _WEIGHTS if held >= share), 0)
        terms.append((weight, {"matchFields": [_is("metadata.name", node)]}))
    for zone, held in zones[:_ZONES_MAX]:
        weight = _ZONE_WEIGHT if held >= _ZONE_SHARE else 0
        terms.append((weight, {"matchExpressions": [_is(ZONE_LABEL, zone)]}))
    scaled = [(weight * min(weight_max, _WEIGHT_MAX) // _WEIGHT_MAX, term) for weight, term in terms]
    return [{"weight": weight, "preference": term} for weight, term in scaled if weight > 0]


def _is(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": [value]}
