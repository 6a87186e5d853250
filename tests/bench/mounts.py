"""The mounts: a bucket as files, by Outrider, by other FUSE clients, and by JuiceFS."""

from __future__ import annotations

import os
from pathlib import Path

from tests.bench.peers import JuiceFS, Mount, Rclone
from tests.bench.targets import outrider_python
from tests.bench.world import NAME
from tests.support.child import program
from tests.support.proxy import serving_environment


class OutriderMount(Mount):
    """`outrider mount` with a proxy of its own: their CPU and memory count together."""

    name, slug, peer = "outrider mount", "outrider-mount", False
    client = "outrider"

    def argv(self) -> list[str | Path]:
        return [
            *(outrider_python(), "-m", "outrider", "mount", "--origin", self.world.simulator.endpoint),
            *("--cache-dir", self.cache, "--cache-size", "2TiB", "--min-free", "0", "--freshness", "ttl:3600"),
            *("--log-level", "warning", "--client", self.client, *self.world.outrider_flags),
            *(f"s3://{NAME}", self.mount),
        ]

    def env(self) -> dict[str, str]:
        return serving_environment(self.world.bucket)


class RcloneMount(Mount, Rclone):
    """As its users start it, without a cache on disk."""

    name, slug = "rclone mount", "rclone-mount"

    @classmethod
    def lacks(cls) -> str | None:
        return Mount.lacks() or Rclone.lacks()

    def argv(self) -> list[str | Path]:
        words = ("--read-only", "--dir-cache-time", "1h", "--config", os.devnull)
        return [program("rclone"), "mount", f"origin:{NAME}", self.mount, *words]


class JuiceFSMount(JuiceFS, Mount):
    name, slug = "JuiceFS mount", "juicefs-mount"

    @classmethod
    def lacks(cls) -> str | None:
        return Mount.lacks() or JuiceFS.lacks()

    def argv(self) -> list[str | Path]:
        return [
            *(program("juicefs"), "mount", self.meta, self.mount, "--no-usage-report", "--backup-meta", "0"),
            *("--cache-dir", self.cache, "--cache-size", "100G", "--free-space-ratio", "0.01"),
            *("--attr-cache", "3600", "--entry-cache", "3600", "--dir-entry-cache", "3600", "--open-cache", "3600"),
            *("--metrics", f"127.0.0.1:{self.admin_port}"),
        ]

    def url(self, key: str) -> str:
        return Mount.url(self, key)

    def populate(self) -> None:
        def write(key: str, body: bytes) -> None:
            path = self.mount / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)

        self.world.each_object(write)
        self.clear()
