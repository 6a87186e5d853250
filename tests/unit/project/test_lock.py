"""The lock file of the container image is complete, hashed, and satisfies this project's requirements."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[3]
LOCK = (ROOT / "requirements.lock").read_text()
# `name==version ; marker \`, and then its hashes, each on a line of its own.
ENTRIES = re.findall(r"^([a-z0-9][^\s=]*)==(\S+)(.*?)((?:\\\n    --hash=sha256:[0-9a-f]{64} ?)+)$", LOCK, re.MULTILINE)
PINNED = {canonicalize_name(name): Version(version) for name, version, _, _ in ENTRIES}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# The image knows each setting of the chart, and each source of members that a chart may name.
EXTRAS = PROJECT["optional-dependencies"]
DECLARED = [*PROJECT["dependencies"], *EXTRAS["kubernetes"], *EXTRAS["operator"], *EXTRAS["tracing"]]


def test_every_line_is_a_pin_with_its_hashes() -> None:
    pins = [line for line in LOCK.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(pins) == len(ENTRIES) == len(PINNED) >= len(DECLARED)
    assert "://" not in LOCK, "no index of one machine"


@pytest.mark.parametrize("declared", DECLARED)
def test_the_lock_satisfies_the_projects_requirements(declared: str) -> None:
    requirement = Requirement(declared)
    assert PINNED[canonicalize_name(requirement.name)] in requirement.specifier, "run make lock"


def test_nothing_but_the_server_is_locked() -> None:
    assert not PINNED.keys() & {"boto3", "pytest", "hypothesis", "torch", "webdataset", "mypy", "matplotlib"}
