"""Client of Outrider, the S3 caching proxy: what it is doing, and objects warmed before they are read."""

from outrider_sdk.client import Client, ProxyNotFound, Status
from outrider_sdk.urls import expand
from outrider_sdk.warming import Warmed

__all__ = ["Client", "ProxyNotFound", "Status", "Warmed", "expand"]
__version__ = "0.1.0"
