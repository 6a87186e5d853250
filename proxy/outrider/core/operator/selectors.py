"""Selectors of Kubernetes: whether labels meet them. Source: apimachinery, pkg/labels/selector.go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


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
