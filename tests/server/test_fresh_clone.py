"""The two commands at the top of the README, run in a fresh clone with an empty home.

In `make test` the clone borrows this environment's packages, so that nothing is installed. `make soak` installs them,
as a newcomer would, and runs the whole demo.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.child import clean_environment
from tests.support.pages import ROOT, blocks_of
from tests.support.trials import SCALE

# Installing downloads some gigabytes.
DEADLINE_S = 60.0 if SCALE == 1 else 3600.0
COLLECT = ("PYTEST=--collect-only -q tests/unit/s3", "JOBS=0")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The tracked files alone, as they are in the working tree: a clone of a change before its commit."""
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout: the tracked files are not known")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():  # else it is removed by this change
            copy = tmp_path / "clone" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy)
    (tmp_path / "home").mkdir()
    return tmp_path / "clone"


def first_commands() -> list[str]:
    """The first block of the README, without its comments."""
    return [shlex.join(shlex.split(line, comments=True)) for line in next(blocks_of(ROOT / "README.md")).commands]


def make(clone: Path, *words: str) -> str:
    """Output of `make WORDS` in the clone, as a user with an empty home types it."""
    beside = str(Path(sys.executable).parent)
    environ = {
        name: value
        for name, value in clean_environment().items()
        # The `make` and the environment that run this test are not the newcomer's.
        if not name.startswith(("MAKE", "PYTEST", "PYTHON", "VIRTUAL_ENV", "XDG_"))
        and name not in ("MFLAGS", "VENV", "JOBS")
    }
    path = [entry for entry in environ["PATH"].split(os.pathsep) if entry != beside]
    environ |= {"HOME": str(clone.parent / "home"), "PATH": os.pathsep.join(path)}
    done = subprocess.run(
        ["make", *words], cwd=clone, env=environ, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == 0, f"make {words}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def borrow_packages(clone: Path) -> None:
    """A `.venv` as `make install-all` leaves it, with the packages of this one; `outrider` is the clone's own."""
    python = clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    paths = os.pathsep.join((f"{clone}/proxy", f"{clone}/sdk"))
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(paths)} exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    for stamp in ("installed", "installed-all"):
        (clone / ".venv" / stamp).touch()


def test_the_readme_begins_with_the_two_commands_that_do_everything() -> None:
    assert first_commands() == ["make demo", "make test"]


@pytest.mark.skipif(SCALE > 1, reason="`make soak` tries the commands with an environment of their own")
def test_the_first_commands_need_nothing_but_tracked_files(clone: Path) -> None:
    borrow_packages(clone)
    [command] = [line for line in make(clone, "--dry-run", "demo").splitlines() if "tests.bench.demo" in line]
    demo = subprocess.run(
        [*shlex.split(command), "--help"], cwd=clone, capture_output=True, text=True, check=True, timeout=DEADLINE_S
    )
    assert "--short" in demo.stdout
    assert "tests/unit/s3/test_ranges.py::" in make(clone, "test", *COLLECT)


@pytest.mark.skipif(SCALE == 1, reason="installs everything: `make soak TESTS=tests/server/test_fresh_clone.py`")
@pytest.mark.timeout(2 * DEADLINE_S)
def test_the_first_commands_run_on_a_fresh_machine(clone: Path) -> None:
    assert "the same, bit for bit, in all four" in " ".join(make(clone, "demo").split())
    assert "the same, bit for bit, in all three" in " ".join(make(clone, "demo", "DEMO=--real").split())
    assert "tests/unit/s3/test_ranges.py::" in make(clone, "test", *COLLECT)
