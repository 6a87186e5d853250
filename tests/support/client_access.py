"""Real S3 clients in tests: the endpoint and keys of one (`Access`), and the contract of each client (`S3Client`)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tests.support.bucket import REGION
from tests.support.child import program
from tests.support.forkserver import Process, Server
from tests.support.proxy import Keys

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


DEADLINE_S = 180.0
MIB = 1024 * 1024
# The pinned torch has no wheel for newer Pythons: there, the clients that need it are left out, as in pyproject.toml.
HAS_TORCH = sys.version_info < (3, 12)


@dataclass(frozen=True, slots=True)
class Access:
    """An endpoint to which a client connects, and the keys with which it signs. `scratch` is a directory for the
    client's files.

    `authority` is the certificate (PEM) of the authority that signs an https endpoint's; None for http.
    """

    endpoint: str
    keys: Keys
    scratch: Path
    authority: Path | None = None

    @property
    def scheme(self) -> str:
        return self.endpoint.partition("://")[0]

    @property
    def address(self) -> str:
        return self.endpoint.partition("://")[2]

    @property
    def verify(self) -> str | bool:
        """The value of botocore's `verify` argument."""
        return True if self.authority is None else str(self.authority)

    def environment(self) -> dict[str, str]:
        """A process's whole environment, in which this endpoint is the only S3 endpoint that a client can find."""
        bundles = ("AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
        trusted = {} if self.authority is None else dict.fromkeys(bundles, str(self.authority))
        foreign = ("AWS_", "S3_", "RCLONE_", "OUTRIDER_")
        return {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | {
            "AWS_ACCESS_KEY_ID": self.keys[0],
            "AWS_SECRET_ACCESS_KEY": self.keys[1],
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            # An error must show in the test, not be retried.
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "S3_ENDPOINT_URL": self.endpoint,
            # No user's own profile is read or changed.
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "RCLONE_CONFIG": os.devnull,
            # An HTTP proxy must not stand between the client and loopback.
            "no_proxy": "*",
            "NO_PROXY": "*",
            **trusted,
        }


class S3Client:
    """One client at one endpoint. Lists are whole keys below a prefix; ranges are half-open; `close` ends it."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    """Modules that must be installed, beyond those of every test."""
    runs: ClassVar[tuple[str, ...]] = ()
    """Programs that must be installed."""
    cannot: ClassVar[frozenset[str]] = frozenset()
    """Operations that fail against the bucket too: `read_range` (the tool has none), `read_empty`."""

    def __init__(self, access: Access) -> None:
        self.access = access

    def read(self, bucket: str, key: str) -> bytes:
        raise NotImplementedError

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        raise NotImplementedError

    def write(self, bucket: str, key: str, body: bytes) -> None:
        raise NotImplementedError

    def list(self, bucket: str, prefix: str) -> set[str]:
        raise NotImplementedError

    def delete(self, bucket: str, key: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Does nothing by default, for clients that keep nothing open."""


def run(access: Access, *argv: str | Path, server: Server | None = None) -> bytes:
    """The stdout of a command that ran with this endpoint in its environment. `server` forks it: a `python -m` of this
    repository.

    Raises:
        AssertionError: it ended with a status other than 0; the message ends with its output.
    """
    with Process(
        [str(word) for word in argv], forked=server is not None, server=server, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=access.environment(), cwd=access.scratch,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, f"{argv[0]} ended with {process.returncode}:\n{err.decode(errors='replace')}"
    return bytes(out)


def require(modules: Iterable[str], programs: Iterable[str] = ()) -> None:
    """A client that is not installed is a failure, not a skip: a test that did not run shows nothing."""
    for name in modules:
        assert importlib.util.find_spec(name), f"no module {name}: `make install-all` brings it"
    for name in programs:
        try:
            program(name)
        except FileNotFoundError as error:
            raise AssertionError(f"{error}; `make install-all` brings every program but curl") from None
