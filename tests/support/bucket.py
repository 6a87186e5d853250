"""A real S3 server (SeaweedFS) for tests and the demo, on loopback and free ports, with signatures checked."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.child import Child, free_ports, program

REGION = "us-east-1"
READY_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Identity:
    """A key pair that the bucket knows. `actions` are SeaweedFS's words, each for all buckets or as `Read:bucket`.
    An empty `access_key`: there is no key."""

    name: str
    access_key: str
    secret_key: str
    actions: tuple[str, ...]


ADMIN = Identity("admin", "OUTRIDERADMIN", "admin-secret", ("Admin", "Read", "Write", "List", "Tagging"))
READER = Identity("reader", "OUTRIDERREADER", "reader-secret", ("Read", "List"))
GETTER = Identity("getter", "OUTRIDERGETTER", "getter-secret", ("Read",))
# SeaweedFS gives this identity to unsigned requests: the buckets whose names begin so are public.
_PUBLIC = ("open-", "areas-open-")
ANYBODY = Identity(
    "anonymous", "", "", tuple(f"{act}:{name}*" for act in ("Read", "List", "Write") for name in _PUBLIC)
)


class Bucket:
    """One SeaweedFS process with its data in a temporary directory; `start()` returns when it answers signed requests.

    `access_key` and `secret_key` are those of the first identity, which must be allowed to list and to make buckets.
    """

    def __init__(self, identities: tuple[Identity, ...] = (ADMIN, READER, GETTER, ANYBODY)) -> None:
        self._identities = identities
        self._child: Child | None = None
        self._directory: Path | None = None
        self._usual_client: Any = None
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def access_key(self) -> str:
        return self._identities[0].access_key

    @property
    def secret_key(self) -> str:
        return self._identities[0].secret_key

    def environment(self, identity: Identity | None = None) -> dict[str, str]:
        """The variables that give any S3 tool an identity's keys (None: the first identity's). The caller adds the
        endpoint."""
        identity = identity or self._identities[0]
        return {
            "AWS_ACCESS_KEY_ID": identity.access_key,
            "AWS_SECRET_ACCESS_KEY": identity.secret_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, endpoint: str | None = None, identity: Identity | None = None, **config: Any) -> Any:
        """A boto3 client that does not retry. `endpoint` is that of the simulator or the proxy, for a client in front
        of one. `config` goes to botocore's Config. The caller closes the client: it may be one that was closed before,
        which connects anew, since each new one takes 30 ms."""
        if endpoint is None and identity is None and not config:
            if self._usual_client is None:
                self._usual_client = self.client(self.endpoint)
            return self._usual_client
        identity = identity or self._identities[0]
        settings = {"retries": {"max_attempts": 0}, "s3": {"addressing_style": "path"}, **config}
        return boto3.client(
            "s3",
            endpoint_url=endpoint or self.endpoint,
            aws_access_key_id=identity.access_key,
            aws_secret_access_key=identity.secret_key,
            region_name=REGION,
            config=Config(**settings),
        )

    def make_bucket(self, name: str) -> str:
        """Make a bucket that may exist already; returns its name."""
        client = self.client()
        try:
            client.create_bucket(Bucket=name)
        except client.exceptions.BucketAlreadyOwnedByYou:
            pass
        finally:
            client.close()
        return name

    def store(self, name: str, objects: Mapping[str, bytes], **headers: Any) -> str:
        """Make a bucket that may exist already, and put objects into it, each with `headers` as boto3 names them;
        returns the name of the bucket."""
        self.make_bucket(name)
        client = self.client()
        for key, body in objects.items():
            client.put_object(Bucket=name, Key=key, Body=body, **headers)
        client.close()
        return name

    def start(self) -> None:
        directory = Path(tempfile.mkdtemp(prefix="outrider-bucket-"))
        (directory / "identities.json").write_text(_identities_json(self._identities))
        ports = dict(zip(_PORT_FLAGS, free_ports(len(_PORT_FLAGS)), strict=True))
        self.port = ports["s3.port"]
        # SeaweedFS creates these sockets in /tmp whatever its flags say, and leaves them there.
        sockets = [Path(f"/tmp/seaweedfs-{role}-grpc-{ports[f'{role}.port.grpc']}.sock") for role in _ROLES]
        self._directory = directory
        self._child = Child(
            _command(directory, ports),
            log=directory / "log",
            # One volume file for each bucket instead of seven: tests make many small buckets.
            env={**os.environ, "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"},
            cwd=directory,
            scratch=(directory, *sockets),
            # A clean stop takes SeaweedFS up to 25 s, and nobody will read this data again.
            stop_signal=signal.SIGKILL,
        )
        try:
            self._child.wait_until(self._answers, what="SeaweedFS", deadline_s=READY_DEADLINE_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._usual_client is not None:
            self._usual_client.close()
            self._usual_client = None
        if self._child is not None:
            self._child.stop()
            self._child = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answers(self) -> bool:
        client = self.client(connect_timeout=1, read_timeout=2)
        try:
            client.list_buckets()
        except (ClientError, BotoCoreError):
            return False
        finally:
            client.close()
        return True


# SeaweedFS derives a gRPC port that it is not given as port + 10000, and two instances may share that number. So it
# gets every port explicitly.
_ROLES = ("master", "volume", "filer", "s3")
_PORT_FLAGS = tuple(f"{role}.{port}" for role in _ROLES for port in ("port", "port.grpc"))


def _command(directory: Path, ports: dict[str, int]) -> list[str]:
    return [
        str(program("weed")),
        "-logtostderr=true",
        "server",
        f"-dir={directory}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        *(f"-{flag}={port}" for flag, port in ports.items()),
        "-master.telemetry=false",
        "-master.electionTimeout=1s",
        "-master.volumeSizeLimitMB=1024",
        # Volume files grow as they are written, so a high count costs nothing; each bucket takes at least one.
        "-volume.max=4096",
        "-filer",
        f"-filer.localSocket={directory}/filer.sock",
        "-s3",
        f"-s3.config={directory}/identities.json",
        f"-s3.localSocket={directory}/s3.sock",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        # A typo in a bucket's name must be NoSuchBucket, as at S3.
        "-s3.autoCreateBucket=false",
    ]


def _identities_json(identities: tuple[Identity, ...]) -> str:
    return json.dumps(
        {
            "identities": [
                {
                    "name": identity.name,
                    "credentials": [{"accessKey": identity.access_key, "secretKey": identity.secret_key}]
                    if identity.access_key
                    else [],
                    "actions": list(identity.actions),
                }
                for identity in identities
            ]
        }
    )
