"""Real proxies: in this process (`Proxy`), as `outrider serve` (`ServedProxy`), and other commands (`Command`)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import patch

import boto3
from botocore.config import Config

import outrider
from outrider import settings as outrider_settings
from outrider.adapters.process.system import new_event_loop
from outrider.app import running
from outrider.composition import Outrider
from outrider.core.origin.backoff import Backoff
from outrider.engine.fill.patience import Patience
from tests.support import forkserver
from tests.support.bucket import REGION
from tests.support.child import Child

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    from aiohttp.abc import AbstractResolver

    from outrider.core.cache.memory_budget import MemoryBudget
    from tests.support.bucket import Bucket


# Upper bounds for operations that hang, however slow the machine is.
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 60.0
# An event loop polls its sockets this many times before it counts as idle: a connection is accepted, reported to its
# protocol and read in one iteration each.
_TURNS = 5
# Large enough for every test, small beside the disk of any machine that runs them.
CACHE_SIZE = "1GiB"
# As many tries as usual. `tests/engine` holds the waits between them, in virtual time.
SHORT_WAITS = Backoff(base_s=0.01, cap_s=0.1)

Keys = tuple[str, str]
ANY_KEYS: Keys = ("anybody", "anything")
"""Keys for clients of a loopback proxy, which checks no signature."""


def s3_client(endpoint: str, keys: Keys = ANY_KEYS, *, verify: bool | str = True, **config: Any) -> Any:
    """A boto3 client that does not retry. The caller closes it."""
    chosen = {"retries": {"max_attempts": 0}, "s3": {"addressing_style": "path"}, "read_timeout": 60, **config}
    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=keys[0], aws_secret_access_key=keys[1], region_name=REGION,
        verify=verify, config=Config(**chosen),
    )  # fmt: skip


class Proxy:
    """`outrider.app.running` on a thread; `origin` is an endpoint, `settings` are those of `serve` with underscores.

    The cache directory outlives `stop()` and `restart()`, and goes with the context.
    """

    def __init__(
        self, bucket: Bucket, origin: str | None = None, *, environment: Mapping[str, str] | None = None,
        wall_clock: Callable[[], float] = time.time, resolver: AbstractResolver | None = None,
        patience: Patience | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        """`environment` None: that with the bucket's keys. `wall_clock` and `resolver`: the machine's own. `patience`
        None: that of a proxy, with shorter waits between tries."""
        self.environment = bucket.environment() if environment is None else environment
        self._wall_clock = wall_clock
        self._resolver = resolver
        self._patience = patience
        self._own_dir = Path(tempfile.mkdtemp(prefix="outrider-proxy-"))
        self.settings = {
            "origin": origin or bucket.endpoint,
            "region": REGION,
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "cache_dir": str(self._own_dir / "cache"),
            "cache_size": CACHE_SIZE,
            "min_free": "0",
            # Tests count the requests that they cause themselves. Tests of prefetch switch it on.
            "prefetch": "off",
            **settings,
        }
        self._clients: list[Any] = []
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outrider: Outrider | None = None
        self._error: BaseException | None = None

    @property
    def cache_dir(self) -> Path:
        return Path(self.settings["cache_dir"])

    @property
    def outrider(self) -> Outrider:
        assert self._outrider is not None, "not running"
        return self._outrider

    @property
    def endpoint(self) -> str:
        return self.outrider.endpoint

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.outrider.listen.rpartition(":")
        return host, int(port)

    @property
    def admin(self) -> str:
        return f"http://{self.outrider.admin}"

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples called `name`.

        The samples are added up on the proxy's own loop: two threads that add them up at the same time count twice.
        """

        metrics = self.outrider.metrics

        async def look() -> float:
            return metrics.total(name, **labels)

        on_its_thread = threading.current_thread() is self._thread
        return metrics.total(name, **labels) if on_its_thread else float(self.on_loop(look))

    def status(self) -> dict[str, Any]:
        """The content of the admin port's /status, read where nothing changes meanwhile."""

        async def look() -> dict[str, Any]:
            return dict(self.outrider.status.whole())

        document: dict[str, Any] = self.on_loop(look)
        return document

    def client(self, keys: Keys = ANY_KEYS, **config: Any) -> Any:
        """A boto3 client without retries, closed with the context."""
        made = s3_client(self.endpoint, keys, **config)
        self._clients.append(made)
        return made

    def on_loop(self, act: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a coroutine on the proxy's own loop, and wait for it."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(START_DEADLINE_S)

    def settle(self) -> None:
        """Wait until no request and no fill is under way.

        Counts are complete then, received data is on disk, and evicted data is gone. Bytes that a client has sent
        before this call count as under way.
        """

        self.on_loop(lambda: settled(self.outrider))

    def start(self) -> None:
        """Returns when it serves and knows the content of its cache directory. Raises the errors of `running`."""
        started, self._error = threading.Event(), None
        with patch.dict(os.environ, self.environment):
            settings = outrider_settings.load(self.settings, environ={})
        self._thread = threading.Thread(target=self._run, args=(settings, started), name="proxy", daemon=True)
        self._thread.start()
        assert started.wait(START_DEADLINE_S), "the proxy did not start"
        if self._error is not None:
            self._thread.join(STOP_DEADLINE_S)
            raise self._error

    def stop(self) -> None:
        """A clean stop: drained, and with a snapshot of the index."""
        if self._outrider is not None and self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(STOP_DEADLINE_S)
            assert not self._thread.is_alive(), "the proxy did not stop"
            self._outrider = None

    def restart(self, *, crashed: bool = False) -> None:
        """`crashed`: as if it had been killed, without a snapshot to start from."""
        self.stop()
        if crashed:
            (self.cache_dir / "index").unlink()
        self.start()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            shutil.rmtree(self._own_dir, ignore_errors=True)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        try:
            self.stop()
        finally:
            shutil.rmtree(self._own_dir, ignore_errors=True)

    def _run(self, settings: outrider_settings.Settings, started: threading.Event) -> None:
        try:
            with patch.dict(os.environ, self.environment), asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve(settings, started))
        except BaseException as error:  # noqa: BLE001 - top of a thread: `start` raises it
            self._error = error
        finally:
            started.set()

    async def _serve(self, settings: outrider_settings.Settings, started: threading.Event) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        async with running(
            settings, wall_clock=self._wall_clock, resolver=self._resolver,
            patience=self._patience or Patience(SHORT_WAITS, patience_s=settings.origin_patience_s),
        ) as self._outrider:  # fmt: skip
            # The credentials are looked up now, while this thread's environment has them.
            await self._outrider.credentials.current()
            async with asyncio.timeout(START_DEADLINE_S):
                await self._outrider.indexed.wait()
            started.set()
            await self._stopping.wait()


