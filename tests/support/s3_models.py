"""For a fork server: what botocore knows of S3, read once for all children.

It is 10 MB of JSON in 1,300 directories, half of the CPU of a command: each session reads it anew.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import botocore.session


def read_once(session: Any) -> None:
    """All sessions of this kind share what this one reads."""
    loader = session.get_component("data_loader")
    loaders, files = type(loader), type(loader.file_loader)
    file, list_services = cache(loader.file_loader.load_file), loaders.list_available_services
    services: dict[tuple[str, ...], list[str]] = {}

    def services_of(loader: Any, type_name: str) -> list[str]:
        key = (type_name, *loader._potential_locations())
        if key not in services:
            services[key] = list_services(loader, type_name)
        return services[key]

    loaders.list_available_services = services_of
    files.load_file = lambda _, path: file(path)
    session.create_client("s3", "us-east-1", aws_access_key_id="any", aws_secret_access_key="any")


read_once(botocore.session.get_session())
