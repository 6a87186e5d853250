"""Builds the image with buildah, which needs no daemon, and runs commands in it. Needs root.

Where the base image cannot be pulled, Debian's own Python of the same release stands for it (debootstrap).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEADLINE_S = 1200.0
_PACKAGES = "ca-certificates,python-is-python3,python3,python3-pip,python3-venv"
_MIRROR = "http://deb.debian.org/debian"
# The authorities that this machine trusts: those of a company's package index among them.
_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"


def missing() -> str | None:
    """Why nothing can be built here; None: it can."""
    if os.geteuid() != 0:
        return "not root"
    return None if shutil.which("buildah") else "no buildah here: apt-get install buildah"


class NoBase(Exception):
    """There is no base image. The text says why."""


class Buildah:
    """Images and containers in `directory`, apart from those of the machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        config = directory / "storage.conf"
        places = "".join(f'{name} = "{directory}/{name}"\n' for name in ("graphroot", "runroot"))
        config.write_text(f'[storage]\ndriver = "vfs"\n{places}')
        self.environ = {**os.environ, "CONTAINERS_STORAGE_CONF": str(config), "BUILDAH_ISOLATION": "chroot"}

    def call(self, *words: str) -> str:
        """Output of `buildah WORDS`. Raises subprocess.CalledProcessError."""
        done = subprocess.run(
            ["buildah", *words], env=self.environ, capture_output=True, text=True, timeout=DEADLINE_S, check=True
        )
        return done.stdout.strip()

    def bring_base(self, name: str) -> str:
        """Pull an image of Docker Hub, or make its stand-in; returns which of both. Raises NoBase."""
        try:
            self.call("pull", "--quiet", f"docker.io/library/{name}")
        except subprocess.CalledProcessError:
            self._stand_in(name)
            return "stand-in"
        return "pulled"

    def _stand_in(self, name: str) -> None:
        if shutil.which("debootstrap") is None:
            raise NoBase(f"{name} cannot be pulled, and there is no debootstrap to make a stand-in")
        root = self._directory / "base"
        release = name.rpartition("-")[2]
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", release, str(root), _MIRROR],
            capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise NoBase(f"{name} cannot be pulled, and no stand-in made: {done.stdout[-500:]}{done.stderr[-500:]}")
        shutil.copy(_AUTHORITIES, f"{root}{_AUTHORITIES}")
        packed = self._directory / "base.tar"
        subprocess.run(["tar", "--create", "--file", packed, "--directory", root, "."], timeout=DEADLINE_S, check=True)
        container = self.call("from", "scratch")
        self.call("add", "--quiet", container, str(packed), "/")
        self.call("commit", "--quiet", "--rm", container, f"docker.io/library/{name}")

    def config_of(self, image: str) -> Mapping[str, Any]:
        """Entrypoint, Cmd, User and others, as Docker names them."""
        found: Mapping[str, Any] = json.loads(self.call("inspect", "--type", "image", image))["Docker"]["config"]
        return found


def run_argv(container: str, command: list[str], environ: Mapping[str, str]) -> list[str]:
    """The words that run a command in a container, as the user of its image."""
    given = [word for name, value in environ.items() for word in ("--env", f"{name}={value}")]
    return ["buildah", "run", *given, container, "--", *command]
