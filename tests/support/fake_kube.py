"""API servers for the operator: `FakeKube` at its port, and `KubeServer`, kmock's emulator behind https and a token.

`KubeServer` has the parts that kmock leaves to its users: versions and conflicts, JSON Patches, and selectors of lists.

Source: Kubernetes' documentation, Kubernetes API Concepts; a JSON Patch whose test fails gets 422.
"""

from __future__ import annotations

import base64
import copy
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonpatch
from aiohttp import web
from kmock import KubernetesEmulator, KubernetesError, Request, ResourceInfo, action, resource

from outrider.operator_ports import ConflictError, KubeError, Manifest
from tests.support.tls import certify

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


PODS, EVENTS, SECRETS = resource("v1/pods"), resource("v1/events"), resource("v1/secrets")
NODES, NAMESPACES = resource("v1/nodes"), resource("v1/namespaces")
LEASES = resource("coordination.k8s.io/v1/leases")
SLICES = resource("discovery.k8s.io/v1/endpointslices")
REVIEWS = resource("authorization.k8s.io/v1/selfsubjectaccessreviews")
WEBHOOKS = resource("admissionregistration.k8s.io/v1/mutatingwebhookconfigurations")
_VERBS = {action.FETCH: "get", action.LIST: "list", action.WATCH: "watch", action.CREATE: "create"}


class KubeServer(KubernetesEmulator):
    """`calls`: verb, group and resource of each request. `refused`: calls, in that form, that get 403."""

    def __init__(self, account: Path) -> None:
        super().__init__()
        self.account = account
        self.token = "first"
        self.calls: list[tuple[str, str, str]] = []
        self.refused: set[tuple[str, str, str]] = set()
        self._version = 0
        for kind in (PODS, EVENTS, SECRETS, NODES, NAMESPACES, LEASES, SLICES, WEBHOOKS, REVIEWS):
            self.resources[kind] = ResourceInfo()

    def place(self, kind: resource, manifest: dict[str, Any]) -> None:
        metadata = manifest["metadata"]
        self._store((kind, metadata.get("namespace"), metadata["name"]), manifest)

    def found(self, kind: resource, namespace: str | None, name: str) -> dict[str, Any]:
        return copy.deepcopy(dict(self.objects[kind, namespace, name].raw))

    def all_of(self, kind: resource) -> list[dict[str, Any]]:
        return [copy.deepcopy(dict(found.raw)) for (of, _, _), found in self.objects.items() if of == kind]

    def rotate(self, token: str) -> None:
        self.token = token
        (self.account / "token").write_text(token)

    def _store(self, key: Any, manifest: dict[str, Any]) -> None:
        self._version += 1
        stored = copy.deepcopy(manifest)
        stored["metadata"]["resourceVersion"] = str(self._version)
        if key in self.objects:
            del self.objects[key]
        self.objects[key] = stored

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/api/v1/namespaces":
            return await self(request)
        # kmock takes this for the beginning of another kind's path, and fails.
        self.calls.append(("list", "", "namespaces"))
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": self.all_of(NAMESPACES)})

    async def _handle(self, request: Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        if headers.get("authorization") != f"Bearer {self.token}":
            raise KubernetesError(status=401, reason="Unauthorized")
        assert request.resource is not None
        of = request.resource
        method = request.method.lower()
        verb = "update" if method == "put" else _VERBS.get(request.action or action.UPDATE, method)
        self.calls.append((verb, of.group or "", of.plural or ""))
        if self.calls[-1] in self.refused:
            raise KubernetesError(status=403, reason="Forbidden")
        key = (of, request.namespace, request.name or "")
        if verb == "list":
            found = [each for each in self.all_of(of) if _is_selected(each, request)]
            return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": found})
        if verb in ("update", "patch") and key in self.objects:
            self._store(key, self._written(request, dict(self.objects[key].raw)))
            return web.json_response(dict(self.objects[key].raw))
        if of == REVIEWS:
            attributes = request.data["spec"]["resourceAttributes"]
            is_allowed = (attributes["verb"], attributes["group"], attributes["resource"]) not in self.refused
            return web.json_response({**request.data, "status": {"allowed": is_allowed}}, status=201)
        if verb == "create":
            self._version += 1
            metadata = request.data["metadata"]
            metadata["resourceVersion"] = str(self._version)
            if "generateName" in metadata:
                metadata["name"] = f"{metadata['generateName']}{self._version}"
        return await super()._handle(request)

    def _written(self, request: Request, found: dict[str, Any]) -> dict[str, Any]:
        if request.method.lower() == "put":
            expected = request.data["metadata"].get("resourceVersion")
            if expected is not None and expected != found["metadata"]["resourceVersion"]:
                raise KubernetesError(status=409, reason="Conflict")
            return dict(request.data)
        assert request.headers.get("Content-Type", "") == "application/json-patch+json"
        try:
            return dict(jsonpatch.JsonPatch(json.loads(request.body)).apply(found))
        except jsonpatch.JsonPatchException as error:
            raise KubernetesError(status=422, reason="Invalid") from error


def _is_selected(manifest: dict[str, Any], request: Request) -> bool:
    if request.namespace not in (None, manifest["metadata"].get("namespace")):
        return False
    labels = manifest["metadata"].get("labels") or {}
    for wanted in filter(None, request.params.get("labelSelector", "").split(",")):
        name, equals, value = wanted.partition("=")
        if name not in labels or (equals and labels[name] != value):
            return False
    field = request.params.get("fieldSelector", "")
    assert field in ("", "status.phase=Pending")
    return not field or manifest.get("status", {}).get("phase") == "Pending"


@asynccontextmanager
async def kube_server(folder: Path, namespace: str) -> AsyncIterator[tuple[KubeServer, dict[str, str]]]:
    """The server, and the variables by which its pods find it. `account` of the server has the token of a pod in that
    namespace."""
    certificate = certify(folder)
    account = folder / "serviceaccount"
    account.mkdir()
    (account / "ca.crt").write_bytes(certificate.authority.read_bytes())
    (account / "namespace").write_text(namespace)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.chain, certificate.key)
    async with KubeServer(account) as server:
        server.rotate("first")
        runner = web.ServerRunner(web.Server(server.serve), access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
            port = runner.addresses[0][1]
            yield server, {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
        finally:
            await runner.cleanup()