def memory_of(proxy: Proxy) -> MemoryBudget:
    return proxy.outrider.server.handler._memory


def free_bytes(memory: MemoryBudget) -> int:
    """How much can still be taken, in whole pages."""
    pages = 0
    while memory.take(4096):
        pages += 1
    memory.give_back(4096 * pages)
    return 4096 * pages


async def settled(running: Outrider) -> None:
    """Returns once no request and no fill is under way; called on the loop of the proxy."""
    async with asyncio.timeout(START_DEADLINE_S):
        await _some_loop_iterations()
        disks = running.store.disks
        while (
            len(running.flights)
            or running.server.handler.in_flight
            or any(disk.leaving or disk.work.is_cleaning for disk in disks)
        ):
            await running.server.handler.idle()
            await asyncio.sleep(0.001)


async def _some_loop_iterations() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class ServedProxy:
    """`outrider serve` as a process. `flags` are those of the command, with underscores; True is a flag without a
    value."""

    forked = True
    """False: a new interpreter, for tests of its memory or of its entries in /proc."""
    start_deadline_s = START_DEADLINE_S

    def __init__(self, bucket: Bucket, directory: Path, origin: str | None = None, **flags: str) -> None:
        self.cache_dir = directory / "cache"
        given = {
            "origin": origin or bucket.endpoint,
            "region": REGION,
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "cache_dir": str(self.cache_dir),
            "cache_size": CACHE_SIZE,
            "min_free": "0",
            **flags,
        }
        self.environment = serving_environment(bucket)
        self.argv = [sys.executable, "-m", "outrider", "serve"]
        for name, value in given.items():
            self.argv += [f"--{name.replace('_', '-')}", value]
        self.log = directory / "proxy.log"
        self._child: Child | None = None

    @property
    def is_started(self) -> bool:
        """It was started, and not stopped or waited for since."""
        return self._child is not None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.process.pid

    @property
    def endpoint(self) -> str:
        scheme = "https" if "--tls-cert" in self.argv else "http"
        return f"{scheme}://{self.ready_line['listen']}"

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.ready_line["listen"].rpartition(":")
        return host, int(port)

    @property
    def admin(self) -> str:
        return f"http://{self.ready_line['admin']}"

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """The log so far, parsed; with `event` only its lines. A line that is not JSON is an error."""
        whole, _, _ = self.log.read_text().rpartition("\n")  # the last line may be half written
        lines = [line for line in whole.splitlines() if line.endswith("}") and (event or "") in line]
        parsed = [json.loads(line) for line in lines]
        return [line for line in parsed if event in (None, line["event"])]

    def start(self) -> None:
        """Returns when it serves and knows the content of its cache directory."""
        self._child = Child(self.argv, log=self.log, env=self.environment, grace_s=STOP_DEADLINE_S, forked=self.forked)
        self.wait_until(lambda: bool(self.lines("ready") and self.lines("index ready")), "outrider serve")
        self.ready_line = self.lines("ready")[-1]

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.admin}/status", timeout=START_DEADLINE_S) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def settle(self) -> None:
        """Wait until no request and no fill is under way."""

        def settled() -> bool:
            status = self.status()
            return bool(status["requests"] == status["fills"] == 0)

        self.wait_until(settled, "an idle proxy")

    def wait_until(self, ready: Callable[[], object], what: str) -> None:
        assert self._child is not None
        self._child.wait_until(ready, what=what, deadline_s=self.start_deadline_s)

    def send(self, number: signal.Signals) -> None:
        assert self._child is not None
        self._child.process.send_signal(number)

    def wait(self) -> int:
        """Its exit status, once it has ended by itself or after `send`."""
        assert self._child is not None
        self._child.process.wait(STOP_DEADLINE_S)
        return self.stop()

    def stop(self) -> int:
        assert self._child is not None
        child, self._child = self._child, None
        return child.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self.stop()


