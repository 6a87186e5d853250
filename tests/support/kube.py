"""An API server's Secrets, Leases and webhook configurations, as `operator_ports.Kube` has them: writes of what has
changed since it was read are refused."""

from __future__ import annotations

import base64
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonpatch

from outrider.operator_ports import ConflictError, KubeError, Manifest

NAMESPACE, NAME = "cache", "outrider-operator"
HOST = f"{NAME}.{NAMESPACE}.svc"
CONFIGURATION, SECRET, LEASE = "MutatingWebhookConfiguration", "Secret", "Lease"


def configuration() -> dict[str, Any]:
    """As the chart makes it, without a bundle."""
    names = ("inject.outrider.dev", "schedule.outrider.dev")
    service = {"name": NAME, "namespace": NAMESPACE, "path": "/mutate", "port": 443}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": CONFIGURATION,
        "metadata": {"name": NAME},
        "webhooks": [{"name": name, "clientConfig": {"service": dict(service)}} for name in names],
    }


@dataclass
class FakeKube:
    """`refuses`: calls, as "VERB KIND", that are not allowed. `away`: no call is answered. `before_write`: called once
    before the next write, as another one who is faster."""

    namespace: str = NAMESPACE
    refuses: set[str] = field(default_factory=set)
    away: bool = False
    before_write: Any = None
    calls: list[str] = field(default_factory=list)
    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    _version: int = 0

    def put(self, manifest: Manifest) -> None:
        self._version += 1
        stored = copy.deepcopy(dict(manifest))
        stored["metadata"]["resourceVersion"] = str(self._version)
        self.objects[stored["kind"], stored["metadata"]["name"]] = stored

    def bundles(self) -> set[str]:
        """The bundles that the webhooks trust, as PEM."""
        hooks = self.objects[CONFIGURATION, NAME]["webhooks"]
        return {base64.b64decode(hook["clientConfig"].get("caBundle", "")).decode() for hook in hooks}

    def bundle(self) -> str:
        """The one that all of them trust."""
        [bundle] = self.bundles()
        return bundle

    async def may(self, verb: str, group: str, resource: str, *, namespace: str = "", name: str = "") -> bool:
        self._ask("ask", resource)
        return f"{verb} {resource}" not in self.refuses

    async def get(self, kind: str, name: str) -> Manifest | None:
        self._ask("get", kind)
        return copy.deepcopy(self.objects.get((kind, name)))

    async def create(self, kind: str, manifest: Manifest) -> None:
        self._ask("create", kind)
        if (kind, manifest["metadata"]["name"]) in self.objects:
            raise ConflictError(409, "AlreadyExists")
        self.put(manifest)

    async def update(self, kind: str, manifest: Manifest) -> None:
        self._ask("update", kind)
        found = self.objects.get((kind, manifest["metadata"]["name"]))
        if found is None:
            raise KubeError(404, "NotFound")
        if found["metadata"]["resourceVersion"] != manifest["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict")
        self.put(manifest)

    async def patch(self, kind: str, name: str, patch: Sequence[Mapping[str, Any]]) -> None:
        self._ask("patch", kind)
        try:
            self.put(jsonpatch.JsonPatch(list(patch)).apply(self.objects[kind, name]))
        except jsonpatch.JsonPatchTestFailed as error:
            raise ConflictError(422, "Invalid") from error

    def _ask(self, verb: str, kind: str) -> None:
        self.calls.append(f"{verb} {kind}")
        if self.away:
            raise KubeError(0, "no answer")
        if f"{verb} {kind}" in self.refuses:
            raise KubeError(403, "Forbidden")
        if verb != "get" and self.before_write is not None:
            faster, self.before_write = self.before_write, None
            faster()

    async def pending_pods(self, label: str, value: str | None) -> Sequence[Manifest]:
        raise AssertionError

    async def all_of(self, kind: str) -> Sequence[Manifest]:
        raise AssertionError

    async def pods_in(self, namespace: str, label: str | None) -> Sequence[Manifest]:
        raise AssertionError

    async def patch_pod(self, namespace: str, name: str, patch: Sequence[Manifest]) -> None:
        raise AssertionError

    async def emit(self, event: Manifest) -> None:
        raise AssertionError

    async def endpoint_slices(self, namespace: str, service: str) -> Sequence[Manifest]:
        raise AssertionError
