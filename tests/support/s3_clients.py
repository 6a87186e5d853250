"""The S3 clients that are driven: libraries, each as its users call it, and programs."""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import os
import ssl
import sys
import urllib.request
from typing import Any, ClassVar
from unittest.mock import patch

from tests.support.bucket import REGION
from tests.support.child import program
from tests.support.client_access import DEADLINE_S, HAS_TORCH, MIB, Access, S3Client, run
from tests.support.forkserver import server_with_aws
from tests.support.proxy import s3_client


class Boto3(S3Client):
    """`get_object` and `put_object`: one request an object."""

    name = "boto3"

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self.s3 = s3_client(access.endpoint, access.keys, verify=access.verify)

    def read(self, bucket: str, key: str) -> bytes:
        return bytes(self.s3.get_object(Bucket=bucket, Key=key)["Body"].read())

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        answer = self.s3.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}")
        return bytes(answer["Body"].read())

    def write(self, bucket: str, key: str, body: bytes) -> None:
        self.s3.put_object(Bucket=bucket, Key=key, Body=body)

    def list(self, bucket: str, prefix: str) -> set[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return {entry["Key"] for page in pages for entry in page.get("Contents", ())}

    def delete(self, bucket: str, key: str) -> None:
        self.s3.delete_object(Bucket=bucket, Key=key)

    def close(self) -> None:
        self.s3.close()


class Boto3Transfer(Boto3):
    """The transfer manager: HEAD, parallel ranges with If-Match, multipart above 8 MiB."""

    name = "boto3-transfer"

    def read(self, bucket: str, key: str) -> bytes:
        into = io.BytesIO()
        self.s3.download_fileobj(bucket, key, into)
        return into.getvalue()

    def write(self, bucket: str, key: str, body: bytes) -> None:
        self.s3.upload_fileobj(io.BytesIO(body), bucket, key)


class Presigned(Boto3):
    """URLs signed by boto3, and requested by a client that knows nothing of S3."""

    version: ClassVar[str]

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self.signer = s3_client(access.endpoint, access.keys, verify=access.verify, signature_version=self.version)

    def url(self, act: str, **parameters: str) -> str:
        return str(self.signer.generate_presigned_url(act, Params=parameters, ExpiresIn=600))

    def ask(self, method: str, url: str, body: bytes | None = None, **headers: str) -> bytes:
        request = urllib.request.Request(url, data=body, headers=headers, method=method)
        trusting = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.access.authority))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trusting)
        with opener.open(request, timeout=DEADLINE_S) as answer:
            return bytes(answer.read())

    def read(self, bucket: str, key: str) -> bytes:
        return self.ask("GET", self.url("get_object", Bucket=bucket, Key=key))

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        return self.ask("GET", self.url("get_object", Bucket=bucket, Key=key), Range=f"bytes={start}-{stop - 1}")

    def write(self, bucket: str, key: str, body: bytes) -> None:
        # urllib sends a body without a type as a form, and SigV2 signs the type.
        url = self.url("put_object", Bucket=bucket, Key=key, ContentType="application/x-tar")
        self.ask("PUT", url, body, **{"Content-Type": "application/x-tar"})

    def delete(self, bucket: str, key: str) -> None:
        self.ask("DELETE", self.url("delete_object", Bucket=bucket, Key=key))

    def close(self) -> None:
        self.signer.close()
        super().close()


class PresignedV4(Presigned):
    name = "presigned-v4"
    version = "s3v4"


class PresignedV2(Presigned):
    name = "presigned-v2"
    version = "s3"


class AioBotocore(S3Client):
    name = "aiobotocore"

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self.runner = asyncio.Runner()
        config = importlib.import_module("aiobotocore.config").AioConfig(
            s3={"addressing_style": "path"}, retries={"max_attempts": 0}
        )
        self.context = importlib.import_module("aiobotocore.session").get_session().create_client(
            "s3", endpoint_url=access.endpoint, region_name=REGION, config=config, verify=access.verify,
            aws_access_key_id=access.keys[0], aws_secret_access_key=access.keys[1],
        )  # fmt: skip
        self.s3 = self.runner.run(self.context.__aenter__())

    def read(self, bucket: str, key: str) -> bytes:
        return self._read(Bucket=bucket, Key=key)

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        return self._read(Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}")

    def write(self, bucket: str, key: str, body: bytes) -> None:
        self.runner.run(self.s3.put_object(Bucket=bucket, Key=key, Body=body))

    def list(self, bucket: str, prefix: str) -> set[str]:
        async def keys() -> set[str]:
            pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            return {entry["Key"] async for page in pages for entry in page.get("Contents", ())}

        return self.runner.run(keys())

    def delete(self, bucket: str, key: str) -> None:
        self.runner.run(self.s3.delete_object(Bucket=bucket, Key=key))

    def close(self) -> None:
        self.runner.run(self.context.__aexit__(None, None, None))
        self.runner.close()

    def _read(self, **parameters: str) -> bytes:
        async def body() -> bytes:
            answer = await self.s3.get_object(**parameters)
            async with answer["Body"] as stream:
                return bytes(await stream.read())

        return self.runner.run(body())


