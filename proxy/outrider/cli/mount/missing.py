"""Says which part of FUSE is missing on this machine, and what to do."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_DEVICE = Path("/dev/fuse")
_HELPERS = ("fusermount3", "fusermount")
# Source: capabilities(7).
_CAP_SYS_ADMIN = 21
_IN_CONTAINER = (
    "In a container: `docker run --device /dev/fuse --cap-add SYS_ADMIN`, in Kubernetes `privileged: true` in the "
    "container's securityContext, or a device plug-in for /dev/fuse."
)


class CannotMount(Exception):
    """The mount is not possible here. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class MountFacts:
    """A machine as FUSE finds it. `device`: the error of an attempt to open /dev/fuse; 0: it can be opened.
    `helper`: the program that mounts and unmounts for users; None: not installed. `may_mount`: this process may mount
    by itself. `may_gain`: a program with the set-user-ID bit has its owner's rights."""

    device: int
    helper: str | None
    may_mount: bool
    may_gain: bool
    root: bool


def facts() -> MountFacts:
    try:
        os.close(os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC))
        device = 0
    except OSError as error:
        device = error.errno or errno.EIO
    status = dict(
        line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if line.count(":\t") == 1
    )
    return MountFacts(
        device=device,
        helper=next(filter(None, map(shutil.which, _HELPERS)), None),
        may_mount=bool(int(status.get("CapEff", "0"), 16) >> _CAP_SYS_ADMIN & 1),
        may_gain=status.get("NoNewPrivs", "0").strip() == "0",
        root=os.geteuid() == 0,
    )


def complaint(found: MountFacts) -> str | None:
    """The first thing that is missing; None: nothing is."""
    if found.device in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
        return f"there is no /dev/fuse. On a machine of your own: `modprobe fuse`. {_IN_CONTAINER}"
    if found.device:
        return f"/dev/fuse cannot be opened ({os.strerror(found.device)}): this pod is unprivileged. {_IN_CONTAINER}"
    if found.helper is None:
        return "there is no fusermount3, which mounts and unmounts: `apt install fuse3` (or dnf, apk)."
    if found.may_mount:
        return None
    if found.root:
        return f"root may not mount here: this pod is unprivileged, without CAP_SYS_ADMIN. {_IN_CONTAINER}"
    if not found.may_gain:
        return (
            "fusermount3 gains no rights here (no_new_privs): set `allowPrivilegeEscalation: true` in the container's "
            "securityContext, or mount in another container of the pod."
        )
    return None


def complaint_about(directory: Path) -> str | None:
    """The reason why nothing can be mounted at `directory`; None: it can.

    A FUSE mount whose client has died is none: see `mounting.is_dead`.
    """
    try:
        if directory.is_mount():
            return (
                f"{directory} is a mount already: `fusermount3 -u {directory}` unmounts it, or name another directory."
            )
        if not directory.is_dir():
            there = directory.exists()
            return f"{directory} is no directory." if there else f"{directory} does not exist: `mkdir -p` it."
        if any(directory.iterdir()):
            return f"{directory} is not empty: its files would be hidden. Name an empty directory."
    except OSError as error:
        return f"{directory} cannot be read: {error.strerror}. Name a directory of your own."
    return None
