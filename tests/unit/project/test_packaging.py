"""The wheels that a user installs: both are built, complete, and work in an environment of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import outrider
import outrider_sdk

ROOT = Path(__file__).parents[3]
# Only the build's own inputs are copied, so that a build leaves nothing in the tree and finds nothing else there.
OF_BUILD = ("pyproject.toml", "README.md", "LICENSE", "proxy", "sdk")


def output_of(*words: str | Path, cwd: Path) -> str:
    """The output of a command that sees neither this tree nor this session's settings."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OUTRIDER_"))}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environ, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels by distribution, built without a network."""
    tree = tmp_path_factory.mktemp("tree")
    for name in OF_BUILD:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "dist"))
        else:
            shutil.copy(ROOT / name, tree / name)
    out = tmp_path_factory.mktemp("wheels")
    for project in (tree, tree / "sdk"):
        output_of(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, project, cwd=out)
    return {path.name.partition("-")[0]: path for path in out.glob("*.whl")}


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with both wheels, and with this environment's dependencies."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    packages = Path(output_of(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    output_of(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps",
        *wheels.values(), cwd=home,
    )  # fmt: skip
    # The dependencies are linked after the installation, so that pip does not take one of these packages as installed.
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    return home / "bin"


def modules_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder.parent)) for path in folder.rglob("*.py")}


def test_the_wheel_of_the_server_holds_every_module_and_nothing_else(wheels: dict[str, Path]) -> None:
    names = set(zipfile.ZipFile(wheels["outrider"]).namelist())
    expected = modules_of(ROOT / "proxy" / "outrider")
    assert {"outrider/__init__.py", "outrider/cli/__init__.py", "outrider/core/s3/operation.py"} <= expected
    page = {f"outrider/http/admin/page/{name}" for name in ("index.html", "dashboard.css", "dashboard.js")}
    assert expected | page | {"outrider/py.typed"} <= names
    assert {name.partition("/")[0] for name in names} == {"outrider", f"outrider-{outrider.__version__}.dist-info"}


def test_the_wheel_of_the_sdk_holds_every_module_and_needs_nothing(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["outrider_sdk"]) as wheel:
        names = set(wheel.namelist())
        info = f"outrider_sdk-{outrider_sdk.__version__}.dist-info"
        metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
    assert modules_of(ROOT / "sdk" / "outrider_sdk") | {"outrider_sdk/py.typed"} <= names
    assert {name.partition("/")[0] for name in names} == {"outrider_sdk", info}
    assert metadata.get_all("Requires-Dist") is None
    assert metadata["Name"] == "outrider-sdk"


def test_the_installed_command_prints_its_version(installed: Path) -> None:
    assert output_of(installed / "outrider", "--version", cwd=installed) == f"outrider {outrider.__version__}\n"


def test_every_command_is_there_and_its_help_has_examples(installed: Path) -> None:
    printed = output_of(installed / "outrider", "--help", cwd=installed)
    assert all(f" {name} " in printed for name in ("serve", "run", "doctor", "simulate"))
    assert "outrider run -- python train.py" in printed


def test_the_imported_packages_are_the_installed_ones(installed: Path) -> None:
    program = "import outrider, outrider_sdk; print(outrider.__file__); print(outrider_sdk.__file__)"
    for line in output_of(installed / "python", "-c", program, cwd=installed).splitlines():
        assert Path(line).is_relative_to(installed.parent)
