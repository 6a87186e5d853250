"""The programs in examples/, as users run them: from the bucket, through a proxy, and under `outrider run`."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.child import clean_environment
from tests.support.client_access import HAS_TORCH
from tests.support.forkserver import Process, Server
from tests.support.proxy import DEADLINE_S, Command, Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

EXAMPLES = Path(__file__).parents[2] / "examples"
NAME = "examples"
OBJECTS = {f"plain/{number}": bytes([number]) * (number * 100_000 + 1) for number in range(4)}
SHARDS, SAMPLES = 3, 8


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    with closing(bucket.client()) as client:
        for key, body in OBJECTS.items():
            client.put_object(Bucket=NAME, Key=key, Body=body)


@pytest.fixture(scope="module")
def imported() -> Iterator[Server]:
    """For runs that take less time than their imports."""
    # The first step of an optimizer imports `torch._dynamo`, for two seconds.
    with Server("boto3", *(("torch._dynamo", "webdataset", "PIL.Image") if HAS_TORCH else ())) as server:
        yield server


def run(environ: dict[str, str], *words: str, server: Server) -> str:
    with Process(
        [sys.executable, *words], server=server, env={**clean_environment(), **environ},
        cwd=EXAMPLES.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, out + err
    return str(out)


DIGEST = hashlib.sha256(b"".join(OBJECTS.values())).hexdigest()
SIZE = sum(map(len, OBJECTS.values()))


def test_plain_boto3_reads_the_same_through_a_proxy(bucket: Bucket, imported: Server) -> None:
    words, keys = ("-m", "examples.read_with_boto3", f"s3://{NAME}/plain/"), bucket.environment()
    direct = run({**keys, "AWS_ENDPOINT_URL": bucket.endpoint}, *words, "--epochs", "2", server=imported)
    assert direct.count("(4 no cache)") == 2
    with Proxy(bucket) as proxy:
        environ = {**keys, "AWS_ENDPOINT_URL": proxy.endpoint}
        cold = run(environ, *words, "--epochs", "1", server=imported)
        # A read that comes before the bytes are on disk is a miss, too.
        proxy.settle()
        warm = run(environ, *words, "--epochs", "1", server=imported)
    assert "(4 MISS)" in cold
    assert "(4 HIT)" in warm
    for line in (*direct.splitlines(), cold.strip(), warm.strip()):
        assert f"4 objects, {SIZE} bytes" in line
        assert line.endswith(DIGEST)


def test_the_same_program_runs_under_outrider_run(bucket: Bucket, tmp_path: Path) -> None:
    command = Command(bucket, tmp_path)
    command.environ["AWS_ENDPOINT_URL"] = bucket.endpoint
    # As the example's docstring says.
    [words] = [
        line.split()
        for line in (EXAMPLES / "read_with_boto3.py").read_text().splitlines()
        if line.strip().startswith("outrider run")
    ]
    program, *others = words
    assert program == "outrider"
    meant = {"python": sys.executable, "s3://bucket/prefix/": f"s3://{NAME}/plain/"}
    at = [str(EXAMPLES.parent / word) if word.startswith("examples/") else meant.get(word, word) for word in others]
    # The second run finds in the cache directory all that the first has read.
    for found in ("(4 MISS)", "(4 HIT)"):
        done = command.run(*at)
        assert done.returncode == 0, done.stderr
        assert found in done.stdout
        assert done.stdout.count(DIGEST) == 1
        assert "4 reads" in done.stderr


@pytest.mark.skipif(not HAS_TORCH, reason="the pinned torch has no wheel for newer Pythons")
def test_webdataset_trains_on_the_same_samples_through_a_proxy(
    bucket: Bucket, tmp_path: Path, imported: Server
) -> None:
    """This run opens shards by boto3; `make demo` opens them by s5cmd."""
    with closing(bucket.client()) as client:
        for number in range(SHARDS):
            client.put_object(Bucket=NAME, Key=f"train-{number:06}.tar", Body=shard(number))
    words = (
        *("-m", "examples.train_webdataset", "--opener", "boto3", "--workers", "1", "--batch", "8"),
        *("--shards", f"s3://{NAME}/train-{{000000..{SHARDS - 1:06}}}.tar", "--epochs", "2", "--step-ms", "0"),
    )
    keys = bucket.environment()
    with Proxy(bucket) as proxy, ThreadPoolExecutor() as pool:
        for endpoint, name in ((bucket.endpoint, "direct"), (proxy.endpoint, "through")):
            environ = {**keys, "AWS_ENDPOINT_URL": endpoint}
            pool.submit(run, environ, *words, "--report", str(tmp_path / name), server=imported)
        pool.shutdown()
        proxy.settle()
        # Each shard came from the bucket once, in the first epoch.
        served = proxy.metric("outrider_served_bytes_total")
        assert served == 2 * proxy.metric("outrider_origin_bytes_total") > 0
    reports = [
        json.loads(line) for name in ("direct", "through") for line in (tmp_path / name).read_text().splitlines()
    ]
    assert [report["samples"] for report in reports] == [SHARDS * SAMPLES] * 4
    assert len({report["digest"] for report in reports}) == 1


@pytest.mark.skipif(not HAS_TORCH, reason="the pinned torch has no wheel for newer Pythons")
def test_a_resnet_learns_and_its_losses_are_the_same_from_disk_from_the_bucket_and_through_a_proxy(
    bucket: Bucket, tmp_path: Path, imported: Server
) -> None:
    script = ("-m", "examples.train_resnet")
    run({}, *script, "--make", str(tmp_path / "shards"), "--count", "2", "--samples", "32", server=imported)
    with closing(bucket.client()) as client:
        for path in (tmp_path / "shards").iterdir():
            client.put_object(Bucket=NAME, Key=f"resnet/{path.name}", Body=path.read_bytes())
    keys, template = bucket.environment(), "train-{000000..000001}.tar"

    def trained(name: str, endpoint: str | None) -> list[list[str]]:
        shards = f"{tmp_path}/shards/{template}" if endpoint is None else f"s3://{NAME}/resnet/{template}"
        environ = {} if endpoint is None else {**keys, "AWS_ENDPOINT_URL": endpoint}
        words = ("--shards", shards, "--batch", "8", "--report", str(tmp_path / name))
        run(environ, *script, *words, server=imported)
        return [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]

    with Proxy(bucket) as proxy, ThreadPoolExecutor() as pool:
        places = {"disk": None, "bucket": bucket.endpoint, "proxy": proxy.endpoint}
        disk, direct, through = pool.map(trained, places.keys(), places.values())
        proxy.settle()
        served = proxy.metric("outrider_served_bytes_total")
        assert served == 2 * proxy.metric("outrider_origin_bytes_total") > 0
    assert disk == direct == through
    first, second = ([float.fromhex(loss) for loss in losses] for losses in disk)
    assert len(first) == len(second) == 8
    assert sum(second) < 0.8 * sum(first)


def shard(number: int) -> bytes:
    """A tar of samples, each a JPEG and its class."""
    from PIL import Image

    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as tar:
        for sample in range(number * SAMPLES, (number + 1) * SAMPLES):
            image = io.BytesIO()
            Image.new("RGB", (64, 64), (sample, sample, 0)).save(image, "JPEG")
            for name, body in (("jpg", image.getvalue()), ("cls", b"%d" % sample)):
                member = tarfile.TarInfo(f"{sample:06}.{name}")
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))
    return into.getvalue()