class S3Fs(S3Client):
    """fsspec's `s3://`: a HEAD, then ranges of the size of its read-ahead."""

    name = "s3fs"
    needs = ("s3fs",)

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self.fs = importlib.import_module("fsspec").filesystem("s3", skip_instance_cache=True, **s3fs_options(access))

    def read(self, bucket: str, key: str) -> bytes:
        with self.fs.open(f"{bucket}/{key}", "rb") as file:
            return bytes(file.read())

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        with self.fs.open(f"{bucket}/{key}", "rb") as file:
            file.seek(start)
            return bytes(file.read(stop - start))

    def write(self, bucket: str, key: str, body: bytes) -> None:
        with self.fs.open(f"{bucket}/{key}", "wb") as file:
            file.write(body)

    def list(self, bucket: str, prefix: str) -> set[str]:
        return {path.partition("/")[2] for path in self.fs.find(f"{bucket}/{prefix}")}

    def delete(self, bucket: str, key: str) -> None:
        self.fs.rm_file(f"{bucket}/{key}")

    def close(self) -> None:
        type(self.fs).close_session(self.fs.loop, self.fs._s3)


def s3fs_options(access: Access) -> dict[str, Any]:
    """The arguments of `fsspec.open("s3://...", **options)`. Listings are not cached, since other clients write here
    too."""
    return {
        "key": access.keys[0],
        "secret": access.keys[1],
        "endpoint_url": access.endpoint,
        "client_kwargs": {"region_name": REGION, "verify": access.verify},
        "use_listings_cache": False,
    }


class Obstore(S3Client):
    """Rust's object_store."""

    name = "obstore"
    needs = ("obstore",)

    def store(self, bucket: str) -> Any:
        # Obstore has no other way to set a certificate authority.
        with patch.dict(os.environ, self.access.environment()):
            return importlib.import_module("obstore.store").S3Store(
                bucket, endpoint=self.access.endpoint, region=REGION, virtual_hosted_style_request=False,
                access_key_id=self.access.keys[0], secret_access_key=self.access.keys[1],
                client_options={"allow_http": True}, retry_config={"max_retries": 0},
            )  # fmt: skip

    def read(self, bucket: str, key: str) -> bytes:
        return bytes(self.store(bucket).get(key).bytes())

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        return bytes(self.store(bucket).get_range(key, start=start, end=stop))

    def write(self, bucket: str, key: str, body: bytes) -> None:
        self.store(bucket).put(key, body)

    def list(self, bucket: str, prefix: str) -> set[str]:
        return {entry["path"] for batch in self.store(bucket).list(prefix) for entry in batch}

    def delete(self, bucket: str, key: str) -> None:
        self.store(bucket).delete(key)


class Minio(S3Client):
    """minio-py; it uses multipart above 5 MiB when it does not know the length."""

    name = "minio"
    needs = ("minio",)

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        with patch.dict(os.environ, access.environment()):
            self.s3 = importlib.import_module("minio").Minio(
                access.address, access_key=access.keys[0], secret_key=access.keys[1], region=REGION,
                secure=access.scheme == "https",
            )  # fmt: skip

    def read(self, bucket: str, key: str) -> bytes:
        return self._get(bucket, key)

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        return self._get(bucket, key, offset=start, length=stop - start)

    def write(self, bucket: str, key: str, body: bytes) -> None:
        self.s3.put_object(bucket, key, io.BytesIO(body), length=-1, part_size=5 * MIB)

    def list(self, bucket: str, prefix: str) -> set[str]:
        return {entry.object_name for entry in self.s3.list_objects(bucket, prefix=prefix, recursive=True)}

    def delete(self, bucket: str, key: str) -> None:
        self.s3.remove_object(bucket, key)

    def close(self) -> None:
        self.s3._http.clear()

    def _get(self, bucket: str, key: str, **extent: int) -> bytes:
        answer = self.s3.get_object(bucket, key, **extent)
        try:
            return bytes(answer.read())
        finally:
            answer.close()
            answer.release_conn()