def serving_environment(bucket: Bucket) -> dict[str, str]:
    """The environment of a process that runs this checkout's code against `bucket`."""
    paths = [str(Path(outrider.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "OUTRIDER_"))},
        **bucket.environment(),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


DEADLINE_S = 180.0


class Process(forkserver.Process):
    """Ends with its context, even where the test fails before it has ended it."""

    def __exit__(self, *failure: Any) -> None:
        if failure[0] is not None:
            self.kill()
        super().__exit__(*failure)


class Command:
    """`outrider` with the keys of `bucket` and no other AWS variable in its environment; HOME and cache in
    `directory`."""

    def __init__(self, bucket: Bucket, directory: Path) -> None:
        self.cache_dir = directory / "cache"
        config = directory / "outrider.toml"
        config.write_text(f'cache_dir = "{self.cache_dir}"\ncache_size = "256MiB"\nmin_free = "0"\n')
        self.environ = {
            **serving_environment(bucket),
            "HOME": str(directory),
            "OUTRIDER_CONFIG": str(config),
        }

    def start(self, *words: str | Path, stdin: int | None = subprocess.DEVNULL) -> Process:
        argv = [sys.executable, "-m", "outrider", *(str(word) for word in words)]
        return Process(argv, env=self.environ, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        with self.start(*words) as process:
            out, err = process.communicate(timeout=DEADLINE_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def without(self, *names: str) -> None:
        for name in names:
            self.environ.pop(name, None)


def python(program: str, *arguments: str) -> Sequence[str]:
    """The command line that runs a Python program."""
    return [sys.executable, "-c", program, *arguments]


ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """The resources of one process at one moment. `anonymous_bytes`: its memory less the pages that it shares with
    files on disk."""

    anonymous_bytes: int
    descriptors: int
    threads: int
    tasks: int
    connections: int
    temporary_files: int

    @classmethod
    def of(cls, served: ServedProxy) -> Vitals:
        """Reading `/status` takes a connection and a task: the same in each measurement."""
        document = status(served)
        proc = Path("/proc") / str(served.pid)
        lines = (line.partition(":") for line in (proc / "status").read_text().splitlines())
        fields = {name: value.split() for name, _, value in lines}
        return cls(
            int(fields["RssAnon"][0]) * 1024, len(list((proc / "fd").iterdir())), int(fields["Threads"][0]),
            document["tasks"], document["connections"], len(list((served.cache_dir / "tmp").glob("*.*"))),
        )  # fmt: skip


def status(served: ServedProxy) -> dict[str, int]:
    """The content of the admin port's /status."""
    with urllib.request.urlopen(f"{served.admin}/status", timeout=ANSWER_S) as answer:
        document: dict[str, int] = json.load(answer)
    return document
