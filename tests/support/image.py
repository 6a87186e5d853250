"""The image without Docker: the Dockerfile read and carried out, and builds by buildah."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
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


BUILD_DEADLINE_S = 250.0


@dataclass(frozen=True, slots=True)
class Step:
    """`stage` counts from 0."""

    stage: int
    word: str
    rest: str

    @property
    def argv(self) -> list[str] | None:
        """The words of an instruction in exec form; None: it is in shell form."""
        try:
            found = json.loads(self.rest)
        except ValueError:
            return None
        return found if isinstance(found, list) else None


def steps_of(dockerfile: Path) -> list[Step]:
    lines = [line for line in dockerfile.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    steps, stage = [], -1
    for line in filter(None, (line.strip() for line in joined.splitlines())):
        word, _, rest = line.partition(" ")
        stage += word == "FROM"
        steps.append(Step(stage, word, rest))
    return steps


def context_of(root: Path) -> set[str]:
    """The first-level entries that .dockerignore lets into the build: the project's file excludes all, then names those
    that it lets in."""
    first, *others = [
        line for line in (root / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert first == "*"
    return {line.removeprefix("!") for line in others if line.startswith("!")}


def readable_python() -> str | None:
    """An interpreter of this exact version that the container's user may run; None: there is none.

    Root changes to another user, which cannot read root's home.
    """
    if os.geteuid() != 0:
        return str(Path(sys.executable).resolve())
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = str(Path(sys.executable).resolve())
    found = (own, *(shutil.which(name, path=place) for place in ("/usr/bin", "/usr/local/bin")))
    return next((each for each in found if each is not None and _is_readable_by_all(Path(each).resolve())), None)


def _is_readable_by_all(path: Path) -> bool:
    return all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.parents))


class Built:
    """The results of the steps, below `root` instead of `/`.

    `python` is the base image's interpreter, which its users run. pip is this environment's own.
    """

    def __init__(self, root: Path, context: Path, python: str, *, compiled: bool = False) -> None:
        self._root, self._context = root, context
        self.environment: dict[str, str] = {}
        self.user = 0
        self.entry: list[str] = []
        self.health: list[str] = []
        programs = root / "base"
        programs.mkdir()
        shim = f'#!/bin/sh\n[ "$2" = venv ] && exec {python} "$@"\nexec {sys.executable} "$@"\n'
        (programs / "python").write_text(shim)
        (programs / "python").chmod(0o755)
        self._of_build = {**_bare(), "PATH": f"{programs}:{os.defpath}"}
        if not compiled:
            # pip takes the value for that of `--compile`. A test imports some hundred of 3,500 files.
            self._of_build["PIP_NO_COMPILE"] = "0"

    def moved(self, text: str) -> str:
        """`text` with the image's paths placed below `root`."""
        return re.sub(r"(?<![\w./])/(opt|src|wheels|var)\b", rf"{self._root}/\1", text)

    def take(self, step: Step) -> None:
        """Raises subprocess.CalledProcessError: the step failed."""
        if step.word == "RUN":
            self._run(step)
        elif step.word == "COPY" and not step.rest.startswith("--from="):
            *names, target = step.rest.split()
            for name in names:
                self._copy(name, target)
        elif step.word == "ENV" and step.stage == 1:
            for name, value in (pair.split("=", 1) for pair in step.rest.split()):
                self.environment[name] = self.moved(value).replace("$PATH", os.defpath)
        elif step.word == "USER":
            self.user = int(step.rest.partition(":")[0])
        elif step.word in ("ENTRYPOINT", "CMD"):
            assert step.argv is not None
            self.entry += step.argv
        elif step.word == "HEALTHCHECK":
            self.health = json.loads(step.rest.partition("CMD ")[2])

    def _run(self, step: Step) -> None:
        command = self.moved(step.rest)
        argv = ["/bin/sh", "-c", command] if step.argv is None else [self.moved(word) for word in step.argv]
        if os.geteuid() != 0 and "--owner" in argv:
            argv = ["mkdir", "-p", argv[-1]]
        (self._root / "src").mkdir(exist_ok=True)
        subprocess.run(
            argv, cwd=self._root / "src", env=self._of_build, capture_output=True, text=True, timeout=BUILD_DEADLINE_S,
            check=True,
        )  # fmt: skip

    def _copy(self, name: str, target: str) -> None:
        source = self._context / name
        if source.is_dir():
            shutil.copytree(source, self._root / "src" / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, self._root / "src" / target)


def _bare() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OUTRIDER_", "AWS_"))}
