"""The members in the EndpointSlices of a Kubernetes Service.

Source: Kubernetes' API reference, discovery.k8s.io/v1, and "EndpointSlices" of its documentation: clients unite all
slices of a Service, and one endpoint may be in two of them for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING

from outrider.adapters.cluster.member_lists import SourceUnreachable
from outrider.core.cluster.member import ListedMember

if TYPE_CHECKING:
    from lightkube.models.discovery_v1 import Endpoint, EndpointPort, EndpointSlice

PORT_NAME = "peer"
"""The name of the peer port in a Service that has several."""


class NamedBy(Enum):
    """Members are the nodes of a DaemonSet, or pods: sidecars may have the node in common. With neither known, a member
    has no name until it is asked."""

    NODE = "node"
    POD = "pod"


def named_by(slices: Iterable[EndpointSlice], own_name: str) -> NamedBy | None:
    """How members are named: as this one is. None: no endpoint has its name. Endpoints that do not serve yet count,
    since this member is itself one when it starts."""
    everyone = [endpoint for part in slices for endpoint in part.endpoints or ()]
    if any(_pod(endpoint) == own_name for endpoint in everyone):
        return NamedBy.POD
    return NamedBy.NODE if any(endpoint.nodeName == own_name for endpoint in everyone) else None


def members_of(
    slices: Iterable[EndpointSlice], named: NamedBy | None, *, own_port: int, prefers_ipv6: bool
) -> list[ListedMember]:
    """The endpoints that serve, those included that are about to stop. Pods that are not ready are left out.

    `own_port`: the port of all members where the Service names none. A Service of two address families has each
    endpoint twice, so that the preferred family alone counts if it has any.

    Raises:
        SourceUnreachable: the Service has several ports, and none of them is named `peer`.
    """
    by_family: dict[str, list[EndpointSlice]] = {}
    for part in slices:
        by_family.setdefault(part.addressType, []).append(part)
    families = ("IPv6", "IPv4") if prefers_ipv6 else ("IPv4", "IPv6")
    chosen = next((by_family[family] for family in families if any(_serving(by_family.get(family, ())))), [])
    found = []
    for part, endpoint in _serving(chosen):
        host = f"[{endpoint.addresses[0]}]" if part.addressType == "IPv6" else endpoint.addresses[0]
        name = {NamedBy.POD: _pod(endpoint), NamedBy.NODE: endpoint.nodeName or "", None: ""}[named]
        found.append(ListedMember(f"{host}:{_port(part.ports or (), own_port)}", name, endpoint.zone or ""))
    return found


def _serving(slices: Iterable[EndpointSlice]) -> Iterator[tuple[EndpointSlice, Endpoint]]:
    for part in slices:
        for endpoint in part.endpoints or ():
            if endpoint.addresses and _serves(endpoint):
                yield part, endpoint


def _serves(endpoint: Endpoint) -> bool:
    # `ready` is false from the moment at which a pod is to stop; `serving` goes on telling whether it answers. A
    # condition that is not stated counts as true.
    conditions = endpoint.conditions
    if conditions is None:
        return True
    if conditions.serving is not None:
        return bool(conditions.serving)
    return conditions.ready is not False


def _pod(endpoint: Endpoint) -> str:
    target = endpoint.targetRef
    return target.name or "" if target is not None and target.kind == "Pod" else ""


def _port(ports: Iterable[EndpointPort], own_port: int) -> int:
    named_ports = {port.name or "": port.port for port in ports if port.port}
    if PORT_NAME in named_ports:
        return int(named_ports[PORT_NAME])
    if len(named_ports) > 1:
        raise SourceUnreachable(
            f"the Service has the ports {', '.join(sorted(named_ports))}, and none is named `{PORT_NAME}`"
        )
    return int(next(iter(named_ports.values()), own_port))
