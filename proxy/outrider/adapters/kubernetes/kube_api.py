"""The API server. Objects are dictionaries as it sends them: pods of any version are passed on unread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from lightkube import AsyncClient, KubeConfig
from lightkube.config.kubeconfig import SERVICE_ACCOUNT
from lightkube.core.exceptions import ApiError, ConfigError
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
_Webhook = create_global_resource(
    "admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations"
)


class _Kind(NamedTuple):
    resource: Any
    is_global: bool = False


_KINDS = {"Secret": _Kind(_Secret), "Lease": _Kind(_Lease), "MutatingWebhookConfiguration": _Kind(_Webhook, True)}


class KubeApi:
    """Implements `operator_ports.Kube`, as the pod's service account, else by the kubeconfig.

    Raises:
        SettingsError: there is neither.
    """

    def __init__(self, namespace: str | None = None, *, service_account: Path = Path(SERVICE_ACCOUNT)) -> None:
        """`namespace` None: that of the service account or kubeconfig."""
        try:
            config = KubeConfig.from_env(service_account=service_account).get()
        except (ConfigError, OSError, KeyError) as error:
            raise SettingsError(
                f"outrider operator needs a pod with a service account, or a kubeconfig: {error}"
            ) from error
        self.namespace = namespace or config.namespace or "default"
        self._client = AsyncClient(config, timeout=httpx2.Timeout(_REQUEST_S))

    async def close(self) -> None:
        await self._client.close()

    async def pending_pods(self, label: str, value: str | None) -> Sequence[Mapping[str, Any]]:
        with _told():
            listed = self._client.list(_Pod, namespace="*", labels={label: value}, fields={"status.phase": "Pending"})
            return [pod async for pod in listed]

    async def patch_pod(self, namespace: str, name: str, patch: Sequence[Mapping[str, Any]]) -> None:
        with _told():
            await self._client.patch(_Pod, name, list(patch), namespace=namespace, patch_type=PatchType.JSON)

    async def emit(self, event: Mapping[str, Any]) -> None:
        with _told():
            await self._client.create(_Event(event), namespace=event["metadata"]["namespace"])

    async def endpoint_slices(self, namespace: str, service: str) -> Sequence[Mapping[str, Any]]:
        with _told():
            return [
                part async for part in self._client.list(_Slices, namespace=namespace, labels={_SLICES_OF: service})
            ]

    async def get(self, kind: str, name: str) -> Mapping[str, Any] | None:
        try:
            with _told():
                found: Mapping[str, Any] = await self._client.get(_KINDS[kind].resource, name, **self._in(kind))
                return found
        except KubeError as error:
            if error.code == _MISSING:
                return None
            raise

    async def create(self, kind: str, manifest: Mapping[str, Any]) -> None:
        with _told():
            await self._client.create(_KINDS[kind].resource(manifest), **self._in(kind))

    async def update(self, kind: str, manifest: Mapping[str, Any]) -> None:
        with _told():
            await self._client.replace(_KINDS[kind].resource(manifest), **self._in(kind))

    async def patch(self, kind: str, name: str, patch: Sequence[Mapping[str, Any]]) -> None:
        with _told():
            await self._client.patch(
                _KINDS[kind].resource, name, list(patch), patch_type=PatchType.JSON, **self._in(kind)
            )  # fmt: skip

    def _in(self, kind: str) -> dict[str, Any]:
        return {} if _KINDS[kind].is_global else {"namespace": self.namespace}


class _told:  # noqa: N801 - a context manager, which reads as a function
    """Raises the library's errors as KubeError."""

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ApiError):
            code = int(error.status.code or 0)
            # A JSON Patch whose test fails is "invalid": the object is not as it was.
            if code in (_CONFLICT, _UNPROCESSABLE):
                raise ConflictError(code, str(error)) from error
            raise KubeError(code, str(error)) from error
        if isinstance(error, httpx2.HTTPError):
            raise KubeError(0, f"{type(error).__name__}: {error}") from error
