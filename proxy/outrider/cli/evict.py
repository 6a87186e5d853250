"""`outrider evict`: drop objects from the cache now."""

from __future__ import annotations

import typer

from outrider.cli import options, steering
from outrider.core.insight.bottleneck import counted, in_words


def evict(
    urls: steering.Urls = None,
    from_file: steering.FromFile = None,
    endpoint: steering.Endpoint = None,
    as_json: steering.AsJson = False,
    config: options.Config = None,
) -> None:
    """Drop what the cache has of these objects. What is being read goes when it is released, what is pinned stays.

    \b
    outrider evict s3://bucket/old-run/
    """
    body = steering.list_of(urls, from_file)
    proxy = steering.Proxy(endpoint, config)
    key = f"evict/{steering.name_of(None, body)}"
    proxy.put(key, body)
    told = proxy.get(key)
    if as_json:
        steering.show_json(told)
        return
    typer.echo(f"evicted {counted(told['blocks'], 'block')}, {in_words(told['bytes'])}")
    if told["in_use_blocks"]:
        typer.echo(f"{counted(told['in_use_blocks'], 'block')} in use: to go when the reads end")
    if told["pinned_blocks"]:
        typer.echo(f"{counted(told['pinned_blocks'], 'block')} pinned, to stay: `outrider unpin` first")
