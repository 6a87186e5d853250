"""The members that a Kubernetes Service has, by list and watch of its EndpointSlices. Imported only where `peers` is
`kubernetes:NAMESPACE/SERVICE`.

The client library is lightkube. It reads the token of the service account again, and costs 7 MB of memory on each node;
kubernetes-asyncio costs 40 MB, for the models of the whole API.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from lightkube import AsyncClient, KubeConfig
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, SingleConfig
from lightkube.core.exceptions import ConfigError
from lightkube.resources.discovery_v1 import EndpointSlice

from outrider.adapters.cluster.endpoint_slices import NamedBy, members_of, named_by
from outrider.adapters.cluster.member_lists import Outages, in_order
from outrider.adapters.process.file_reload import Sleep
from outrider.core.cluster.member import ListedMember
from outrider.settings import SettingsError
from outrider.settings.members import KubernetesPeers

_SERVICE_LABEL = "kubernetes.io/service-name"
# The API server ends a watch then, and the next one goes on from its last event. The bound is that on how long a
# connection may be dead without a sign of it.
_WATCH_S = 120
_SILENT_S = _WATCH_S + 30.0
_REQUEST_S = 10.0
# Between two watches, whatever ends them.
_PAUSE_S = 1.0
_GONE = 410


class KubernetesSource:
    """Asks the API server that the pod's service account names, else that of the kubeconfig.

    Raises:
        SettingsError: there is neither.
    """

    def __init__(
        self, peers: KubernetesPeers, outages: Outages, *, own_name: str, own_port: int, prefers_ipv6: bool = False,
        service_account: Path = Path(SERVICE_ACCOUNT), silent_s: float = _SILENT_S, sleep: Sleep = asyncio.sleep,
    ) -> None:  # fmt: skip
        self._peers = peers
        self._outages = outages
        self._own_name = own_name
        self._named_by: NamedBy | None = None
        self._members_of = partial(members_of, own_port=own_port, prefers_ipv6=prefers_ipv6)
        self._silent_s = silent_s
        self._sleep = sleep
        try:
            self._config: SingleConfig = KubeConfig.from_env(service_account=service_account).get()
        except (ConfigError, OSError, KeyError) as error:
            raise SettingsError(
                f"--peers kubernetes:{peers.namespace}/{peers.service} needs a pod with a service account, or a "
                f"kubeconfig: {error}"
            ) from error

    async def lists(self) -> AsyncGenerator[Sequence[ListedMember], None]:
        last: Sequence[ListedMember] | None = None
        while True:
            try:
                async with aclosing(self._watched()) as states:
                    async for slices in states:
                        # Once known it stays: this member may be missing while the others are as they were.
                        self._named_by = named_by(slices, self._own_name) or self._named_by
                        found = in_order(self._members_of(slices, self._named_by))
                        if found != last:
                            last = found
                            yield found
            except Exception as error:  # noqa: BLE001 - the errors of a client library are many, and none may end this
                if _code(error) == _GONE:
                    # The versions since the last event are compacted: normal, and the list has them.
                    await self._sleep(_PAUSE_S)
                else:
                    await self._sleep(self._outages.failed(_text(error)))

    async def _watched(self) -> AsyncGenerator[Sequence[EndpointSlice], None]:
        """The slices of the Service, and again after each change. Ends with an error."""
        which: Any = {"namespace": self._peers.namespace, "labels": {_SERVICE_LABEL: self._peers.service}}
        async with self._client() as client:
            listing = client.list(EndpointSlice, **which)
            slices = {part.metadata.name: part async for part in listing}
            yield list(slices.values())
            watch = client.watch(
                EndpointSlice, **which, resource_version=listing.resourceVersion, server_timeout=_WATCH_S
            )
            async with aclosing(watch) as events:
                async for change, part in events:
                    if change == "DELETED":
                        slices.pop(part.metadata.name, None)
                    elif change in ("ADDED", "MODIFIED"):
                        slices[part.metadata.name] = part
                    yield list(slices.values())

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[AsyncClient]:
        # A client for each list: the authority's certificate may have been renewed.
        cluster, user = self._config.cluster, self._config.user
        transport = _Paced(
            self._sleep, self._outages.over, self._silent_s, verify=verify_cluster(cluster, user, self._config.abs_file)
        )
        client = AsyncClient(self._config, timeout=httpx2.Timeout(_REQUEST_S), transport=transport)
        try:
            yield client
        finally:
            await client.close()


class _Paced(httpx2.AsyncHTTPTransport):  # type: ignore[misc] # where the extra is not installed it is Any
    """Bounds what lightkube does not: the silence of a watch, and how soon one follows the other. `began` is called
    when a watch has begun: a list alone is no sign that the source is well."""

    def __init__(self, sleep: Sleep, began: Callable[[], None], silent_s: float, **given: Any) -> None:
        super().__init__(**given)
        self._sleep = sleep
        self._began = began
        self._silent_s = silent_s
        self._watches = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if not request.url.params.get("watch"):
            return await super().handle_async_request(request)
        request.extensions["timeout"]["read"] = self._silent_s
        self._watches += 1
        if self._watches > 1:
            await self._sleep(_PAUSE_S)
        reply = await super().handle_async_request(request)
        if reply.is_success:
            self._began()
        return reply


def _code(error: Exception) -> int | None:
    """The status of a refusal, be it that of the reply or of an event in it; None: it is no refusal."""
    if not isinstance(error, httpx2.HTTPStatusError):
        return None
    status = getattr(error, "status", None)
    return int(error.response.status_code if status is None else status.code)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
