"""`outrider pin`: fetches objects into the cache, and keeps them there."""

from __future__ import annotations

from outrider.cli import control_client
from outrider.cli.settings_flags import Config


def pin(
    urls: control_client.Urls = None,
    from_file: control_client.FromFile = None,
    wait: control_client.Wait = True,
    name: control_client.Name = None,
    endpoint: control_client.Endpoint = None,
    as_json: control_client.AsJson = False,
    config: Config = None,
) -> None:
    """Reserve room in the cache for objects, fetch them, and never evict them; without a list, show the pins.

    A pin that does not fit beside the other pins is refused, with the numbers. Pins outlive a restart.

    `outrider unpin` with the same list, or with --name, ends one.

    \b
    outrider pin s3://bucket/eval/
    outrider pin 's3://bucket/train-{000000..000099}.tar' --name hot
    """
    body = control_client.list_of(urls, from_file)
    proxy = control_client.ControlClient(endpoint, config)
    if not body and not name:
        control_client.show_all(proxy.get("status.json")["pins"], "pin", as_json)
        return
    name = control_client.name_of(name, body)
    ended_by = f"outrider unpin --name {name}"
    control_client.carry_out(proxy, f"pin/{name}", body, wait=wait, as_json=as_json, ended_by=ended_by)
