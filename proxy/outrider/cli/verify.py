"""`outrider verify`: reads the blocks in the cache and compares their checksums."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import track

from outrider.adapters.disk import block_io
from outrider.adapters.disk.block_dir import BlockDir, UnusableCacheDir
from outrider.adapters.disk.disk import open_all
from outrider.cli import control_client
from outrider.cli.load_settings import load
from outrider.cli.settings_flags import Config, Flags, with_settings
from outrider.core.cache.block_file import BadBlock
from outrider.core.text import counted, in_words


@with_settings("cache_dir")
def verify(
    urls: control_client.Urls = None,
    from_file: control_client.FromFile = None,
    *,
    flags: Flags,
    endpoint: control_client.Endpoint = None,
    as_json: control_client.AsJson = False,
    config: Config = None,
) -> None:
    """Verify the checksums of all blocks in the cache, or of those of these objects.

    Bad blocks are dropped and listed, and the exit status is 1. So it is if there are no blocks of these objects.

    Without a running proxy, or with --cache-dir, the command reads the cache directory itself.

    \b
    outrider verify
    outrider verify s3://bucket/train/
    outrider verify --cache-dir /data/cache
    """
    body = control_client.list_of(urls, from_file)
    report: dict[str, Any] | None = None
    if flags["cache_dir"] is None:
        proxy = control_client.ControlClient(endpoint, config)
        if endpoint is not None or body or proxy.is_listening():
            report = _by_proxy(proxy, body)
    elif body:
        typer.echo("outrider: --cache-dir verifies all that lies there: give no URL.", err=True)
        raise typer.Exit(2)
    if report is None:
        settings = load(flags, config)
        report = _offline([directory.expanduser() for directory in settings.cache_dir], quiet=as_json)
    if body and not report["blocks"]["wanted"]:
        control_client.nothing_matches(report, as_json)
    if as_json:
        control_client.show_json(report)
    elif verified := report["blocks"]["verified"]:
        size, bad = in_words(report["bytes"]["verified"]), report["blocks"]["bad"]
        typer.echo(f"verified {counted(verified, 'block')}, {size}: {bad or 'none'} bad")
    else:
        typer.echo("nothing to verify: there is no block in the cache")
    for block in report["bad"]:
        typer.echo(f"outrider: {block['object']} block {block['block']}: {block['error']}; dropped", err=True)
    raise typer.Exit(0 if report["state"] == "done" else 1)


def _by_proxy(proxy: control_client.ControlClient, body: bytes) -> dict[str, Any]:
    key = f"verify/{control_client.name_of('cli' if not body else None, body)}"
    proxy.put(key, body)
    return control_client.followed(proxy, key)


def _offline(directories: Sequence[Path], *, quiet: bool) -> dict[str, Any]:
    """Verify `directories` in this process. No proxy may use them at the same time."""
    found = [directory for directory in directories if (directory / "outrider-cache").exists()]
    if not found:
        where = ", ".join(map(str, directories))
        control_client.failed(f"no Outrider answers, and there is no cache in {where}: give --endpoint or --cache-dir.")
    try:
        opened = open_all(found)
    except UnusableCacheDir as error:
        control_client.failed(f"{error} Its proxy verifies it: give --endpoint.")
    try:
        return _verified(opened, quiet)
    finally:
        for directory in opened:
            directory.close()


def _verified(directories: Sequence[BlockDir], quiet: bool) -> dict[str, Any]:
    paths = [found.path for directory in directories for found in directory.found()]
    bad: list[dict[str, object]] = []
    size = 0
    console = Console(stderr=True)
    for path in track(paths, "verify", console=console, transient=True, disable=quiet or not console.is_terminal):
        try:
            size += _payload_bytes(path)
        except OSError as error:
            bad.append({"object": str(path), "block": "?", "error": f"not readable: {error.strerror}"})
        except BadBlock as error:
            bad.append({**_name_of(path), "error": str(error)})
            path.unlink(missing_ok=True)
    if bad:
        # The snapshot lists blocks that are gone. Without it the next start scans the directory.
        for directory in directories:
            directory.snapshot.unlink(missing_ok=True)
    return {
        "state": "failed" if bad else "done",
        "blocks": {"wanted": len(paths), "verified": len(paths), "bad": len(bad)},
        "bytes": {"verified": size}, "bad": bad,
    }  # fmt: skip


def _payload_bytes(path: Path) -> int:
    """The length of the payload, after its checksum was verified. Raises BadBlock, OSError."""
    meta = block_io.read_meta(path)
    fd, _ = block_io.open_block(path, meta.key, True, keep_pages=False)
    os.close(fd)
    return meta.extent.length


def _name_of(path: Path) -> dict[str, object]:
    """The object and the block number in the header, if it can still be read."""
    try:
        meta = block_io.read_meta(path)
    except (BadBlock, OSError):
        return {"object": str(path), "block": "?"}
    return {"object": str(meta.version.ref), "block": meta.index}
