"""The settings of a cluster: which sources of members there are, and what goes together."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import PydanticCustomError

from outrider.settings.values import address

# A label of a DNS name: the name of a Kubernetes namespace, and of a Service.
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_DNS_LABEL = "[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DNS_NAME = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*\.?", re.ASCII)
# Names of members and zones stand in headers, metric labels and files of lists: names of hosts, and Kubernetes' labels.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class KubernetesPeers:
    """The endpoints of a Service."""

    namespace: str
    service: str


@dataclass(frozen=True, slots=True)
class DnsPeers:
    """All addresses of a name; each has its peer port at `port`."""

    name: str
    port: int


@dataclass(frozen=True, slots=True)
class FilePeers:
    """The lines of a file."""

    path: Path


@dataclass(frozen=True, slots=True)
class SlurmPeers:
    """The nodes of the Slurm job that this process is part of."""


Peers = KubernetesPeers | DnsPeers | FilePeers | SlurmPeers


def parse_peers(text: str) -> Peers:
    """The source of members that `text` names. Raises PydanticCustomError."""
    kind, _, rest = text.partition(":")
    if kind == "kubernetes":
        namespace, _, service = rest.partition("/")
        if _LABEL.fullmatch(namespace) and _LABEL.fullmatch(service):
            return KubernetesPeers(namespace, service)
        raise PydanticCustomError("peers", "must be kubernetes:NAMESPACE/SERVICE, two names of Kubernetes objects")
    if kind == "dns":
        name, _, port = rest.rpartition(":")
        if len(name) <= 254 and _DNS_NAME.fullmatch(name) and port.isdecimal() and 0 < int(port) < 65536:
            return DnsPeers(name, int(port))
        raise PydanticCustomError("peers", "must be dns:NAME:PORT, a name and the peer port of all members")
    if kind == "file" and rest:
        return FilePeers(Path(rest))
    if text == "slurm":
        return SlurmPeers()
    raise PydanticCustomError("peers", "must be kubernetes:NAMESPACE/SERVICE, dns:NAME:PORT, file:PATH or slurm")


def peers(value: str) -> str:
    parse_peers(value)
    return value


def reachable_address(value: str) -> str:
    """`HOST:PORT` that other machines can connect to, as far as its form shows."""
    host, _, port = address(value).rpartition(":")
    if port == "0" or is_everywhere(host):
        raise PydanticCustomError("address", "must be HOST:PORT at which the other members reach this one")
    return value


def member_name(value: str) -> str:
    if not is_member_name(value):
        raise PydanticCustomError("name", "must be letters, digits, dots, dashes and underscores")
    return value


def is_member_name(text: str) -> bool:
    """Whether `text` may be the name of a member, or of a zone."""
    return _NAME.fullmatch(text) is not None


def is_everywhere(host: str) -> bool:
    """Whether a server at `host` listens on all addresses of the machine."""
    return host.strip("[]") in ("0.0.0.0", "::")  # noqa: S104 - to compare with
