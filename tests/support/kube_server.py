"""An API server for the operator: kmock's emulator behind https and a token, with the parts that it leaves to its
users: versions and conflicts, JSON Patches, and selectors of lists.

Source: Kubernetes' documentation, "Kubernetes API Concepts"; a JSON Patch whose test fails gets 422.
"""

from __future__ import annotations

import copy
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonpatch
from aiohttp import web
from kmock import KubernetesEmulator, KubernetesError, Request, ResourceInfo, action, resource

from tests.support.certificate import certify

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
            asked = request.data["spec"]["resourceAttributes"]
            is_allowed = (asked["verb"], asked["group"], asked["resource"]) not in self.refused
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
            told = request.data["metadata"].get("resourceVersion")
            if told is not None and told != found["metadata"]["resourceVersion"]:
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
