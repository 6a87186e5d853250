"""Programs that no wheel brings: `make test-tools` and `make bench-tools` install those that are missing.

It runs before anything is installed, by any Python 3.11.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

# By the name of the program, Debian's package.
TEST = {
    # The dashboard's browser, Prometheus with promtool, and a disk that hangs.
    "bindfs": "bindfs", "chromium": "chromium", "prometheus": "prometheus",
    "ip": "iproute2", "kubectl": "kubernetes-client",
}  # fmt: skip
# nginx from here because the wheel's has no slice module.
BENCH = {"curl": "curl", "nginx": "nginx-light", "s3fs": "s3fs", "wrk": "wrk"}


def missing(programs: dict[str, str]) -> list[str]:
    """The packages of those that are not in PATH, or in Debian's place for programs of root."""
    path = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"
    return [package for program, package in programs.items() if shutil.which(program, path=path) is None]


def install(packages: list[str]) -> bool:
    """False: there is no apt-get, we are not root, or it failed."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return False
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    update = ["apt-get", "update", "--quiet=2"]
    add = ["apt-get", "install", "--quiet=2", "--yes", "--no-install-recommends", *packages]
    return all(subprocess.run(argv, env=environ, check=False).returncode == 0 for argv in (update, add))


def main(kind: str) -> int:
    """Tests skip what is missing; a benchmark cannot do without."""
    absent = missing(TEST if kind == "test" else BENCH)
    if not absent or install(absent):
        return 0
    print(f"not installed: {' '.join(absent)}; the tests that need them are skipped" if kind == "test"
          else f"not installed: {' '.join(absent)}")  # fmt: skip
    return 0 if kind == "test" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