class SmartOpen(Boto3):
    """smart_open streams with boto3: `bytes=0-` and onwards; it neither lists nor deletes, boto3 does."""

    name = "smart_open"
    needs = ("smart_open",)

    def open(self, bucket: str, key: str, mode: str) -> Any:
        parameters = {"client": self.s3}
        return importlib.import_module("smart_open").open(
            f"s3://{bucket}/{key}", mode, transport_params=parameters, compression="disable"
        )

    def read(self, bucket: str, key: str) -> bytes:
        with self.open(bucket, key, "rb") as file:
            return bytes(file.read())

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        with self.open(bucket, key, "rb") as file:
            file.seek(start)
            return bytes(file.read(stop - start))

    def write(self, bucket: str, key: str, body: bytes) -> None:
        with self.open(bucket, key, "wb") as file:
            file.write(body)


class PyArrow(S3Client):
    """The C++ SDK: HEAD and odd ranges, uploads in aws-chunked with a CRC64NVME trailer also over http."""

    name = "pyarrow"
    needs = ("pyarrow.fs",)

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        arrow = importlib.import_module("pyarrow.fs")
        self.selector = arrow.FileSelector
        self.fs = arrow.S3FileSystem(
            access_key=access.keys[0], secret_key=access.keys[1], region=REGION,
            scheme=access.scheme, endpoint_override=access.address,
            tls_ca_file_path=access.authority and str(access.authority),
        )  # fmt: skip

    def read(self, bucket: str, key: str) -> bytes:
        with self.fs.open_input_stream(f"{bucket}/{key}", compression=None) as file:
            return bytes(file.read())

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        with self.fs.open_input_file(f"{bucket}/{key}") as file:
            return bytes(file.read_at(stop - start, start))

    def write(self, bucket: str, key: str, body: bytes) -> None:
        with self.fs.open_output_stream(f"{bucket}/{key}", compression=None) as file:
            file.write(body)

    def list(self, bucket: str, prefix: str) -> set[str]:
        found = self.fs.get_file_info(self.selector(f"{bucket}/{prefix}", recursive=True))
        return {info.path.partition("/")[2] for info in found if info.is_file}

    def delete(self, bucket: str, key: str) -> None:
        self.fs.delete_file(f"{bucket}/{key}")


