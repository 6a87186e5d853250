"""Each permission that the operator needs, with the call that needs it. The chart's roles are tested against this."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Scope(StrEnum):
    CLUSTER = "cluster"
    """All namespaces, or an object of none."""
    OWN = "own namespace"
    CACHE = "namespace of the cache"


class ApiCall(NamedTuple):
    """`is_by_name`: only for the object that is called as the release."""

    verb: str
    group: str
    resource: str
    scope: Scope
    is_by_name: bool
    why: str


API_CALLS = (
    ApiCall("list", "", "pods", Scope.CLUSTER, False, "finds pods that carry the labels, and are pending or new"),
    ApiCall("patch", "", "pods", Scope.CLUSTER, False, "opens the gate of a pod and sets its affinity"),
    ApiCall("list", "", "namespaces", Scope.CLUSTER, False, "finds the namespaces that its webhook selects"),
    ApiCall("list", "", "nodes", Scope.CLUSTER, False, "finds the zones where a pod that waits can run"),
    ApiCall(
        "create", "authorization.k8s.io", "selfsubjectaccessreviews", Scope.CLUSTER, False,
        "asks whether it may open gates, before it closes one",
    ),
    ApiCall("create", "", "events", Scope.CLUSTER, False, "reports progress and reasons, beside the pod"),
    ApiCall("list", "discovery.k8s.io", "endpointslices", Scope.CACHE, False, "finds the caches, nodes and zones"),
    ApiCall("get", "coordination.k8s.io", "leases", Scope.OWN, True, "sees which replica acts"),
    ApiCall("create", "coordination.k8s.io", "leases", Scope.OWN, False, "makes the lease; names cannot limit this"),
    ApiCall("update", "coordination.k8s.io", "leases", Scope.OWN, True, "renews the lease"),
    ApiCall("get", "", "secrets", Scope.OWN, True, "reads the certificates of the webhook"),
    ApiCall("create", "", "secrets", Scope.OWN, False, "makes the certificates; names cannot limit this"),
    ApiCall("update", "", "secrets", Scope.OWN, True, "renews the certificates"),
    ApiCall(
        "get", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", Scope.CLUSTER, True,
        "sees which authority the API server trusts",
    ),
    ApiCall(
        "patch", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", Scope.CLUSTER, True,
        "shows the API server which authority to trust",
    ),
)  # fmt: skip
