"""The key of the cluster, from a file that may change while the proxy runs.

A key is changed in three steps, each on all members: the new key becomes the second line, then the first one, then the
old one is removed. At each moment every member accepts what every other one signs with.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from pathlib import Path

from outrider.adapters.process.file_reload import Sleep, follow
from outrider.settings import SettingsError

log = logging.getLogger(__name__)

_BYTES_MIN = 32
_KEYS_MAX = 2
# Two keys of any sensible length.
_FILE_BYTES_MAX = 64 * 2**10


class PeerKey:
    """The keys, those of the file's last right content. `follow` reads it again when it changes.

    Raises:
        SettingsError: there is no such file, or it holds no key.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: tuple[str, ...] = ()
        self._warned = False
        self._read()

    @property
    def accepted(self) -> tuple[str, ...]:
        """The keys that a request may be signed with. The first one signs."""
        return self._keys

    async def follow(self, sleep: Sleep = asyncio.sleep) -> None:
        """Never ends."""
        await follow("peer_key_file", self._read, sleep)

    def _read(self) -> bool:
        try:
            with self._path.expanduser().open("rb") as file:
                content = file.read(_FILE_BYTES_MAX)
                mode = stat.S_IMODE(self._path.expanduser().stat().st_mode)
        except OSError as error:
            raise SettingsError(f"--peer-key-file {self._path}: {error.strerror}") from error
        keys = _keys(content, self._path)
        # No error, as ssh has it: a Secret that Kubernetes mounts is readable by all in the pod, who are one user.
        if mode & stat.S_IROTH and not self._warned:
            self._warned = True
            log.warning("key of the cluster is readable by all users", extra={"file": str(self._path)})
        has_changed, self._keys = keys != self._keys, keys
        return has_changed


def _keys(content: bytes, path: Path) -> tuple[str, ...]:
    """No message shows any of the content."""
    where = f"--peer-key-file {path}"
    lines = [line.strip() for line in content.splitlines() if line.strip()]
    if not 1 <= len(lines) <= _KEYS_MAX:
        raise SettingsError(f"{where}: has {len(lines)} lines; the key of the cluster is one line, or two in a change.")
    if short := [number for number, line in enumerate(lines, 1) if len(line) < _BYTES_MIN]:
        raise SettingsError(
            f"{where}: key {short[0]} is shorter than {_BYTES_MIN} bytes. `openssl rand -base64 48` makes one."
        )
    try:
        return tuple(line.decode() for line in lines)
    except UnicodeDecodeError:
        raise SettingsError(f"{where}: is no text. `openssl rand -base64 48` makes a key.") from None