class TorchConnector(S3Client):
    """The CRT: parallel ranges of 8 MiB with no HEAD before them."""

    name = "s3torchconnector"
    needs = ("s3torchconnector",)
    # The client requests the first 8 MiB at once. It recognises an empty object by an ActualObjectSize, which SeaweedFS
    # does not send.
    cannot = frozenset({"read_empty"})

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        # The CRT has no other way to get keys, and reads its environment once for all clients of a process.
        profiles = access.scratch / "profiles"
        profiles.write_text(
            f"[access]\naws_access_key_id = {access.keys[0]}\naws_secret_access_key = {access.keys[1]}\n", "utf-8"
        )
        config = importlib.import_module("s3torchconnector").S3ClientConfig(
            force_path_style=True, max_attempts=1, profile="access"
        )
        self.s3 = importlib.import_module("s3torchconnector._s3client").S3Client(
            REGION, endpoint=access.endpoint, s3client_config=config
        )
        with patch.dict(os.environ, {**access.environment(), "AWS_SHARED_CREDENTIALS_FILE": str(profiles)}):
            assert self.s3._client is not None

    def read(self, bucket: str, key: str) -> bytes:
        return bytes(self.s3.get_object(bucket, key).read())

    def read_range(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        ranged = importlib.import_module("s3torchconnector").S3ReaderConstructor.range_based()
        reader = self.s3.get_object(bucket, key, reader_constructor=ranged)
        reader.seek(start)
        return bytes(reader.read(stop - start))

    def write(self, bucket: str, key: str, body: bytes) -> None:
        with self.s3.put_object(bucket, key) as writer:
            writer.write(body)

    def list(self, bucket: str, prefix: str) -> set[str]:
        return {entry.key for page in self.s3.list_objects(bucket, prefix) for entry in page.object_info}

    def delete(self, bucket: str, key: str) -> None:
        self.s3.delete_object(bucket, key)


LIBRARIES: tuple[type[S3Client], ...] = (
    Boto3, Boto3Transfer, PresignedV4, PresignedV2, AioBotocore, S3Fs, Obstore, Minio, SmartOpen, PyArrow,
    *((TorchConnector,) if HAS_TORCH else ()),
)  # fmt: skip


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
            path = self.access.scratch / "curl-upload"
            path.write_bytes(body)
            argv += ["--upload-file", str(path)]
        return run(self.access, *argv)


class S5Cmd(S3Client):
    """`cat`, as WebDataset's users pipe it; a new process each time."""

    name = "s5cmd"
    runs = ("s5cmd",)
    cannot = frozenset({"read_range"})

    def read(self, bucket: str, key: str) -> bytes:
        return self.command("cat", f"s3://{bucket}/{key}")

    def write(self, bucket: str, key: str, body: bytes) -> None:
        path = self.access.scratch / "s5cmd-upload"
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
        return run(self.access, program("s5cmd"), "--retry-count", "0", act, *raw, *words)


class S5CmdCopy(S5Cmd):
    """`cp` both ways: parallel ranges and multipart."""

    name = "s5cmd-cp"

    def read(self, bucket: str, key: str) -> bytes:
        path = self.access.scratch / "s5cmd-download"
        self.command("cp", "--raw", "--part-size", "5", "--concurrency", "4", f"s3://{bucket}/{key}", str(path))
        return path.read_bytes()

    def write(self, bucket: str, key: str, body: bytes) -> None:
        path = self.access.scratch / "s5cmd-upload"
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
        path = self.access.scratch / "rclone-upload"
        path.write_bytes(body)
        # Without this flag, a second object of the same size might be taken for the first and not be sent.
        self.command("copyto", "--ignore-times", str(path), self.remote(bucket, key))

    def list(self, bucket: str, prefix: str) -> set[str]:
        lines = self.command("lsf", "--recursive", "--files-only", self.remote(bucket, prefix)).decode().splitlines()
        return {prefix + line for line in lines}

    def delete(self, bucket: str, key: str) -> None:
        self.command("deletefile", self.remote(bucket, key))

    def remote(self, bucket: str, key: str) -> str:
        return f':s3,provider=Other,env_auth=true,region={REGION},endpoint="{self.access.endpoint}":{bucket}/{key}'

    def command(self, act: str, *words: str) -> bytes:
        flags = ("--retries", "1", "--low-level-retries", "1", "--s3-upload-cutoff", "8M", "--s3-chunk-size", "5M")
        return run(self.access, program("rclone"), act, *flags, *words)


class AwsCp(S3Client):
    """`aws s3 cp` of files, and to stdout as WebDataset's users pipe it: parallel ranges and parts above 8 MiB."""

    name = "aws-cp"
    runs = ("aws",)
    cannot = frozenset({"read_range"})

    def read(self, bucket: str, key: str) -> bytes:
        return self.command("s3", "cp", f"s3://{bucket}/{key}", "-")

    def write(self, bucket: str, key: str, body: bytes) -> None:
        path = self.access.scratch / "aws-upload"
        path.write_bytes(body)
        self.command("s3", "cp", "--only-show-errors", str(path), f"s3://{bucket}/{key}")

    def list(self, bucket: str, prefix: str) -> set[str]:
        # `s3 ls` pads names with blanks: its output does not distinguish them from names that begin with a blank.
        answer = self.command("s3api", "list-objects-v2", "--bucket", bucket, "--prefix", prefix, "--output", "json")
        return {entry["Key"] for entry in json.loads(answer).get("Contents", ())}

    def delete(self, bucket: str, key: str) -> None:
        self.command("s3", "rm", "--only-show-errors", f"s3://{bucket}/{key}")

    def command(self, *words: str) -> bytes:
        return aws(self.access, *words)


def aws(access: Access, *words: str) -> bytes:
    return run(access, sys.executable, "-m", "tests.support.aws", *words, server=server_with_aws())


TOOLS: tuple[type[S3Client], ...] = (Curl, S5Cmd, S5CmdCopy, Rclone, AwsCp)
