"""`outrider unpin`: ends a pin."""

from __future__ import annotations

import typer

from outrider.cli import control_client
from outrider.cli.settings_flags import Config
from outrider.core.text import in_words


def unpin(
    urls: control_client.Urls = None,
    from_file: control_client.FromFile = None,
    name: control_client.Name = None,
    endpoint: control_client.Endpoint = None,
    as_json: control_client.AsJson = False,
    config: Config = None,
) -> None:
    """End a pin, given by its list or its name. Its objects stay on disk until room is needed.

    \b
    outrider unpin s3://bucket/eval/
    outrider unpin --name hot
    """
    # Only a name that the user gave is shown: one that was made from a list means nothing to the user.
    which = f"called {name}" if name else "of this list"
    key = f"pin/{control_client.name_of(name, control_client.list_of(urls, from_file))}"
    proxy = control_client.ControlClient(endpoint, config)
    report = proxy.get(key, missing=f"there is no pin {which}; `outrider pin` shows the pins")
    proxy.delete(key)
    if as_json:
        control_client.show_json(report)
    else:
        reserved = report["reserved_bytes"]
        freed = f": {in_words(reserved)} are no longer reserved" if reserved else ""
        typer.echo(f"unpinned {report['name']}{freed}")
