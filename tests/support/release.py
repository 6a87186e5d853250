"""`make release`: builds the packages and the chart into dist/, checks them, and prints a list to sign off.

It publishes nothing.
The files come from the last commit alone, and have its time: the same commit gives the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import helm_python as helm
import yaml

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
_IMAGE = re.compile(r"registry\.example\.org/outrider:([\w.+-]+)")
# They name the image of the release that they are a part of.
_PAGES = ("README.md", "docs/*.md", "charts/outrider/README.md", "examples/**/*.yaml")


class NotReady(Exception):
    """The release cannot be made. Each line of the text names a reason."""


def versions(root: Path = ROOT) -> dict[str, str]:
    """The version as each place has it."""
    chart = yaml.safe_load((root / "charts/outrider/Chart.yaml").read_text())
    found = {
        name: re.search(r'^__version__ = "(.+)"$', (root / name).read_text(), re.MULTILINE)
        for name in ("proxy/outrider/__init__.py", "sdk/outrider_sdk/__init__.py")
    }
    found["CHANGELOG.md"] = re.search(
        r"^## (\d\S*) - \d{4}-\d\d-\d\d$", (root / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    stated = {name: match[1] if match else "none" for name, match in found.items()}
    stated |= {"charts/outrider/Chart.yaml, version": chart["version"], "appVersion": chart["appVersion"]}
    for pattern in _PAGES:
        for page in sorted(root.glob(pattern)):
            for number, image in enumerate(_IMAGE.findall(page.read_text())):
                stated[f"{page.relative_to(root)}, image {number + 1}"] = image
    return stated


def disagreements(stated: dict[str, str]) -> list[str]:
    """The places whose version is not the package's."""
    own = stated["proxy/outrider/__init__.py"]
    return [f"{place} has {version}, and the package {own}" for place, version in stated.items() if version != own]


def unreleased(changelog: str) -> bool:
    """Whether the changelog has lines that belong to no version."""
    section = re.search(r"^## Unreleased$(.*?)^## ", changelog, re.MULTILINE | re.DOTALL)
    return section is not None and section[1].strip() != ""


def check() -> None:
    """Raises NotReady."""
    reasons = disagreements(versions())
    if unreleased((ROOT / "CHANGELOG.md").read_text()):
        reasons.append("CHANGELOG.md has lines under Unreleased: give them a version")
    changed = _git("status", "--porcelain")
    if changed:
        reasons.append(f"the working tree differs from the last commit:\n{changed}")
    if reasons:
        raise NotReady("\n".join(reasons))


def build() -> list[Path]:
    """Wheels, source distributions and the chart, in `DIST`, which has nothing else. Raises CalledProcessError."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    with tempfile.TemporaryDirectory(prefix="outrider-release-") as directory:
        tree = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "--extract", "--directory", directory], input=tree, check=True)
        environ = {**os.environ, "SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct")}
        for project in (Path(directory), Path(directory, "sdk")):
            argv = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(project)]
            subprocess.run(argv, env=environ, stdout=subprocess.DEVNULL, check=True)
        helm.package(Path(directory, "charts", "outrider"), destination=DIST)
    return sorted(DIST.iterdir())


def main() -> int:
    """`TWINE`: the program that checks what PyPI would refuse."""
    try:
        check()
        files = build()
        packages = [str(file) for file in files if file.suffix != ".tgz"]
        subprocess.run([sys.argv[1], "check", "--strict", *packages], check=True)
    except (NotReady, subprocess.CalledProcessError) as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    print(sign_off(files))
    return 0


def sign_off(files: list[Path]) -> str:
    version = _version()
    lines = [f"\nOutrider {version}, commit {_git('rev-parse', '--short=12', 'HEAD')}\n"]
    lines += [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.stat().st_size:>9,}  {file.name}" for file in files
    ]
    lines += ["", *(f"[ ] {step}" for step in _STEPS)]
    return "\n".join(lines).replace("VERSION", version)


_STEPS = (
    "the gate passed at this commit: .ci/run",
    "make soak, and make audit",
    "the goals hold on a quiet machine: make bench, make bench-ahead, make bench-cluster",
    "CHANGELOG.md has each thing that a user notices, and the day of the release",
    "make image IMAGE=<registry>/outrider:VERSION, and the image is pushed",
    "dist/ is uploaded: both wheels, both source distributions, the chart",
    "git tag vVERSION, and the tag is pushed",
)


def _version() -> str:
    return versions()["proxy/outrider/__init__.py"]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
