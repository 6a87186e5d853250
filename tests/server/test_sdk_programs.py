"""Programs that use the SDK, as users run them: the examples, those of its README, and ones that end early."""

from __future__ import annotations

import json
import os
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import outrider_sdk
from tests.support import forkserver
from tests.support.client_access import HAS_TORCH
from tests.support.fakes import RecordedPlans
from tests.support.forkserver import Server, server_with_aws, shell_command, write_program
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

if not HAS_TORCH:
    pytest.skip("torch is pinned to a release without a wheel for this Python", allow_module_level=True)

from tests.server.test_sdk_announcing import EXIT_FLUSH_S, NAME, NO_PROXY, SAMPLES, URLS, fill, key_of

# The time limit of a separate process on a busy machine.
PATIENT = (
    f"from outrider_sdk import announcing; announcing._LOOKUP_TIMEOUT_S = announcing._EXIT_FLUSH_S = {EXIT_FLUSH_S}"
)
AS_A_PROGRAM = ["-m", "tests.server.sdk_program", str(EXIT_FLUSH_S)]


ROOT = Path(outrider_sdk.__file__).parent.parent.parent


@pytest.fixture(scope="module")
def imported() -> Iterator[Server]:
    """For programs that take less time than their imports."""
    with Server("torch.utils.data", "webdataset") as server:
        yield server


def run(program: list[str], environ: dict[str, str], server: Server | None = None) -> subprocess.CompletedProcess[str]:
    """`server`: it forks `program`, a module of this repository. None: a new interpreter."""
    paths = os.pathsep.join([str(ROOT / "sdk"), os.environ.get("PYTHONPATH", "")])
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "OUTRIDER_"))}
    done = forkserver.run(
        [sys.executable, *program], forked=server is not None, server=server,
        env={**bare, **environ, "PYTHONPATH": paths}, cwd=ROOT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    fill(bucket)
    with Proxy(bucket) as running:
        yield running


@pytest.fixture
def plans(proxy: Proxy) -> RecordedPlans:
    recorded = RecordedPlans()
    proxy.outrider.control.plans = recorded
    return recorded


def test_a_program_that_ends_at_once_has_announced_before(plans: RecordedPlans, proxy: Proxy) -> None:
    program = f"from outrider_sdk.webdataset import announce; next(announce()(['{URLS[0]}']))"
    run(["-c", f"{PATIENT}\n{program}"], {"AWS_ENDPOINT_URL": proxy.endpoint})
    assert plans.urls == URLS[:1]


def test_a_program_whose_loader_is_a_global_ends(proxy: Proxy) -> None:
    """Its generator is closed when the interpreter ends, and reports its first stall only then."""
    program = "from outrider_sdk import StallMeter; batches = iter(StallMeter([1, 2])); print(next(batches))"
    done = run(["-c", f"{PATIENT}; {program}"], {"AWS_ENDPOINT_URL": proxy.endpoint})
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_the_sdk_imports_without_torch_and_webdataset() -> None:
    names = ["outrider_sdk", *(f"outrider_sdk.{path.stem}" for path in (ROOT / "sdk/outrider_sdk").glob("[a-z]*.py"))]
    program = (
        f"import sys; sys.modules.update(torch=None, webdataset=None); import {', '.join(names)}\n"
        "assert list(outrider_sdk.webdataset.announce()(['a'])) == ['a']\n"
        "assert list(outrider_sdk.torch.AnnouncingSampler([1], str)) == [1]\n"
        "assert list(outrider_sdk.StallMeter([1])) == [1]\n"
    )
    done = run(["-c", program], {})
    assert done.stderr.count("\n") == 1, done.stderr
    assert NO_PROXY in done.stderr


def test_the_map_style_example_trains(
    bucket: Bucket, proxy: Proxy, plans: RecordedPlans, imported: Server, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    door = {**bucket.environment(), "AWS_ENDPOINT_URL": proxy.endpoint}
    words = f"--samples s3://{NAME}/samples/ --epochs 2 --workers 2 --batch 8 --step-ms 1 --report {report}".split()
    done = run([*AS_A_PROGRAM, str(ROOT / "examples/map_style_announcing.py"), *words], door, imported)
    assert "epoch 2: 8 steps" in done.stdout
    assert "-bound: " in done.stdout
    digests = {json.loads(line)["digest"] for line in report.read_text().splitlines()}
    assert digests == {sum(zlib.crc32(str(number).encode()) for number in range(SAMPLES)) % 2**32}
    assert sorted(plans.urls) == sorted([key_of(number) for number in range(SAMPLES)] * 2)


def test_the_examples_of_the_readme_run(
    bucket: Bucket, proxy: Proxy, plans: RecordedPlans, imported: Server, tmp_path: Path
) -> None:
    blocks = (ROOT / "sdk/README.md").read_text().split("```python\n")[1:]
    program = "\n".join(block.partition("```")[0] for block in blocks)
    program = program.replace("s3://bucket/train-{000000..001281}.tar", f"s3://{NAME}/train-{{000..011}}.tar")
    program = program.replace("s3://bucket/samples/", f"s3://{NAME}/samples/").replace('("bucket", ', f'("{NAME}", ')
    path = tmp_path / "readme.py"
    path.write_text(program)
    door = {**bucket.environment(), "AWS_ENDPOINT_URL": proxy.endpoint, "OUTRIDER_STATUS_URL": proxy.admin}
    write_program(tmp_path / "aws", shell_command(server_with_aws(), "tests.support.aws"))
    done = run([*AS_A_PROGRAM, str(path)], {**door, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, imported)
    assert "-bound: " in done.stdout
    assert set(plans.urls) >= {*URLS, key_of(0)}
