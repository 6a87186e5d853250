"""Targets of the Makefile, and the commands that they would run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("has_torch", "installs_all"), [("1", True), ("0", False)])
@pytest.mark.parametrize("target", ["demo", "demo-short"])
def test_the_demo_installs_what_its_job_needs(target: str, has_torch: str, installs_all: bool, tmp_path: Path) -> None:
    """Without torch, on a newer Python, its job is emulated."""
    words = ["make", "--dry-run", target, f"HAS_TORCH={has_torch}", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"{tmp_path / 'venv'}/bin/python -m tests.bench.demo" in done.stdout
    assert (".[bucket,dev]" in done.stdout, "clients" in done.stdout) == (not installs_all, installs_all)
