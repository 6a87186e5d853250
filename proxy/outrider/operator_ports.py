"""The ports of the operator: the API server, and the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from outrider.core.operator.holdings import HeldDataset

Manifest = Mapping[str, Any]
"""An object of Kubernetes, as its API has it."""


class KubeError(Exception):
    """The API server refused, with the status `code`, or did not answer: 0."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class ConflictError(KubeError):
    """Another writer was first."""


class CacheError(Exception):
    """The cache did not answer."""


class CacheRefusedError(CacheError):
    """The cache refused, in its own words. Asking again does not help."""


class Kube(Protocol):
    """Every call raises KubeError. `kind` is Secret, Lease or MutatingWebhookConfiguration, and lives in the namespace
    of the operator where it has one."""

    namespace: str

    async def pending_pods(self, label: str, value: str | None) -> Sequence[Manifest]:
        """Pods of all namespaces that are pending and have that label. `value` None: any."""

    async def all_of(self, kind: str) -> Sequence[Manifest]:
        """All objects of a kind that has no namespace: Node or Namespace."""

    async def pods_in(self, namespace: str, label: str | None) -> Sequence[Manifest]:
        """Pods of that namespace, of any phase, that have the label; None: all of them."""

    async def patch_pod(self, namespace: str, name: str, patch: Sequence[Manifest]) -> None:
        """A JSON Patch. Raises ConflictError: a test in it failed."""

    async def may(self, verb: str, group: str, resource: str, *, namespace: str = "", name: str = "") -> bool:
        """Whether the API server allows this process that call. `namespace` empty: in all of them. `name` empty: for
        all objects of the kind."""

    async def emit(self, event: Manifest) -> None:
        """Raises ConflictError: there is one of that name."""

    async def endpoint_slices(self, namespace: str, service: str) -> Sequence[Manifest]: ...

    async def get(self, kind: str, name: str) -> Manifest | None: ...

    async def create(self, kind: str, manifest: Manifest) -> None: ...

    async def update(self, kind: str, manifest: Manifest) -> None:
        """Raises ConflictError: it changed since it was read."""

    async def patch(self, kind: str, name: str, patch: Sequence[Manifest]) -> None: ...


@dataclass(frozen=True, slots=True)
class CachePod:
    """A cache, its node and zone. `zone` None: unknown."""

    address: str
    node: str
    zone: str | None


class Caches(Protocol):
    """Every call raises CacheError. `at`: the cache of one node; None: any of them."""

    async def warm(self, name: str, urls: Sequence[str], *, at: CachePod | None = None) -> None:
        """Begins a warm-up, or goes on with it. Raises CacheRefusedError."""

    async def progress(self, name: str, *, at: CachePod | None = None) -> Manifest | None:
        """Its report (`Progress.report`); None: there is no such warm-up."""

    async def datasets(self, pod: CachePod) -> Sequence[HeldDataset]:
        """The datasets that that cache has."""
