"""`outrider evict`: drops objects from the cache now."""

from __future__ import annotations

import typer

from outrider.cli import control_client
from outrider.cli.settings_flags import Config
from outrider.core.text import counted, in_words


def evict(
    urls: control_client.Urls = None,
    from_file: control_client.FromFile = None,
    endpoint: control_client.Endpoint = None,
    as_json: control_client.AsJson = False,
    config: Config = None,
) -> None:
    """Drop what the cache has of these objects. What is being read goes when it is released, what is pinned stays.

    \b
    outrider evict s3://bucket/old-run/
    """
    body = control_client.list_of(urls, from_file)
    proxy = control_client.Proxy(endpoint, config)
    key = f"evict/{control_client.name_of(None, body)}"
    proxy.put(key, body)
    told = proxy.get(key)
    if as_json:
        control_client.show_json(told)
        return
    typer.echo(f"evicted {counted(told['blocks'], 'block')}, {in_words(told['bytes'])}")
    if told["in_use_blocks"]:
        typer.echo(f"{counted(told['in_use_blocks'], 'block')} in use: to go when the reads end")
    if told["pinned_blocks"]:
        typer.echo(f"{counted(told['pinned_blocks'], 'block')} pinned, to stay: `outrider unpin` first")
