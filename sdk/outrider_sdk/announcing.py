"""Sends plans and stalls from training code to the proxy, in a thread of its own. Without a proxy nothing is sent.

Training must run unchanged anywhere. Nothing here raises or warns twice. The only wait is the search for the proxy,
once and for `_LOOKUP_TIMEOUT_S` at most.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import itertools
import json
import logging
import mmap
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Sequence

from outrider_sdk.client import Client, endpoint_of
from outrider_sdk.s3port import NotOutrider, S3Port

log = logging.getLogger("outrider_sdk")

# Bound of the search for the proxy, once in a process and the workers that it starts.
_LOOKUP_TIMEOUT_S = 2.0
_SEND_TIMEOUT_S = 10.0
# After an error nothing is sent for this time: the proxy may be restarting.
_PAUSE_AFTER_ERROR_S = 30.0
_MESSAGES_MAX = 64
_EXIT_FLUSH_S = 1.0
_numbers = itertools.count()


class Announcer:
    """Sends plans and stalls to one proxy, or drops them where there is none.

    All users of that proxy in a process share one announcer. It is forked and pickled with them into loader workers.
    `has_proxy` is determined where the announcer was made, so that a worker does not wait for a search of its own.
    """

    def __init__(self, endpoint: str | None, has_proxy: bool, has_warned: mmap.mmap | None = None) -> None:
        """`has_warned`: a byte that all processes share. The process that sets it first is the one that warns."""
        self.endpoint = endpoint
        self.has_proxy = has_proxy
        self._has_warned = has_warned
        self.after_fork()

    def after_fork(self) -> None:
        """Make the queue and the lock anew: a fork copies no thread, and a copied lock may be held for ever."""
        self._lock = threading.Lock()
        self._messages: queue.Queue[tuple[str, bytes]] = queue.Queue(_MESSAGES_MAX)
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _announcer_in_child, (self.endpoint, self.has_proxy)

    def plan(self, name: str, urls: Sequence[str], start: int, total: int | None) -> None:
        """Queue a plan. Never waits: when the queue is full, the newest message is dropped."""
        if self.has_proxy and urls:
            message: dict[str, object] = {"reads": urls, "start": start}
            if total is not None:
                message["total"] = total
            self._put(f"plan/{name}", message)

    def stall(self, name: str, steps: int, wait_s: float, compute_s: float, epoch: int) -> None:
        """Queue a stall report, as `plan` does."""
        if self.has_proxy:
            self._put(f"stall/{name}", {"steps": steps, "wait_s": wait_s, "compute_s": compute_s, "epoch": epoch})

    def flush(self, timeout_s: float) -> bool:
        """Wait until every message was sent or given up; False: the time was too short."""
        done = self._messages.all_tasks_done
        with done:
            return done.wait_for(lambda: not self._messages.unfinished_tasks, timeout_s)

    def warn_once(self, message: str) -> None:
        """Log at WARNING the first time in all processes, and at DEBUG from then on."""
        if self._has_warned is None or self._has_warned[0]:
            log.debug(message)
            return
        self._has_warned[0] = 1
        log.warning(message)

    def _put(self, key: str, message: dict[str, object]) -> None:
        # A generator that is closed at exit calls this. A thread that starts then hangs the process (Python 3.11).
        if sys.is_finalizing():
            return
        with self._lock:
            if self._thread is None and not self._start():
                return
        with contextlib.suppress(queue.Full, ValueError, TypeError):
            self._messages.put_nowait((key, json.dumps(message).encode()))

    def _start(self) -> bool:
        """Start the sending thread; False: the machine cannot start one now."""
        self._thread = threading.Thread(target=self._send, name="outrider-announcer", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            return False
        return True

    def _send(self) -> None:
        port = S3Port(self.endpoint or "", _SEND_TIMEOUT_S)
        silent_until = 0.0
        while True:
            key, body = self._messages.get()
            try:
                if time.monotonic() >= silent_until and (refused := port.put(key, body)) is not None:
                    self.warn_once(f"outrider: the proxy at {self.endpoint} did not take {key}: {refused}")
            except (OSError, http.client.HTTPException) as error:
                port.close()
                silent_until = time.monotonic() + _PAUSE_AFTER_ERROR_S
                self.warn_once(f"outrider: the proxy at {self.endpoint} does not answer any more ({error!r})")
            except Exception as error:  # noqa: BLE001 - top of a thread, and no error of ours may stop training
                self.warn_once(f"outrider: an error of the SDK itself, {error!r}")
            finally:
                self._messages.task_done()


_announcers: dict[str | None, Announcer] = {}
_announcers_lock = threading.Lock()


def announcer(client: Client | None) -> Announcer:
    """The announcer of the proxy that `client` names, or else of the proxy that the environment names. Never raises."""
    endpoint = client.endpoint if client is not None else endpoint_of(os.environ)
    with _announcers_lock:
        found = _announcers.get(endpoint)
        if found is None:
            reason = _why_unreachable(endpoint)
            found = Announcer(endpoint, reason is None, mmap.mmap(-1, 1))
            if reason is not None:
                found.warn_once(f"outrider: {reason}: no plans and stalls are sent, and training goes on without them")
            _announcers[endpoint] = found
        return found


def _announcer_in_child(endpoint: str | None, has_proxy: bool) -> Announcer:
    """The announcer in a spawned worker. The parent has given the warning."""
    return _announcers.setdefault(endpoint, Announcer(endpoint, has_proxy))


def _why_unreachable(endpoint: str | None) -> str | None:
    """Why messages would reach no proxy; None: an Outrider answers. A thread looks, since a name server may be slow."""
    if endpoint is None:
        return "no proxy is named (AWS_ENDPOINT_URL is not set)"
    answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    looking = threading.Thread(
        target=lambda: answers.put(_why_not_outrider(endpoint)), name="outrider-look", daemon=True
    )
    try:
        looking.start()
    except RuntimeError as error:
        return f"no thread could look for a proxy at {endpoint} ({error})"
    try:
        return answers.get(timeout=_LOOKUP_TIMEOUT_S)
    except queue.Empty:
        return f"nothing answers at {endpoint} within {_LOOKUP_TIMEOUT_S:g} s"


def _why_not_outrider(endpoint: str) -> str | None:
    port = None
    try:
        port = S3Port(Client(endpoint).endpoint, _LOOKUP_TIMEOUT_S)
        port.status()
    except NotOutrider as error:
        return f"at {endpoint} there is {error}"
    except (OSError, http.client.HTTPException) as error:
        return f"nothing answers at {endpoint} ({error})"
    except ValueError as error:
        return str(error)
    finally:
        if port is not None:
            port.close()
    return None


def unique_name() -> str:
    """A name for one source of plans or stalls, made in the main process and unique in this job."""
    return f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}-rank{os.environ.get('RANK', '0')}"


def worker_number() -> int | None:
    """The number of the DataLoader worker that this process is; None: it is no worker."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return None if info is None else int(info.id)


def _after_fork() -> None:
    global _announcers_lock
    _announcers_lock = threading.Lock()
    for known in _announcers.values():
        known.after_fork()


def _flush_at_exit() -> None:
    for known in _announcers.values():
        known.flush(_EXIT_FLUSH_S)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_flush_at_exit)
