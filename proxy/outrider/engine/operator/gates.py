"""Warms the data that pods wait for, opens their gates, and has the cache of a node fetch what its next pods read.

Nothing is remembered that the pods and the caches do not say themselves, apart from the pauses between tries. So an
operator that is started again, or another one, goes on where this one ended.

Each list of data is looked after by a task of its own. A round waits for them for a moment and sees to the deadlines,
which pass on time whatever the caches do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from math import inf

from outrider.core.operator.pod_patch import is_gated, is_of, opened, wishes_in
from outrider.core.operator.warm_gate import (
    Opening,
    best_report,
    opening_of,
    progress_note,
    warmup_name,
)
from outrider.core.operator.wishes import INJECT, SCHEDULE, WishError, Wishes
from outrider.engine.operator.event_writer import EventWriter
from outrider.engine.operator.holdings_watch import Holdings
from outrider.engine.operator.metrics import OperatorMetrics
from outrider.engine.operator.namespaces import Namespaces
from outrider.engine.operator.warming import Data, Waiting, Warming
from outrider.operator_ports import (
    CacheError,
    Caches,
    ConflictError,
    Kube,
    KubeError,
    Manifest,
)

log = logging.getLogger(__name__)

STEP_S = 3.0
# After a round that has begun a warm-up: that of data which is there already has ended by then.
_SOON_S = 0.5
# So long a round waits for the caches, and for the API server. The next one waits on.
_ROUND_S = 2.0
# Between two Events about the progress of a pod.
_NOTE_S = 60.0
# All pods together get no more. The API server keeps each Event for an hour.
_EVENTS_PER_S = 10
# Sets of data that are looked after at once, and pods for which the API server is called at once.
_AT_ONCE = 16
# A pod whose data is warm waits no longer for the answers of slow caches.
_LOOK_S = 10.0


class Gates:
    """All on one loop. `name`: that of the operator, `me`: that of this process. `clock`: seconds since the epoch."""

    def __init__(
        self, kube: Kube, caches: Caches, holdings: Holdings, metrics: OperatorMetrics, namespaces: Namespaces,
        *, name: str, me: str, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._kube = kube
        self._caches = caches
        self._holdings = holdings
        self._metrics = metrics
        self._namespaces = namespaces
        self._name = name
        self._clock = clock
        # By uid of pods that are pending: when the last Event was written.
        self._noted: dict[str, float] = {}
        self._invalid: set[str] = set()
        self._followed: set[str] = set()
        self._calling = asyncio.Semaphore(_AT_ONCE)
        self._events = EventWriter(kube, me, clock, self._calling)
        self._note_s = _NOTE_S
        self._waiting: dict[Data, Waiting] = {}
        self._judges: dict[Data, asyncio.Task[None]] = {}
        self._judging = asyncio.Semaphore(_AT_ONCE)
        # Calls to the caches of nodes where pods were placed.
        self._follows: set[asyncio.Task[None]] = set()
        self._following = asyncio.Semaphore(_AT_ONCE)
        self._warming = Warming(kube, caches, holdings, clock)

    async def step(self) -> float:
        """One round over all pods. Returns the seconds until the next one. Raises KubeError: no pods were listed."""
        begun = self._warming.begun
        listed = [*await self._kube.pending_pods(SCHEDULE, None), *await self._kube.pending_pods(INJECT, None)]
        own = await self._namespaces.with_own(listed)
        pods = {pod["metadata"]["uid"]: pod for pod in own if is_of(pod, self._name)}
        for kept in (self._invalid, self._followed):
            kept &= pods.keys()
        self._noted = {uid: at for uid, at in self._noted.items() if uid in pods}
        waiting: dict[Data, list[tuple[Manifest, Wishes]]] = {}
        for uid, pod in pods.items():
            try:
                wishes = wishes_in(pod)
            except WishError as error:
                await self._reject(uid, pod, str(error))
                continue
            if is_gated(pod):
                waiting.setdefault(wishes.data, []).append((pod, wishes))
            elif wishes.is_near and uid not in self._followed and (node := pod["spec"].get("nodeName")):
                self._followed.add(uid)
                self._follows.add(asyncio.create_task(self._follow(node, wishes.data), name="cache of a pod's node"))
        gated = sum(map(len, waiting.values()))
        self._metrics.gated.set(gated)
        self._note_s = max(_NOTE_S, gated / _EVENTS_PER_S)
        self._waiting.clear()
        self._waiting.update(waiting)
        self._warming.forget(but=waiting)
        await self._ask_caches()
        left_s = await self._open_overdue()
        return max(_SOON_S, min(_SOON_S if self._warming.begun > begun else STEP_S, left_s))

    async def close(self) -> None:
        """Ends the tasks that still wait for caches."""
        tasks = [*self._judges.values(), *self._follows]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_caches(self) -> None:
        """A cache that hangs over one list keeps no pod that waits for another."""
        for data in self._waiting.keys() - self._judges.keys():
            self._judges[data] = asyncio.create_task(self._judge(data), name="gates of the same data")
        tasks = {*self._judges.values(), *self._follows}
        if tasks:
            left_s = min(map(self._left_s, self._waiting), default=_ROUND_S)
            await asyncio.wait(tasks, timeout=max(_SOON_S, min(_ROUND_S, left_s)))
        self._judges = {data: task for data, task in self._judges.items() if not task.done()}
        self._follows = {task for task in self._follows if not task.done()}
        for task in tasks:
            if task.done():
                task.result()

    def _left_s(self, data: Data) -> float:
        """Until the first of its pods has waited long enough; negative: since then."""
        return min(wishes.deadline_s - self._waited_s(pod) for pod, wishes in self._waiting[data])

    def _waited_s(self, pod: Manifest) -> float:
        return self._clock() - datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp()

    async def _open_overdue(self) -> float:
        """Pods whose caches have not answered by their deadline. Returns the seconds until the next deadline."""
        late = [
            (pod, data, opening)
            for data in self._waiting.keys() & self._judges.keys()
            for pod, wishes in self._waiting[data]
            if (opening := opening_of(wishes, self._waited_s(pod), ())) is not None
        ]
        await asyncio.gather(*(self._open(*each) for each in late))
        return min((left_s for data in self._waiting if (left_s := self._left_s(data)) > 0), default=STEP_S)

    async def _reject(self, uid: str, pod: Manifest, why: str) -> None:
        if is_gated(pod):
            # The annotation was changed after the webhook saw it.
            await self._open(pod, (), Opening("InvalidAnnotation", why, is_warning=True))
        elif uid not in self._invalid:
            await self._events.emit(pod, "InvalidAnnotation", why, is_warning=True, is_once=True)
        self._invalid.add(uid)

    async def _follow(self, node: str, data: Sequence[str]) -> None:
        """The pod was placed: the cache of its node begins while images are pulled."""
        cache = self._holdings.pod_on(node)
        if cache is not None:
            try:
                async with self._following:
                    await self._caches.warm(warmup_name(data), data, at=cache)
            except CacheError as error:
                log.info("a cache was not notified of a pod", extra={"node": node, "why": str(error)})

    async def _judge(self, data: Data) -> None:
        """Pods that wait for the same data, be they of one job or of several."""
        async with self._judging:
            found = await self._warming.look_after(data, self._waiting.get(data, ()))
        now = self._clock()
        ready: list[tuple[Manifest, Opening]] = []
        notes: list[tuple[Manifest, str]] = []
        # Those of now: the caches may have taken a while.
        for pod, wishes in self._waiting.get(data, ()):
            zones = [found[zone] for zone in self._warming.zones_of(pod) if zone in found]
            opening = opening_of(wishes, self._waited_s(pod), zones)
            report = best_report(zones)
            if opening is not None:
                ready.append((pod, opening))
            elif report is not None and now - self._noted.get(uid := pod["metadata"]["uid"], -inf) >= self._note_s:
                self._noted[uid] = now
                notes.append((pod, progress_note(report)))
        if any(opening.reason == "Warm" for _, opening in ready):
            await self._look()
        await asyncio.gather(
            *(self._open(pod, data, opening) for pod, opening in ready),
            *(self._events.emit(pod, "Warming", note) for pod, note in notes),
        )

    async def _look(self) -> None:
        """Ask the caches what they hold: the last answers may be from before the warm-up."""
        try:
            async with asyncio.timeout(_LOOK_S):
                await self._holdings.refresh()
        except (KubeError, TimeoutError) as error:
            log.info("the last answers of the caches count", extra={"why": repr(error)})

    async def _open(self, pod: Manifest, data: Sequence[str], opening: Opening) -> None:
        metadata = pod["metadata"]
        try:
            async with self._calling:
                patch = opened(pod, self._holdings.of(data))
                await self._kube.patch_pod(metadata["namespace"], metadata["name"], patch)
        except ConflictError:
            return  # the next round sees the pod as it is now
        except KubeError as error:
            log.warning("a gate could not be opened", extra={
                "namespace": metadata["namespace"], "pod": metadata["name"], "why": str(error),
            })  # fmt: skip
            return
        self._metrics.openings.labels(opening.reason).inc()
        log.info("gate opened", extra={
            "namespace": metadata["namespace"], "pod": metadata["name"], "reason": opening.reason, "note": opening.note,
        })  # fmt: skip
        is_once = opening.reason == "InvalidAnnotation"
        await self._events.emit(pod, opening.reason, opening.note, is_warning=opening.is_warning, is_once=is_once)
