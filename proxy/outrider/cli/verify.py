"""`outrider verify`: read what is in the cache and compare its checksums."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import track

from outrider.adapters.disk import block_dir
from outrider.adapters.disk.block_dir import BlockDir, UnusableCacheDir
from outrider.cli import control_client, environment, options
from outrider.core.cache.block_file import BadBlock
from outrider.core.text import counted, in_words


def verify(
    urls: control_client.Urls = None,
    from_file: control_client.FromFile = None,
    cache_dir: options.CacheDir = None,
    endpoint: control_client.Endpoint = None,
    as_json: control_client.AsJson = False,
    config: options.Config = None,
) -> None:
    """Verify all blocks of the cache, or those of these objects; where no proxy runs, those of the cache directory.

    Bad ones are dropped and listed, and it exits with 1. With --cache-dir no proxy is asked.

    \b
    outrider verify
    outrider verify s3://bucket/train/
    outrider verify --cache-dir /data/cache
    """
    body = control_client.list_of(urls, from_file)
    told: dict[str, Any] | None = None
    if cache_dir is None:
        proxy = control_client.Proxy(endpoint, config)
        if endpoint is not None or body or proxy.is_there():
            told = _asked(proxy, body)
    elif body:
        typer.echo("outrider: --cache-dir verifies all that lies there: give no URL.", err=True)
        raise typer.Exit(2)
    if told is None:
        settings = environment.load({"cache_dir": cache_dir}, config, {})
        told = _offline(settings.cache_dir.expanduser(), quiet=as_json)
    if as_json:
        control_client.show_json(told)
    else:
        typer.echo(f"verified {counted(told['blocks']['verified'], 'block')}, {in_words(told['bytes']['verified'])}: "
                   f"{told['blocks']['bad']} bad")  # fmt: skip
    for one in told["bad"]:
        typer.echo(f"outrider: {one['object']} block {one['block']}: {one['error']}; dropped", err=True)
    raise typer.Exit(0 if told["state"] == "done" else 1)


def _asked(proxy: control_client.Proxy, body: bytes) -> dict[str, Any]:
    key = f"verify/{control_client.name_of('cli' if not body else None, body)}"
    proxy.put(key, body)
    return control_client.followed(proxy, key)


def _offline(directory: Path, *, quiet: bool) -> dict[str, Any]:
    """No proxy may use it meanwhile."""
    if not (directory / "outrider-cache").exists():
        control_client.failed(
            f"no Outrider answers, and there is no cache in {directory}: give --endpoint or --cache-dir."
        )
    try:
        opened = BlockDir.open(directory)
    except UnusableCacheDir as error:
        control_client.failed(f"{error} Its proxy verifies it: give --endpoint.")
    try:
        return _verified(opened, quiet)
    finally:
        opened.close()


def _verified(directory: BlockDir, quiet: bool) -> dict[str, Any]:
    paths = [found.path for found in directory.walk()]
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
        # It tells of blocks that are gone; without it the next start looks for itself.
        directory.snapshot.unlink(missing_ok=True)
    return {
        "state": "failed" if bad else "done",
        "blocks": {"wanted": len(paths), "verified": len(paths), "bad": len(bad)},
        "bytes": {"verified": size}, "bad": bad,
    }  # fmt: skip


def _payload_bytes(path: Path) -> int:
    """How many there are, all of them good. Raises BadBlock, OSError."""
    meta = block_dir.read_meta(path)
    fd, _ = block_dir.open_block(path, meta.key, True, keep_pages=False)
    os.close(fd)
    return meta.extent.length


def _name_of(path: Path) -> dict[str, object]:
    """Which block it was to be, if its header still tells."""
    try:
        meta = block_dir.read_meta(path)
    except (BadBlock, OSError):
        return {"object": str(path), "block": "?"}
    return {"object": str(meta.version.ref), "block": meta.index}
