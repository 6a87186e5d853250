"""Real S3 clients that are commands: each call is a new process with new connections."""

from __future__ import annotations

import json
import sys

from tests.support.bucket import REGION
from tests.support.child import program
from tests.support.door import Door, S3Client, run
from tests.support.forkserver import server_with_aws
from tests.support.libraries import Presigned


class Curl(Presigned):
    """curl with presigned URLs. The URL does not sign the range."""

    name = "curl"
    runs = ("curl",)
    version = "s3v4"

    def ask(self, method: str, url: str, body: bytes | None = None, **headers: str) -> bytes:
        argv = ["curl", "--silent", "--show-error", "--fail", "--globoff", "--request", method, url]
        for name, value in headers.items():
            argv += ["--header", f"{name}: {value}"]
        if body is not None:
            path = self.door.scratch / "curl-upload"
            path.write_bytes(body)
            argv += ["--upload-file", str(path)]
        return run(self.door, *argv)


class S5Cmd(S3Client):
    """`cat`, as WebDataset's users pipe it; a new process each time."""

    name = "s5cmd"
    runs = ("s5cmd",)
    cannot = frozenset({"read_range"})

    def read(self, bucket: str, key: str) -> bytes:
        return self.command("cat", f"s3://{bucket}/{key}")

    def write(self, bucket: str, key: str, body: bytes) -> None:
        path = self.door.scratch / "s5cmd-upload"
        path.write_bytes(body)
        self.command("cp", str(path), f"s3://{bucket}/{key}")

    def list(self, bucket: str, prefix: str) -> set[str]:
        lines = self.command("ls", "--show-fullpath", f"s3://{bucket}/{prefix}*").decode().splitlines()
        return {line.removeprefix(f"s3://{bucket}/") for line in lines}

    def delete(self, bucket: str, key: str) -> None:
        self.command("rm", f"s3://{bucket}/{key}")

    def command(self, act: str, *words: str) -> bytes:
        # An error must show in the test, not be retried.
        raw = ["--raw"] if act in {"cat", "rm"} else []
        return run(self.door, program("s5cmd"), "--retry-count", "0", act, *raw, *words)


class S5CmdCopy(S5Cmd):
    """`cp` both ways: parallel ranges and multipart."""

    name = "s5cmd-cp"

    def read(self, bucket: str, key: str) -> bytes:
        path = self.door.scratch / "s5cmd-download"
        self.command("cp", "--raw", "--part-size", "5", "--concurrency", "4", f"s3://{bucket}/{key}", str(path))
        return path.read_bytes()

    def write(self, bucket: str, key: str, body: bytes) -> None:
        path = self.door.scratch / "s5cmd-upload"
        path.write_bytes(body)
        self.command("cp", "--part-size", "5", str(path), f"s3://{bucket}/{key}")


class Rclone(S3Client):
    """Go's SDK v2: `x-id` in the query, UNSIGNED-PAYLOAD, an mtime among the metadata."""

    name = "rclone"
    runs = ("rclone",)

    def read(self, bucket: str, key: str) -> bytes:
        return self.command("cat", self.remote(bucket, key))

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        return self.command("cat", "--offset", str(start), "--count", str(stop - start), self.remote(bucket, key))

    def write(self, bucket: str, key: str, body: bytes) -> None:
        path = self.door.scratch / "rclone-upload"
        path.write_bytes(body)
        # Without this flag, a second object of the same size might be taken for the first and not be sent.
        self.command("copyto", "--ignore-times", str(path), self.remote(bucket, key))

    def list(self, bucket: str, prefix: str) -> set[str]:
        lines = self.command("lsf", "--recursive", "--files-only", self.remote(bucket, prefix)).decode().splitlines()
        return {prefix + line for line in lines}

    def delete(self, bucket: str, key: str) -> None:
        self.command("deletefile", self.remote(bucket, key))

    def remote(self, bucket: str, key: str) -> str:
        return f':s3,provider=Other,env_auth=true,region={REGION},endpoint="{self.door.endpoint}":{bucket}/{key}'

    def command(self, act: str, *words: str) -> bytes:
        flags = ("--retries", "1", "--low-level-retries", "1", "--s3-upload-cutoff", "8M", "--s3-chunk-size", "5M")
        return run(self.door, program("rclone"), act, *flags, *words)


class AwsCp(S3Client):
    """`aws s3 cp` of files, and to stdout as WebDataset's users pipe it: parallel ranges and parts above 8 MiB."""

    name = "aws-cp"
    runs = ("aws",)
    cannot = frozenset({"read_range"})

    def read(self, bucket: str, key: str) -> bytes:
        return self.command("s3", "cp", f"s3://{bucket}/{key}", "-")

    def write(self, bucket: str, key: str, body: bytes) -> None:
        path = self.door.scratch / "aws-upload"
        path.write_bytes(body)
        self.command("s3", "cp", "--only-show-errors", str(path), f"s3://{bucket}/{key}")

    def list(self, bucket: str, prefix: str) -> set[str]:
        # `s3 ls` pads names with blanks: its output does not distinguish them from names that begin with a blank.
        answer = self.command("s3api", "list-objects-v2", "--bucket", bucket, "--prefix", prefix, "--output", "json")
        return {entry["Key"] for entry in json.loads(answer).get("Contents", ())}

    def delete(self, bucket: str, key: str) -> None:
        self.command("s3", "rm", "--only-show-errors", f"s3://{bucket}/{key}")

    def command(self, *words: str) -> bytes:
        return aws(self.door, *words)


def aws(door: Door, *words: str) -> bytes:
    return run(door, sys.executable, "-m", "tests.support.aws", *words, server=server_with_aws())


TOOLS: tuple[type[S3Client], ...] = (Curl, S5Cmd, S5CmdCopy, Rclone, AwsCp)
