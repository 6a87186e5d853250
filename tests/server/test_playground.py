"""`make playground`: it leaves an S3 server behind, and ends all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.child import clean_environment
from tests.support.pages import ROOT
from tests.support.playground import ENVIRONMENT
from tests.support.proxy import Process

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 60.0


def playground(word: str, directory: Path) -> str:
    """Its output, once no process has the pipe open any more."""
    with Process(
        [sys.executable, "-m", "tests.support.playground", word], cwd=directory,
        env={**clean_environment(), "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=None if word == "stop" else subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        printed, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    return str(printed)


def test_a_pipe_behind_the_playground_ends_while_its_server_goes_on(tmp_path: Path) -> None:
    try:
        assert str(ENVIRONMENT) in playground("start", tmp_path)
        written = (tmp_path / ENVIRONMENT).read_text()
        assert "export OUTRIDER_ORIGIN=" in written
    finally:
        said = playground("stop", tmp_path)
    assert not list(tmp_path.iterdir())
    # `make` cannot change the shell that has sourced the file: it prints the line that does.
    shell = f"{written}{said}env"
    left = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True, env={"PATH": os.defpath})
    assert not [line for line in left.stdout.splitlines() if line.startswith(("AWS_", "OUTRIDER_"))]
    assert playground("stop", tmp_path) == ""
