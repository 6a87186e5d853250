"""The benchmark's targets: a server over the same data (`Target`), Outrider, and the bucket itself. Others: `peers`."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import sys
import urllib.request
from pathlib import Path
from typing import ClassVar

from tests.bench.world import NAME, World
from tests.support.child import Child, clean_environment, free_ports, program
from tests.support.proxy import serving_environment

READY_DEADLINE_S = 60.0
_PRESIGNED_S = 86_400
# Names to which goals and tables refer.
OUTRIDER, SIGV4 = "Outrider", "Outrider, sigv4"
DIRECT, STATIC = "direct", "nginx static"
RCLONE, NGINX_CACHE, JUICEFS, S3FS = "rclone serve s3", "nginx proxy_cache", "JuiceFS gateway", "s3fs mount"


class Target:
    """One server over the same data. All its ports are chosen when it is built, so that URLs outlive a restart."""

    name: ClassVar[str]
    slug: ClassVar[str]
    """Its name on the command line."""
    peer: ClassVar[bool] = True
    """True: it competes for "the best peer"."""
    caches: ClassVar[bool] = True
    """False: it caches nothing, so its cold runs are like its warm ones."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.directory = world.directory / self.slug
        self.directory.mkdir()
        (self.port, self.admin_port) = free_ports(2)
        self.child: Child | None = None
        self._urls: dict[str, str] = {}

    # -- each target defines these -----------------------------------------------------------------------------

    @classmethod
    def lacks(cls) -> str | None:
        """The reason why it cannot run here; None: it can."""
        return None

    def argv(self) -> list[str | Path]:
        raise NotImplementedError

    def env(self) -> dict[str, str]:
        return clean_environment() | self.world.bucket.environment()

    def ready(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def populate(self) -> None:
        """Put the data where only this target finds it. Called once, while it runs."""

    # -- common to all targets ---------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str | None:
        """None: it speaks no HTTP."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def session(self) -> int | None:
        """The session whose CPU and memory count; None: there is none."""
        return None if self.child is None else self.child.process.pid

    @property
    def cache(self) -> Path:
        return self.directory / "cache"

    def url(self, key: str) -> str:
        """The URL at which a client that cannot sign reads `key`."""
        return f"{self.endpoint}/{NAME}/{key}"

    def start(self) -> None:
        """Raises RuntimeError: it did not get ready; the message ends with the tail of its log."""
        self.cache.mkdir(exist_ok=True)
        self.child = Child(self.argv(), log=self.directory / "log", env=self.env(), cwd=self.directory)
        try:
            self.child.wait_until(self.ready, what=self.name, deadline_s=READY_DEADLINE_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop()
            self.child = None

    def clear(self) -> None:
        """Forget all data: the next read is the first."""
        if self.caches:
            self.stop()
            shutil.rmtree(self.cache, ignore_errors=True)
            self.start()

    def presigned(self, key: str) -> str:
        if key not in self._urls:
            client = self.world.bucket.client(self.endpoint, signature_version="s3v4")
            for name in self.world.sizes:
                self._urls[name] = client.generate_presigned_url(
                    "get_object", Params={"Bucket": NAME, "Key": name}, ExpiresIn=_PRESIGNED_S
                )
            client.close()
        return self._urls[key]


def outrider_python() -> Path:
    """The interpreter of the environment with Outrider alone (see the Makefile), if there is one. Any other also holds
    the tests' packages in its memory."""
    alone = Path(sys.prefix) / "alone" / "bin" / "python"
    return alone if alone.exists() else Path(sys.executable)


class Outrider(Target):
    name, slug, peer = OUTRIDER, "outrider", False

    def argv(self) -> list[str | Path]:
        # No log line for each request, as nginx is measured without its access log; and versions are fresh for an hour,
        # as nginx and rclone are configured.
        return [
            *(outrider_python(), "-m", "outrider", "serve", "--origin", self.world.simulator.endpoint),
            *("--listen", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin_port}"),
            *("--cache-dir", self.cache, "--cache-size", "2TiB", "--min-free", "0"),
            *("--freshness", "ttl:3600", "--log-level", "warning", *self.world.outrider_flags),
        ]

    def env(self) -> dict[str, str]:
        return serving_environment(self.world.bucket)

    def ready(self) -> bool:
        return self.is_ready() and bool(self.status()["indexed"])

    def is_ready(self) -> bool:
        """The readiness that a kubelet sees; the index of cached blocks may still be loading."""
        admin = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=1)
        try:
            admin.request("GET", "/readyz")
            return admin.getresponse().status == 200
        except OSError:
            return False
        finally:
            admin.close()

    def status(self) -> dict[str, object]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/status", timeout=5) as answer:
            told: dict[str, object] = json.load(answer)
            return told


class OutriderSigV4(Outrider):
    name, slug = SIGV4, "outrider-sigv4"

    def argv(self) -> list[str | Path]:
        keys = self.world.bucket
        clients = self.directory / "clients.toml"
        clients.write_text(
            f'[[client]]\naccess_key = "{keys.access_key}"\nsecret_key = "{keys.secret_key}"\nname = "bench"\n'
            'grants = [{bucket = "*", access = "read"}]\n'
        )
        return [*super().argv(), "--auth", "sigv4", "--clients", clients]

    def url(self, key: str) -> str:
        return self.presigned(key)


class Direct(Target):
    """The bucket: through its simulated network where a load is cold, at its own port where it is warm."""

    name, slug, peer, caches = DIRECT, "direct", False, False
    far = False

    @property
    def endpoint(self) -> str:
        return self.world.simulator.endpoint if self.far else self.world.bucket.endpoint

    @property
    def session(self) -> int | None:
        return None

    def start(self) -> None:
        pass


def lacks_program(name: str, source: str) -> str | None:
    """The reason why a target whose command is `name` cannot run, with the `source` of the command; None: it is
    there."""
    try:
        program(name)
    except FileNotFoundError:
        return f"there is no {name} ({source})"
    return None
