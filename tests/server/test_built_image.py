"""The image, built of the Dockerfile by a real builder, and run: `make soak TESTS=tests/server/test_built_image.py`.

tests/server/test_image.py takes the Dockerfile's steps without a builder, in `make test`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider import __version__
from tests.support.bucket import REGION, Bucket
from tests.support.child import Child, free_ports, scratch_directory
from tests.support.image import Buildah, NoBase, missing, run_argv, steps_of
from tests.support.proxy import s3_client
from tests.support.trials import SCALE

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
IMAGE = "localhost/outrider:built"
BODY = bytes(range(251)) * 50_000
DEADLINE_S = 120.0

pytestmark = [
    pytest.mark.skipif(SCALE == 1, reason="builds an image: `make soak TESTS=tests/server/test_built_image.py`"),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="module")
def buildah() -> Iterator[Buildah]:
    """With the image."""
    [base] = {step.rest.split()[0] for step in steps_of(ROOT / "Dockerfile") if step.word == "FROM"}
    with scratch_directory("outrider-buildah-") as directory:
        builder = Buildah(directory)
        try:
            print("base:", builder.bring_base(base))
        except NoBase as error:
            pytest.skip(str(error))
        subprocess.run(
            ["make", "image", "BUILDER=buildah", f"IMAGE={IMAGE}"], cwd=ROOT, env=builder.environ, check=True
        )
        yield builder


@pytest.fixture
def container(buildah: Buildah) -> Iterator[str]:
    name = buildah.call("from", "--pull-never", IMAGE)
    yield name
    buildah.call("rm", name)


def test_the_image_prints_its_version_as_its_own_user(buildah: Buildah, container: str) -> None:
    config = buildah.config_of(IMAGE)
    assert (config["User"], config["StopSignal"]) == ("65532:65532", "SIGTERM")
    assert [*config["Entrypoint"], *config["Cmd"]] == ["outrider", "serve"]
    assert buildah.call("run", container, "--", *config["Entrypoint"], "--version") == f"outrider {__version__}"
    assert buildah.call("run", container, "--", "python", "-c", "import os; print(os.getuid())") == "65532"


def test_the_image_serves_and_its_health_check_passes(
    buildah: Buildah, container: str, bucket: Bucket, tmp_path: Path
) -> None:
    bucket.store("built", {"object": BODY})
    config = buildah.config_of(IMAGE)
    listen, admin = (f"127.0.0.1:{port}" for port in free_ports(2))
    environ = {
        **bucket.environment(), "OUTRIDER_ORIGIN": bucket.endpoint, "OUTRIDER_REGION": REGION,
        "OUTRIDER_LISTEN": listen, "OUTRIDER_ADMIN": admin, "OUTRIDER_MIN_FREE": "0",
    }  # fmt: skip
    kind, *health = config["Healthcheck"]["Test"]
    assert kind == "CMD"

    def healthy() -> bool:
        argv = run_argv(container, health, {"OUTRIDER_ADMIN": admin})
        return subprocess.run(argv, env=buildah.environ, capture_output=True, check=False).returncode == 0

    argv = run_argv(container, [*config["Entrypoint"], *config["Cmd"]], environ)
    server = Child(argv, log=tmp_path / "log", env=buildah.environ, cwd=tmp_path)
    try:
        server.wait_until(healthy, what="the image", deadline_s=DEADLINE_S)
        reader = s3_client(f"http://{listen}")
        for _ in range(2):
            assert reader.get_object(Bucket="built", Key="object")["Body"].read() == BODY
        reader.close()
    finally:
        server.stop()
