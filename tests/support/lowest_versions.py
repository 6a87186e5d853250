"""The lower bounds of the proxy's requirements as constraints for pip, each name at its minimum: `make test-lowest`."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

_PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = ("bucket", "kubernetes", "operator", "slurm", "tracing")
"""Those that take a moment to install."""


def lowest_versions() -> list[str]:
    """`name==minimum` for each requirement that has a lower bound."""
    declared = [*_PROJECT["dependencies"]]
    for extra in EXTRAS:
        declared += _PROJECT["optional-dependencies"][extra]
    requirements = (Requirement(line) for line in dict.fromkeys(declared))
    return [
        f"{requirement.name}=={bound.version}"
        for requirement in requirements
        for bound in requirement.specifier
        if bound.operator == ">="
    ]


if __name__ == "__main__":
    print("\n".join(lowest_versions()))
