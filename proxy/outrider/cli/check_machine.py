"""Checks of `outrider doctor` on this machine: cache directory, disk, ports, limits, and the job's environment."""

from __future__ import annotations

import errno
import http.client
import json
import mmap
import os
import resource
import socket
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from outrider.adapters.disk.block_dir import BlockDir, UnusableCacheDir
from outrider.cli import environment
from outrider.cli.findings import Finding, fail, ok, warn
from outrider.core.text import in_words
from outrider.settings import Settings

_MEMORY = Path("/dev/shm")  # noqa: S108 - where `--cache-dir memory` lives
_SPEED_BYTES = 64 * 2**20
_SPEED_PIECE_BYTES = 4 * 2**20
# A disk that has not taken the file by then is slow enough to say so.
_SPEED_DEADLINE_S = 5.0
# 1 Gbit/s, the slowest network that a bucket is read over today: a slower disk makes no cache.
_SLOW_BYTES_S = 125e6
# Enough to tell how full a cache is; more files take long to count.
_FILES_COUNTED_MAX = 200_000
_ROOM_LITTLE_BYTES = 2**30
_FILES_FEW = 4096
_ADMIN_TIMEOUT_S = 2.0
_STATUS_BYTES_MAX = 16 * 2**20


def cache_findings(settings: Settings, running_here: bool) -> Iterator[Finding]:
    """Directory, room and speed. `running_here`: an outrider already listens where we were told to."""
    memory = str(settings.cache_dir) == "memory"
    wanted = _MEMORY if memory else settings.cache_dir.expanduser()
    existing = _existing(wanted)
    directory = check_directory(wanted, existing, memory, running_here)
    yield directory
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        return
    yield check_room(settings, existing, 0 if memory else _used_bytes(wanted))
    yield check_speed(existing)


def check_directory(wanted: Path, existing: Path, memory: bool, running_here: bool) -> Finding:
    if memory or existing != wanted:
        if os.access(existing, os.W_OK | os.X_OK) and existing.is_dir():
            return ok("cache dir", f"{wanted}" + ("" if memory else ": will be made"))
        return fail(
            "cache dir", f"{wanted}: {existing} is not writable for this user",
            "Make it writable, or choose another one with --cache-dir.",
        )  # fmt: skip
    try:
        BlockDir.open(wanted).close()
    except UnusableCacheDir as error:
        if isinstance(error.__cause__, BlockingIOError) and running_here:
            return ok("cache dir", f"{wanted}: in use by the outrider that runs here")
        what, _, do = str(error).removeprefix("cache directory ").partition(". ")
        return fail("cache dir", what, do)
    return ok("cache dir", f"{wanted}: writable, not in use")


def check_room(settings: Settings, existing: Path, used_bytes: int) -> Finding:
    stat = os.statvfs(existing)
    total, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    budget, floor = settings.cache_size.of(total), settings.min_free.of(total)
    room = min(budget, max(0, used_bytes + free - floor))
    text = f"room for {in_words(room)} ({in_words(used_bytes)} held, {in_words(free)} free of {in_words(total)})"
    do = "Free some space, choose another disk with --cache-dir, or lower --min-free."
    if room < 2 * settings.block_size:
        return fail("disk space", f"{text}: nothing can be kept", do)
    # A share of the disk is an upper bound and no promise; a number of bytes is what somebody counts on.
    if room < budget and (settings.cache_size.amount_bytes or room < _ROOM_LITTLE_BYTES):
        return warn("disk space", f"{text}, not the {in_words(budget)} of --cache-size", do)
    return ok("disk space", text)


def check_speed(directory: Path) -> Finding:
    """Write and read a file that has no name, so that nothing is left behind whatever happens."""
    try:
        stat = os.statvfs(directory)
        if stat.f_bavail * stat.f_frsize < 2 * _SPEED_BYTES:
            return warn("disk speed", "not measured: the disk is full", "Free some space.")
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            written, write_bytes_s = _timed_write(file.fileno())
            read_bytes_s = _timed_read(file.fileno(), written)
    except OSError as error:
        return fail("disk speed", f"{directory}: {error.strerror}", "Check the disk, or choose another --cache-dir.")
    return judged_speed(write_bytes_s, read_bytes_s)


def judged_speed(write_bytes_s: float, read_bytes_s: float) -> Finding:
    text = f"writes {write_bytes_s / 1e6:,.0f} MB/s, reads {read_bytes_s / 1e6:,.0f} MB/s"
    if min(write_bytes_s, read_bytes_s) < _SLOW_BYTES_S:
        return warn("disk speed", text, "Slower than a network: put --cache-dir on a local SSD, or use memory.")
    return ok("disk speed", text)


def _timed_write(fd: int) -> tuple[int, float]:
    piece = os.urandom(_SPEED_PIECE_BYTES)  # a disk that compresses must not look faster than it is
    began = time.perf_counter()
    written = 0
    while written < _SPEED_BYTES and time.perf_counter() - began < _SPEED_DEADLINE_S:
        written += os.pwrite(fd, piece, written)
    os.fdatasync(fd)
    return written, written / (time.perf_counter() - began)


