"""The contract of small state files: replaced whole, readable for this user only, and refused when damaged."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import xxhash

from outrider.adapters import sealed_file
from outrider.adapters.sealed_file import BadFile, DigestFormat, JsonFormat, LinesFormat
from outrider.core.ahead.dataset import saved_datasets

OLD, NEW = b"old content", b"new content"
JSON, DIGEST, LINES = JsonFormat("pins", 1), DigestFormat(), LinesFormat("outrider index", 1)
PAYLOAD = [["bucket", "key"], {"key": "\udcff"}]
# For each format: its `decode`, the bytes of a file, and the payload in it.
FILES: dict[str, tuple[Callable[[bytes], Any], bytes, Any]] = {
    "json": (JSON.decode, JSON.encode(PAYLOAD), PAYLOAD),
    "digest": (DIGEST.decode, DIGEST.encode(NEW), NEW),
    "lines": (lambda raw: list(LINES.decode(raw)), b"".join(LINES.encode([b"[1]\n", b"[2]\n"])), [b"[1]\n", b"[2]"]),
}
SEALED = ["digest", "lines"]  # the formats with a checksum


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


Put = Callable[[Path, bytes], Any]


@pytest.fixture(params=["write", "durable", "replacing"])
def put(request: pytest.FixtureRequest, threads: ThreadPoolExecutor) -> Put:
    """One of the ways to replace a file; awaited by the test."""

    async def by_replacing(path: Path, content: bytes) -> None:
        with sealed_file.replacing(path) as file:
            file.write(content)

    async def by_writing(path: Path, content: bytes) -> None:
        pieces = iter([content[:3], content[3:]])
        await sealed_file.write(path, pieces, threads, durable=request.param == "durable")

    return by_replacing if request.param == "replacing" else by_writing


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# -- writing ------------------------------------------------------------------------------------------------------


async def test_a_file_is_replaced_and_no_temporary_file_stays(path: Path, put: Put) -> None:
    for content in (OLD, NEW):
        await put(path, content)
        assert sealed_file.read(path, 100) == content
        assert names_in(path.parent) == ["state"]


@pytest.mark.parametrize("umask", [0o000, 0o077])
async def test_only_this_user_can_read_the_file(path: Path, put: Put, umask: int) -> None:
    before = os.umask(umask)
    try:
        await put(path, NEW)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_the_content_is_written_under_another_name_until_it_is_complete(
    path: Path, threads: ThreadPoolExecutor
) -> None:
    path.write_bytes(OLD)

    def pieces() -> Iterator[bytes]:
        yield NEW
        assert path.read_bytes() == OLD
        assert names_in(path.parent) == ["state", "state.part"]

    await sealed_file.write(path, pieces(), threads)
    assert path.read_bytes() == NEW


def replace_torn(path: Path) -> None:
    with sealed_file.replacing(path) as file:
        file.write(NEW[:4])
        raise OSError("no space left")


async def test_a_torn_write_leaves_the_older_content(path: Path, threads: ThreadPoolExecutor) -> None:
    path.write_bytes(OLD)

    def torn() -> Iterator[bytes]:
        yield NEW[:4]
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        await sealed_file.write(path, torn(), threads)
    with pytest.raises(OSError, match="no space left"):
        replace_torn(path)
    assert path.read_bytes() == OLD


async def test_a_leftover_temporary_file_is_replaced_by_a_new_one(path: Path, put: Put) -> None:
    """The temporary file may have another mode, or belong to another user: it is not written into."""
    part = sealed_file.part_of(path)
    part.write_bytes(b"something much longer than the content")
    part.chmod(0o644)
    with part.open("rb") as planted:
        await put(path, NEW)
        assert planted.read() == b"something much longer than the content"
    assert path.read_bytes() == NEW
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_link_in_its_place_is_replaced_and_its_target_left_alone(path: Path, put: Put) -> None:
    target = path.parent / "target"
    target.write_bytes(OLD)
    for link in (path, sealed_file.part_of(path)):
        link.symlink_to(target)
        await put(path, NEW)
        assert not path.is_symlink()
        assert (path.read_bytes(), target.read_bytes()) == (NEW, OLD)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_directory_that_cannot_be_written_is_an_error(path: Path, put: Put) -> None:
    path.write_bytes(OLD)
    path.parent.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            await put(path, NEW)
    finally:
        path.parent.chmod(0o700)
    assert path.read_bytes() == OLD


async def test_a_file_system_that_is_read_only_is_an_error(
    path: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(OLD)

    def refused(*_: Any, **__: Any) -> int:
        raise OSError(errno.EROFS, "read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        with pytest.raises(OSError, match="read-only"):
            await put(path, NEW)
    assert path.read_bytes() == OLD


async def test_a_directory_that_is_gone_is_an_error(path: Path, put: Put) -> None:
    with pytest.raises(FileNotFoundError):
        await put(path.parent / "gone" / "state", NEW)


@pytest.mark.parametrize("durable", [False, True])
async def test_a_durable_write_syncs_file_and_directory(
    path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    done: list[tuple[str, str, bytes]] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(fd: int) -> None:
        synced = Path(os.readlink(f"/proc/self/fd/{fd}"))
        done.append(("fsync", synced.name, synced.read_bytes() if synced.is_file() else b""))
        fsync(fd)

    def note_rename(source: Any, target: Any) -> None:
        done.append(("rename", Path(target).name, b""))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_rename)
    await sealed_file.write(path, [NEW], threads, durable=durable)
    rename = ("rename", "state", b"")
    assert done == ([("fsync", "state.part", NEW), rename, ("fsync", path.parent.name, b"")] if durable else [rename])


# -- reading ------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_no_bad_file(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sealed_file.read(path, 100)


def test_a_file_that_is_too_long_is_not_read(path: Path) -> None:
    path.write_bytes(NEW)
    assert sealed_file.read(path, len(NEW)) == NEW
    with pytest.raises(BadFile, match="too long"):
        sealed_file.read(path, len(NEW) - 1)


@pytest.mark.parametrize("name", FILES)
def test_a_format_reads_what_it_wrote(name: str) -> None:
    decode, raw, payload = FILES[name]
    assert decode(raw) == payload


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_anywhere_is_refused(name: str) -> None:
    decode, raw, _ = FILES[name]
    ends_with_newline = name == "lines"
    for length in range(len(raw) - ends_with_newline):
        with pytest.raises(BadFile):
            decode(raw[:length])


@pytest.mark.parametrize("name", SEALED)
def test_a_file_with_any_byte_altered_is_refused(name: str) -> None:
    decode, raw, _ = FILES[name]
    for at in range(len(raw) - (name == "lines")):
        with pytest.raises(BadFile):
            decode(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("raw", [b"", b"\n", b"\xff", b"[]", b"{}", b"null\n", b"[" * 100_000])
def test_a_file_of_another_kind_is_refused(name: str, raw: bytes) -> None:
    with pytest.raises(BadFile):
        FILES[name][0](raw)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("other", FILES)
def test_a_file_of_another_format_is_refused(name: str, other: str) -> None:
    if name != other:
        with pytest.raises(BadFile):
            FILES[name][0](FILES[other][1])


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_file_of_another_version_is_refused(version: Any) -> None:
    with pytest.raises(BadFile, match="another format"):
        JSON.decode(json.dumps({"format": version, "pins": []}).encode())
    with pytest.raises(BadFile, match="another format"):
        list(LINES.decode(b"".join(LinesFormat("outrider index", version).encode([b"[1]\n"]))))


@pytest.mark.parametrize("entries", [None, {}, "pins", 1])
def test_a_document_without_its_list_is_refused(entries: Any) -> None:
    for document in ({"format": 1, "pins": entries}, {"format": 1, "warmups": []}):
        with pytest.raises(BadFile, match="no list of pins"):
            JSON.decode(json.dumps(document).encode())


# -- files of older releases --------------------------------------------------------------------------------------


def test_the_bytes_of_each_format_are_those_that_older_releases_wrote() -> None:
    assert FILES["json"][1] == b'{"format": 1, "pins": [["bucket", "key"], {"key": "\\udcff"}]}'
    assert FILES["digest"][1] == xxhash.xxh3_128_digest(NEW) + NEW
    body = b'{"outrider index":1}\n[1]\n[2]\n'
    assert FILES["lines"][1] == body + b'{"xxh3":"%s"}\n' % xxhash.xxh3_64(body).hexdigest().encode()
    assert saved_datasets.packed([])[:1] == b"x", "zlib's, with a version of its own within"
