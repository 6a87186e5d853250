"""Composes `outrider operator`: its loops, each repeated for ever, and its two ports."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from outrider.adapters.kubernetes.certificates import X509Certifier
from outrider.adapters.process.listening import bind, naming
from outrider.core.operator.pod_patch import Offers
from outrider.engine.operator.certificate_keeper import KEEP_S, CertificateKeeper
from outrider.engine.operator.event_writer import EventWriter
from outrider.engine.operator.gates import Gates
from outrider.engine.operator.holdings_watch import REFRESH_S, Holdings
from outrider.engine.operator.leader import RENEW_S, Leader
from outrider.engine.operator.metrics import OperatorMetrics
from outrider.engine.operator.namespaces import Namespaces
from outrider.engine.operator.rights import CHECK_S, Rights
from outrider.engine.operator.wish_warnings import Warned
from outrider.http.operator.admission import Admission
from outrider.http.operator.server import ServerCertificate, listening
from outrider.operator_ports import Caches, ConflictError, Kube, KubeError

log = logging.getLogger(__name__)

# A loop whose round failed waits longer each time, up to this.
_PAUSE_MAX_S = 15.0
# Between two looks of one that is not the leader: it begins soon after it is.
_FOLLOWER_S = 0.5
# Until the API server can call. Another replica may be making the certificate.
_FIRST_S = 2.0
_EVENTS_AT_ONCE = 4


class Operator:
    """`cache`: namespace and name of the Service of the cache's pods. `name`: what the operator owns is called so.
    `me`: this process. `has_zones`: the caches of a zone are one, and not those of the whole cluster.
    `namespaces`: the LabelSelector of its webhook (Kubernetes meta/v1)."""

    def __init__(
        self, kube: Kube, caches: Caches, offers: Offers, *, cache: tuple[str, str], name: str, me: str,
        namespaces: Mapping[str, Any], has_zones: bool = True,
    ) -> None:  # fmt: skip
        self.me = me
        self._certificate = ServerCertificate()
        self._metrics = OperatorMetrics()
        self._leader = Leader(kube, name, me, monotonic=time.monotonic, clock=time.time)
        self._holdings = Holdings(kube, caches, *cache, has_zones=has_zones)
        self._gates = Gates(
            kube, caches, self._holdings, self._metrics, Namespaces(kube, namespaces, time.monotonic), name=name, me=me,
            clock=time.time,
        )  # fmt: skip
        self._keeper = CertificateKeeper(
            kube, X509Certifier(), self._certificate.show, name=name, monotonic=time.monotonic, wall_clock=time.time
        )
        self._rights = Rights(kube, name, monotonic=time.monotonic)
        self._is_checked = asyncio.Event()
        events = EventWriter(kube, me, time.time, asyncio.Semaphore(_EVENTS_AT_ONCE))
        self._warned = Warned(kube, events, time.time)
        self._admission = Admission(
            offers, self._holdings.of, self._rights.may_open, self._metrics, name=name,
            warned=self._warned.note,
        )  # fmt: skip

    @asynccontextmanager
    async def running(self, webhook: tuple[str, int], plain: tuple[str, int]) -> AsyncIterator[tuple[int, int]]:
        """Yields the ports. A host is "" for all addresses. Raises OSError: one of them cannot be listened on."""
        with _bound(webhook, "--webhook-listen") as at_webhook, _bound(plain, "--listen") as at_plain:
            async with self._listening(at_webhook, at_plain) as ports:
                yield ports

    @asynccontextmanager
    async def _listening(self, webhook: socket.socket, plain: socket.socket) -> AsyncIterator[tuple[int, int]]:
        loops = {
            "leader": self._lead, "rights": self._check, "holdings": self._ask, "certificates": self._keep,
            "gates": self._open, "warned": self._warned.step,
        }  # fmt: skip
        async with listening(
            self._admission, self._metrics, self._certificate, webhook=webhook, plain=plain,
            is_ready=lambda: self._keeper.is_ready,
        ) as ports:  # fmt: skip
            tasks = [asyncio.create_task(self._repeat(loop, step), name=loop) for loop, step in loops.items()]
            try:
                yield ports
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._gates.close()
                with suppress(KubeError):
                    await self._leader.release()

    async def _repeat(self, loop: str, step: Callable[[], Awaitable[float]]) -> None:
        """Each step returns the seconds until the next one."""
        failed = 0
        while True:
            try:
                pause_s = await step()
                failed = 0
            except Exception as error:
                failed += 1
                pause_s = min(_PAUSE_MAX_S, 2.0**failed)
                self._metrics.failures.labels(loop).inc()
                log.warning(
                    "a round failed and is made again", extra={"loop": loop, "why": str(error), "pause_s": pause_s},
                    exc_info=not isinstance(error, KubeError),
                )  # fmt: skip
            await asyncio.sleep(pause_s)

    async def _lead(self) -> float:
        try:
            await self._leader.step()
        finally:
            self._metrics.leader.set(self._leader.is_leader())
        return RENEW_S

    async def _check(self) -> float:
        try:
            await self._rights.step()
        finally:
            self._is_checked.set()
        return CHECK_S

    async def _ask(self) -> float:
        await self._holdings.refresh()
        return REFRESH_S

    async def _keep(self) -> float:
        # The first pod is asked about when it is known whether it may be held back.
        await self._is_checked.wait()
        try:
            await self._keeper.step()
        except ConflictError:
            return _FIRST_S  # another operator was first
        return KEEP_S if self._keeper.is_ready else _FIRST_S

    async def _open(self) -> float:
        if not self._leader.is_leader():
            return _FOLLOWER_S
        return await self._gates.step()


def _bound(at: tuple[str, int], flag: str) -> socket.socket:
    """Raises OSError, which names the flag."""
    host, port = at
    with naming(flag, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"):
        return bind(host or "::", port)