def _timed_read(fd: int, size: int) -> float:
    # Else it would be the page cache's speed. A tmpfs ignores it, and rightly so.
    os.posix_fadvise(fd, 0, size, os.POSIX_FADV_DONTNEED)
    buffer = mmap.mmap(-1, _SPEED_PIECE_BYTES)
    began = time.perf_counter()
    done = 0
    while done < size and time.perf_counter() - began < _SPEED_DEADLINE_S:
        done += os.preadv(fd, [buffer], done)
    return done / (time.perf_counter() - began)


def check_port(flag: str, address: str, running: str | None) -> Finding:
    """`running`: the version of the outrider that already listens there; None: none does."""
    name = flag.lstrip("-")
    host, _, port = address.rpartition(":")
    if running is not None:
        return ok(name, f"{address}: outrider {running} listens there already")
    try:
        with socket.create_server((host.strip("[]"), int(port)), family=_family(host)):
            pass
    except OSError as error:
        return fail(name, f"{address}: {error.strerror}", _on_port(flag, error.errno))
    return ok(name, f"{address}: free")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _on_port(flag: str, code: int | None) -> str:
    if code == errno.EADDRINUSE:
        return f"Something else listens there: stop it, or choose another address with {flag}."
    if code in (errno.EACCES, errno.EPERM):
        return f"Ports below 1024 need root: choose another one with {flag}."
    return f"Choose an address of this machine with {flag}."


def running_outrider(settings: Settings) -> dict[str, object] | None:
    """The /status of the outrider at our --admin address; None: there is none (or its token is another)."""
    host, _, port = settings.admin.rpartition(":")
    if port == "0":
        return None
    request = urllib.request.Request(f"http://{loopback_of(host)}:{port}/status")
    if settings.admin_token is not None:
        request.add_header("Authorization", f"Bearer {settings.admin_token.get_secret_value()}")
    try:
        with direct().open(request, timeout=_ADMIN_TIMEOUT_S) as reply:
            status = json.loads(reply.read(_STATUS_BYTES_MAX))
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return status if isinstance(status, dict) and "version" in status and "listen" in status else None


def direct() -> urllib.request.OpenerDirector:
    """Past any http_proxy: what is asked is on this machine."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def loopback_of(host: str) -> str:
    """Where to connect to what listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104


def check_open_files(hard: int | None = None) -> Finding:
    """A connection takes two, an open block one."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if hard is None else hard
    text = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
    if limit != resource.RLIM_INFINITY and limit < _FILES_FEW:
        return warn("open files", f"at most {text}", f"Raise it to {_FILES_FEW:,} or more: ulimit -Hn, LimitNOFILE=.")
    return ok("open files", f"at most {text}")


def job_findings(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Whether a job with this environment would come to us. All of it may be set elsewhere: nothing fails."""
    host, _, port = settings.listen.rpartition(":")
    scheme = "http" if settings.tls_cert is None else "https"
    ours = f"{scheme}://{loopback_of(host)}:{port}"
    yield check_endpoint(ours, environ)
    if environment.STATUS_URL not in environ and environ.get("S3_ENDPOINT_URL", ours).rstrip("/") != ours:
        yield warn("s5cmd", f"S3_ENDPOINT_URL is {_shown(environ['S3_ENDPOINT_URL'])}", f"For s5cmd: set it to {ours}")
    if _goes_by_proxy(scheme, environ):
        yield warn(
            "http proxy", "http_proxy is set, and NO_PROXY does not name 127.0.0.1",
            "Add 127.0.0.1,localhost to NO_PROXY and no_proxy of the job, else its reads go to that proxy.",
        )  # fmt: skip
    bundle = environ.get("AWS_CA_BUNDLE")
    if bundle and not Path(bundle).is_file():
        yield warn("certificates", f"AWS_CA_BUNDLE names {bundle}, which is no file", "Name a PEM file, or unset it.")


def check_endpoint(ours: str, environ: Mapping[str, str]) -> Finding:
    do = f"For the job: export AWS_ENDPOINT_URL={ours} (or start it with `outrider run -- CMD`)."
    if environment.ignores_endpoints(environ):
        return warn(
            "job", "the environment or the AWS profile says that AWS_ENDPOINT_URL is not looked at",
            "For the job: export AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=false (or start it with `outrider run -- CMD`).",
        )  # fmt: skip
    set_to = {name: environ[name] for name in environment.ENDPOINTS[:2] if environ.get(name)}
    if not set_to:
        return warn("job", "AWS_ENDPOINT_URL is not set here: reads go past the cache", do)
    name, endpoint = next(iter(set_to.items()))
    if environment.STATUS_URL in environ:
        return ok("job", f"{name} is {_shown(endpoint)}, the proxy of `outrider run`")
    if endpoint.rstrip("/").replace("//localhost:", "//127.0.0.1:") != ours:
        unset = " Also unset AWS_ENDPOINT_URL_S3, which wins." if name == "AWS_ENDPOINT_URL_S3" else ""
        return warn("job", f"{name} is {_shown(endpoint)}, not this proxy", do + unset)
    return ok("job", f"{name} is {ours}")


def _goes_by_proxy(scheme: str, environ: Mapping[str, str]) -> bool:
    if not any(environ.get(name) for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")):
        return False
    listed = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    return not {"*", "127.0.0.1", "127.0.0.0/8"} & {host.strip() for host in listed.split(",")}


def _shown(url: str) -> str:
    """Without user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _used_bytes(wanted: Path) -> int:
    return sum(found.disk_bytes for found in islice(BlockDir(wanted).walk(), _FILES_COUNTED_MAX))
