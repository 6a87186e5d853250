"""What training code tells the proxy on the side: in a thread of its own, and nothing at all where no proxy is.

Training must run unchanged anywhere: nothing here raises, waits (but once, for `_LOOK_S` at most) or warns twice.
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

# How long the proxy is looked for, once in a process and the workers that it starts.
_LOOK_S = 2.0
_SEND_S = 10.0
# A proxy that does not answer is left alone for so long: it may be starting again.
_SILENCE_S = 30.0
_MESSAGES_MAX = 64
_LAST_WORDS_S = 1.0
_numbers = itertools.count()


class Announcer:
    """Carries plans and stalls to one proxy, or to nobody.

    It is shared by all that speak to that proxy in a process, forked and pickled with them into loader workers, and
    `is_heard` is found out where it was made, so that a worker has nothing to wait for.
    """

    def __init__(self, endpoint: str | None, is_heard: bool, complained: mmap.mmap | None = None) -> None:
        """`complained`: a byte that all processes share; the first to set it is the one that warns."""
        self.endpoint = endpoint
        self.is_heard = is_heard
        self._complained = complained
        self.after_fork()

    def after_fork(self) -> None:
        """Neither thread nor connection came along, and the locks may be held by nobody."""
        self._lock = threading.Lock()
        self._messages: queue.Queue[tuple[str, bytes]] = queue.Queue(_MESSAGES_MAX)
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _announcer_in_child, (self.endpoint, self.is_heard)

    def plan(self, name: str, urls: Sequence[str], start: int, total: int | None) -> None:
        """Never waits; of too many messages the newest are dropped."""
        if self.is_heard and urls:
            told: dict[str, object] = {"reads": urls, "start": start}
            if total is not None:
                told["total"] = total
            self._put(f"plan/{name}", told)

    def stall(self, name: str, steps: int, wait_s: float, compute_s: float, epoch: int) -> None:
        """As `plan`."""
        if self.is_heard:
            self._put(f"stall/{name}", {"steps": steps, "wait_s": wait_s, "compute_s": compute_s, "epoch": epoch})

    def flush(self, timeout_s: float) -> bool:
        """Wait until all was sent (or given up); False: it was not, in this time."""
        done = self._messages.all_tasks_done
        with done:
            return done.wait_for(lambda: not self._messages.unfinished_tasks, timeout_s)

    def complain(self, what: str) -> None:
        if self._complained is None or self._complained[0]:
            log.debug(what)
            return
        self._complained[0] = 1
        log.warning(what)

    def _put(self, key: str, told: dict[str, object]) -> None:
        # A generator that is closed at exit comes here, and a thread that starts then hangs the process (Python 3.11).
        if sys.is_finalizing():
            return
        with self._lock:
            if self._thread is None and not self._start():
                return
        with contextlib.suppress(queue.Full, ValueError, TypeError):
            self._messages.put_nowait((key, json.dumps(told).encode()))

    def _start(self) -> bool:
        """False: the machine has no room for a thread just now."""
        self._thread = threading.Thread(target=self._send, name="outrider-announcer", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            return False
        return True

    def _send(self) -> None:
        port = S3Port(self.endpoint or "", _SEND_S)
        silent_until = 0.0
        while True:
            key, body = self._messages.get()
            try:
                if time.monotonic() >= silent_until and (refused := port.put(key, body)) is not None:
                    self.complain(f"outrider: the proxy at {self.endpoint} did not take {key}: {refused}")
            except (OSError, http.client.HTTPException) as error:
                port.close()
                silent_until = time.monotonic() + _SILENCE_S
                self.complain(f"outrider: the proxy at {self.endpoint} does not answer any more ({error!r})")
            except Exception as error:  # noqa: BLE001 - top of a thread, and training goes on whatever this is
                self.complain(f"outrider: our own error, {error!r}")
            finally:
                self._messages.task_done()


_announcers: dict[str | None, Announcer] = {}
_looking = threading.Lock()


def announcer(client: Client | None) -> Announcer:
    """The one of the proxy that `client` names, else of the one that the environment names. Never raises."""
    endpoint = client.endpoint if client is not None else endpoint_of(os.environ)
    with _looking:
        found = _announcers.get(endpoint)
        if found is None:
            why_not = _look(endpoint)
            found = Announcer(endpoint, why_not is None, mmap.mmap(-1, 1))
            if why_not is not None:
                found.complain(f"outrider: {why_not}: plans and stalls go nowhere, training goes on without them")
            _announcers[endpoint] = found
        return found


def _announcer_in_child(endpoint: str | None, is_heard: bool) -> Announcer:
    """In a spawned worker; it leaves the warning to its parent."""
    return _announcers.setdefault(endpoint, Announcer(endpoint, is_heard))


def _look(endpoint: str | None) -> str | None:
    """Why nobody would hear us; None: an Outrider is there. In a thread, since a name server may keep us waiting."""
    if endpoint is None:
        return "no proxy is named (AWS_ENDPOINT_URL is not set)"
    answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    looking = threading.Thread(target=lambda: answers.put(_why_not(endpoint)), name="outrider-look", daemon=True)
    try:
        looking.start()
    except RuntimeError as error:
        return f"nobody looked for a proxy at {endpoint} ({error})"
    try:
        return answers.get(timeout=_LOOK_S)
    except queue.Empty:
        return f"nothing answers at {endpoint} within {_LOOK_S:g} s"


def _why_not(endpoint: str) -> str | None:
    port = None
    try:
        port = S3Port(Client(endpoint).endpoint, _LOOK_S)
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


def new_name() -> str:
    """For something that announces, made in the main process: no other in this job has it."""
    return f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}-rank{os.environ.get('RANK', '0')}"


def worker_number() -> int | None:
    """Of the DataLoader worker that this process is; None: it is none."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return None if info is None else int(info.id)


def _after_fork() -> None:
    global _looking
    _looking = threading.Lock()
    for one in _announcers.values():
        one.after_fork()


def _last_words() -> None:
    for one in _announcers.values():
        one.flush(_LAST_WORDS_S)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_last_words)
