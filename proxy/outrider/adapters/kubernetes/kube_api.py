"""The API server. Objects are dictionaries as it sends them: pods of any version are passed on unread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from lightkube import AsyncClient, KubeConfig
from lightkube.config.kubeconfig import SERVICE_ACCOUNT
from lightkube.core.exceptions import ConfigError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.types import PatchType

from outrider.operator_ports import ConflictError, KubeError
from outrider.settings import SettingsError

_REQUEST_S = 10.0
_SLICES_OF = "kubernetes.io/service-name"
_CONFLICT, _MISSING, _UNPROCESSABLE = 409, 404, 422

_Pod = create_namespaced_resource("", "v1", "Pod", "pods")
_Event = create_namespaced_resource("", "v1", "Event", "events")
_Secret = create_namespaced_resource("", "v1", "Secret", "secrets")
_Lease = create_namespaced_resource("coordination.k8s.io", "v1", "Lease", "leases")
_Slices = create_namespaced_resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
_Node = create_global_resource("", "v1", "Node", "nodes")
_Namespace = create_global_resource("", "v1", "Namespace", "namespaces")
_Review = create_global_resource("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews")
_Webhook = create_global_resource(
    "admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations"
)


class _Kind(NamedTuple):
    resource: Any
    is_global: bool = False


_KINDS = {
    "Secret": _Kind(_Secret), "Lease": _Kind(_Lease), "MutatingWebhookConfiguration": _Kind(_Webhook, True),
    "Node": _Kind(_Node, True), "Namespace": _Kind(_Namespace, True),
}  # fmt: skip


class KubeApi:
    """Implements `operator_ports.Kube`, as the pod's service account, else by the kubeconfig.

    Raises:
        SettingsError: there is neither.
    """

    def __init__(self, namespace: str | None = None, *, service_account: Path = Path(SERVICE_ACCOUNT)) -> None:
        """`namespace` None: that of the service account or kubeconfig."""
        self._authority_file = service_account / "ca.crt"
        self._authority = self._authority_now()
        try:
            self._config = config = KubeConfig.from_env(service_account=service_account).get()
            self._client = self._made()
        except (ConfigError, OSError, KeyError) as error:
            raise SettingsError(
                f"outrider operator needs a pod with a service account, or a kubeconfig: {error}"
            ) from error
        self.namespace = namespace or config.namespace or "default"

    async def close(self) -> None:
        await self._client.close()

    def _made(self) -> AsyncClient:
        return AsyncClient(self._config, timeout=httpx2.Timeout(_REQUEST_S))

    def _authority_now(self) -> bytes:
        """Empty: there is no such file, as outside of a pod."""
        try:
            return self._authority_file.read_bytes()
        except OSError:
            return b""

    @asynccontextmanager
    async def _calling(self) -> AsyncIterator[AsyncClient]:
        """Raises KubeError."""
        try:
            yield self._client
        except httpx2.HTTPStatusError as error:
            code = error.response.status_code
            # A JSON Patch whose test fails is "unprocessable": the object is not as it was.
            kind = ConflictError if code in (_CONFLICT, _UNPROCESSABLE) else KubeError
            raise kind(code, str(error)) from error
        except Exception as error:
            # The library reads the token again, and the authority of the API server never.
            if (authority := self._authority_now()) != self._authority:
                old, self._client, self._authority = self._client, self._made(), authority
                await old.close()
            raise KubeError(0, f"{type(error).__name__}: {error}") from error

    async def pending_pods(self, label: str, value: str | None) -> Sequence[Mapping[str, Any]]:
        async with self._calling() as client:
            listed = client.list(_Pod, namespace="*", labels={label: value}, fields={"status.phase": "Pending"})
            return [pod async for pod in listed]

    async def all_of(self, kind: str) -> Sequence[Mapping[str, Any]]:
        async with self._calling() as client:
            return [each async for each in client.list(_KINDS[kind].resource)]

    async def pods_in(self, namespace: str, label: str | None) -> Sequence[Mapping[str, Any]]:
        labels = None if label is None else {label: None}
        async with self._calling() as client:
            return [pod async for pod in client.list(_Pod, namespace=namespace, labels=labels)]

    async def patch_pod(self, namespace: str, name: str, patch: Sequence[Mapping[str, Any]]) -> None:
        async with self._calling() as client:
            await client.patch(_Pod, name, list(patch), namespace=namespace, patch_type=PatchType.JSON)

    async def may(self, verb: str, group: str, resource: str, *, namespace: str = "", name: str = "") -> bool:
        attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace, "name": name}
        async with self._calling() as client:
            answer = await client.create(_Review({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {},
                "spec": {"resourceAttributes": attributes},
            }))  # fmt: skip
            return bool((answer.get("status") or {}).get("allowed"))

    async def emit(self, event: Mapping[str, Any]) -> None:
        async with self._calling() as client:
            await client.create(_Event(event), namespace=event["metadata"]["namespace"])

    async def endpoint_slices(self, namespace: str, service: str) -> Sequence[Mapping[str, Any]]:
        async with self._calling() as client:
            return [part async for part in client.list(_Slices, namespace=namespace, labels={_SLICES_OF: service})]

    async def get(self, kind: str, name: str) -> Mapping[str, Any] | None:
        try:
            async with self._calling() as client:
                found: Mapping[str, Any] = await client.get(_KINDS[kind].resource, name, **self._in(kind))
                return found
        except KubeError as error:
            if error.code == _MISSING:
                return None
            raise

    async def create(self, kind: str, manifest: Mapping[str, Any]) -> None:
        async with self._calling() as client:
            await client.create(_KINDS[kind].resource(manifest), **self._in(kind))

    async def update(self, kind: str, manifest: Mapping[str, Any]) -> None:
        async with self._calling() as client:
            await client.replace(_KINDS[kind].resource(manifest), **self._in(kind))

    async def patch(self, kind: str, name: str, patch: Sequence[Mapping[str, Any]]) -> None:
        async with self._calling() as client:
            await client.patch(
                _KINDS[kind].resource, name, list(patch), patch_type=PatchType.JSON, **self._in(kind)
            )  # fmt: skip

    def _in(self, kind: str) -> dict[str, Any]:
        return {} if _KINDS[kind].is_global else {"namespace": self.namespace}
