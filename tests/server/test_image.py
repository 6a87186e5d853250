"""The container image: its Dockerfile is linted, and its steps are run without a container engine."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from packaging.requirements import Requirement

from outrider.cli.demo.bucket import OBJECT_BYTES
from tests.support.bucket import REGION, Bucket
from tests.support.chart import CHART
from tests.support.child import Child, free_ports, program, scratch_directory
from tests.support.image import Built, context_of, readable_python, steps_of
from tests.support.proxy import s3_client

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
STEPS = steps_of(ROOT / "Dockerfile")
BODY = (bytes(range(251)) * 50_000)[: 12 * 2**20]
DEADLINE_S = 60.0


def of(word: str, stage: int = 1) -> list[str]:
    return [step.rest for step in STEPS if (step.word, step.stage) == (word, stage)]


def test_hadolint_finds_nothing_wrong() -> None:
    done = subprocess.run(
        [program("hadolint"), "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_base_is_of_one_release_and_the_same_in_both_stages() -> None:
    build, final = of("FROM", 0), of("FROM", 1)
    assert build == [f"{final[0]} AS build"]
    name, _, tag = final[0].partition(":")
    assert name == "python"
    release, _, flavour = tag.partition("-slim-")
    assert len(release.split(".")) == 3, "a release with its patch level"
    assert flavour, "and the distribution's"


def test_the_image_runs_as_an_unprivileged_user_and_stops_by_the_proxys_signal() -> None:
    [user] = of("USER")
    assert [int(part) for part in user.split(":")] == [65532, 65532]
    assert of("STOPSIGNAL") == ["SIGTERM"]
    # Exec form: a shell in between would keep the signal to itself.
    for word in ("ENTRYPOINT", "CMD"):
        [step] = [step for step in STEPS if step.word == word]
        assert step.argv is not None
    ports = {step.rest for step in STEPS if step.word == "EXPOSE"}
    assert ports == {"9480 9481"}


def test_the_build_copies_exactly_the_files_of_its_context() -> None:
    copied = {
        name
        for step in STEPS
        if step.word == "COPY" and not step.rest.startswith("--from=")
        for name in step.rest.split()[:-1]
    }
    assert copied == context_of(ROOT)
    assert all((ROOT / name).exists() for name in copied)


def test_the_packages_that_build_the_wheel_are_locked_too() -> None:
    lock = (ROOT / "requirements-build.lock").read_text()
    pinned = {line.split("==")[0]: line.split("==")[1].split()[0] for line in lock.splitlines() if "==" in line}
    assert lock.count("--hash=sha256:") >= len(pinned)
    assert "://" not in lock, "no index of one machine"
    for declared in tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]:
        requirement = Requirement(declared)
        assert pinned[requirement.name] in requirement.specifier, "run make lock"


def test_the_charts_user_and_cache_are_those_of_the_image() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert of("USER") == [f"{values['runAsUser']}:{values['runAsUser']}"]
    assert of("VOLUME") == ["/var/cache/outrider"]


# -- built ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def image() -> Iterator[tuple[Built, Path]]:
    """The result of the Dockerfile's steps, and its directory."""
    python = readable_python()
    if python is None:
        pytest.skip("no interpreter of this version that another user may run")
    with scratch_directory("outrider-image-") as directory:
        directory.chmod(0o755)
        made = Built(directory, ROOT, python)
        try:
            for step in STEPS:
                made.take(step)
        except subprocess.CalledProcessError as error:
            if "connection broken by" in error.stderr:
                pytest.skip("no package index is reachable")
            raise AssertionError(error.stdout + error.stderr) from error
        yield made, directory


def test_the_demo_needs_nothing_but_the_wheel_and_an_s3_server(image: tuple[Built, Path], tmp_path: Path) -> None:
    """Its start compiles what it imports. The user of the next test could not: all of it is root's."""
    _, root = image
    argv: list[str | Path] = [root / "opt" / "outrider" / "bin" / "outrider", "demo", "--objects", "2", "--json"]
    environ = {"PATH": f"{program('weed').parent}:{os.defpath}", "HOME": str(tmp_path), "OUTRIDER_PEERS": "ignored"}
    done = subprocess.run(
        argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "outrider: writing 2 objects\n" in done.stderr
    direct, cold, warm = json.loads(done.stdout)
    assert direct["bucket_bytes"] >= 2 * OBJECT_BYTES
    assert cold["bucket_bytes"] >= 2 * OBJECT_BYTES
    # A verification may ask for checksums.
    assert warm["bucket_bytes"] < OBJECT_BYTES


def test_the_built_image_serves_an_object_as_a_user_that_writes_only_to_the_cache(
    bucket: Bucket, image: tuple[Built, Path], tmp_path: Path
) -> None:
    container, root = image
    bucket.store("image", {"object": BODY})
    listen, admin = (f"127.0.0.1:{port}" for port in free_ports(2))
    environ = {
        **container.environment,
        **bucket.environment(),
        "OUTRIDER_ORIGIN": bucket.endpoint,
        "OUTRIDER_REGION": REGION,
        "OUTRIDER_LISTEN": listen,
        "OUTRIDER_ADMIN": admin,
        "OUTRIDER_CACHE_SIZE": "256MiB",
        "OUTRIDER_MIN_FREE": "0",
    }
    user = container.user if os.geteuid() == 0 else None
    before = written_by(container.user, root)
    server = Child(["env", *container.entry], log=tmp_path / "log", env=environ, cwd=root, user=user)
    try:
        server.wait_until(lambda: health(container, environ, user, root) == 0, what="the image", deadline_s=DEADLINE_S)
        reader = s3_client(f"http://{listen}")
        for cache in ("MISS", "HIT"):
            reply = reader.get_object(Bucket="image", Key="object")
            assert reply["Body"].read() == BODY
            assert reply["ResponseMetadata"]["HTTPHeaders"]["x-cache"] == cache
            server.wait_until(lambda: fills(admin) == 0, what="an idle proxy", deadline_s=DEADLINE_S)
        reader.close()
    finally:
        status = server.stop()
    assert status == 0, server.log_tail()
    assert [json.loads(line)["level"] for line in server.log.read_text().splitlines()].count("error") == 0
    if user is not None:
        written = written_by(user, root) - before
        assert written
        assert {path.relative_to(root).parts[:3] for path in written} == {("var", "cache", "outrider")}


def health(container: Built, environ: dict[str, str], user: int | None, cwd: Path) -> int:
    groups = None if user is None else ()
    done = subprocess.run(
        ["env", *container.health], env=environ, cwd=cwd, user=user, group=user, extra_groups=groups,
        capture_output=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    return done.returncode


def fills(admin: str) -> int:
    with urllib.request.urlopen(f"http://{admin}/status", timeout=DEADLINE_S) as answer:
        found: int = json.load(answer)["fills"]
    return found


def written_by(user: int, root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.lstat().st_uid == user and path.is_file()}
