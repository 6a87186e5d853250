"""A virtual environment for each framework, kept in `.venv-frameworks/` of the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.frameworks.catalogue import REQUIREMENTS
from tests.support.pages import ROOT

PLACE = ROOT / ".venv-frameworks"
INSTALL_S = 1800.0


def commands_of(name: str) -> Path:
    """The directory with the `python` that has the framework. An environment is made anew where its requirements, or
    Python, changed.

    Raises:
        AssertionError: pip failed; the message ends with its output.
    """
    requirements = REQUIREMENTS[name]
    if requirements is None:
        return Path(sys.executable).parent
    environment, asked = PLACE / name, "\n".join([sys.version, *requirements])
    done = environment / "installed"
    if not done.exists() or done.read_text() != asked:
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=INSTALL_S)
        pip: list[str | Path] = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements]
        installed = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=INSTALL_S)
        assert installed.returncode == 0, f"pip install {' '.join(requirements)}:\n{installed.stderr}"
        done.write_text(asked)
    return environment / "bin"
