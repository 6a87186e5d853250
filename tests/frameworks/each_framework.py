"""Runs the blocks of docs/frameworks.md and of writes.md with the framework that they name, by `outrider run`.

The child knows no address of the bucket but the proxy's. A second run of a block that reads must be served from the
cache.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.frameworks import data
from tests.frameworks.catalogue import NEED_TORCHVISION, REQUIREMENTS, TLS, WRITES, blocks, printed, value
from tests.frameworks.environments import INSTALL_S, commands_of
from tests.support.proxy import Command

if TYPE_CHECKING:
    from tests.support.bucket import Bucket
    from tests.support.pages import Block
    from tests.support.tls import Certificate

RUN_S = 600.0
# LIST pages go to the bucket each time.
LISTS_BYTES = 8000
IN_DIRECTORY = ("bash", "-c", 'cd "$0" && exec "$@"')
FOREIGN = ("AWS_", "S3_", "RCLONE_", "RUNAI_", "OUTRIDER_")


@pytest.fixture(scope="module", autouse=True)
def filled(bucket: Bucket) -> None:
    data.fill(bucket)


@pytest.mark.timeout(INSTALL_S + 6 * RUN_S)
@pytest.mark.parametrize("name", REQUIREMENTS)
def test_the_code_of_the_page_goes_through_the_proxy(
    name: str, bucket: Bucket, certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [each for each in os.environ if each.startswith(FOREIGN)]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PATH", f"{commands_of(name)}{os.pathsep}{commands_of('boto3')}{os.pathsep}{os.environ['PATH']}")
    command = Command(bucket, tmp_path)
    command.environ |= {"OUTRIDER_ORIGIN": bucket.endpoint, "OUTRIDER_REGION": "us-east-1"}
    if name in TLS:
        command.environ |= {"OUTRIDER_TLS_CERT": str(certificate.chain), "OUTRIDER_TLS_KEY": str(certificate.key)}
        command.environ |= dict.fromkeys(("AWS_CA_BUNDLE", "SSL_CERT_FILE"), str(certificate.authority))
    if name in NEED_TORCHVISION:
        command.environ["PYTHONPATH"] = (
            f"{Path(__file__).parent / 'torchvision_on_cpu'}:{command.environ['PYTHONPATH']}"
        )
    for number, block in enumerate(blocks(name)):
        cold = ran(command, block, tmp_path / f"{number}-cold")
        assert cold["reads"] + cold["origin_requests"] > 0, "nothing went through the proxy"
        if prefix := value(block, WRITES):
            client = bucket.client()
            listed = client.list_objects_v2(Bucket=data.NAME, Prefix=prefix)
            client.close()
            assert listed["KeyCount"] > 0, f"nothing was written below {prefix}"
            continue
        warm = ran(command, block, tmp_path / f"{number}-warm")
        from_bucket = max(warm["origin_bytes"], warm["served_bytes"] - warm["cached_bytes"])
        assert from_bucket <= LISTS_BYTES, warm
        assert warm["cached_bytes"] > 2 * from_bucket, warm


def ran(command: Command, block: Block, directory: Path) -> dict[str, Any]:
    """The summary of `outrider run` for one run of the block in a new directory. Its output was as the page says."""
    directory.mkdir()
    file = directory / "block"
    file.write_text(block.text)
    shell: list[str | Path] = ["bash", "-eu", file] if block.language == "sh" else ["python", file]
    with command.start("run", "--summary", "json", "--", *IN_DIRECTORY, directory, *shell) as process:
        out, err = process.communicate(timeout=RUN_S)
    assert process.returncode == 0, f"{block.name}\n{out[-4000:]}\n{err[-8000:]}"
    for line in printed(block):
        assert line in out.splitlines(), f"{block.name}: no line {line!r} in\n{out[-4000:]}\n{err[-4000:]}"
    summary: dict[str, Any] = json.loads(err.splitlines()[-1])
    return summary
