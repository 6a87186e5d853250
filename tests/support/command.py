"""The `outrider` command, started as by a user's shell, and small programs for it to run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.support import forkserver
from tests.support.proxy import serving_environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.bucket import Bucket

DEADLINE_S = 180.0


class Process(forkserver.Process):
    """Ends with its context, even where the test fails before it has ended it."""

    def __exit__(self, *failure: Any) -> None:
        if failure[0] is not None:
            self.kill()
        super().__exit__(*failure)


class Command:
    """`outrider` with the keys of `bucket` and no other AWS variable in its environment; HOME and cache in
    `directory`."""

    def __init__(self, bucket: Bucket, directory: Path) -> None:
        self.cache_dir = directory / "cache"
        config = directory / "outrider.toml"
        config.write_text(f'cache_dir = "{self.cache_dir}"\ncache_size = "256MiB"\nmin_free = "0"\n')
        self.environ = {
            **serving_environment(bucket),
            "HOME": str(directory),
            "OUTRIDER_CONFIG": str(config),
        }

    def start(self, *words: str | Path, stdin: int | None = subprocess.DEVNULL) -> Process:
        argv = [sys.executable, "-m", "outrider", *(str(word) for word in words)]
        return Process(argv, env=self.environ, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        with self.start(*words) as process:
            out, err = process.communicate(timeout=DEADLINE_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def without(self, *names: str) -> None:
        for name in names:
            self.environ.pop(name, None)


def python(program: str, *arguments: str) -> Sequence[str]:
    """The command line that runs a Python program."""
    return [sys.executable, "-c", program, *arguments]
