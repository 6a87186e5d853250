"""Client of Outrider, the S3 caching proxy: its status, plans of coming reads, batches, warm-ups, and the wait of
training.

`outrider_sdk.webdataset.announce` and `outrider_sdk.torch.AnnouncingSampler` are imported from their modules, so that
neither WebDataset nor PyTorch is needed.
"""

from outrider_sdk.aio import AsyncClient
from outrider_sdk.batch import ObjectError
from outrider_sdk.client import Client, ProxyNotFound, ProxyRefused, Status
from outrider_sdk.stall import StallMeter
from outrider_sdk.urls import expand
from outrider_sdk.warming import Warmed

__all__ = [
    "AsyncClient",
    "Client",
    "ObjectError",
    "ProxyNotFound",
    "ProxyRefused",
    "StallMeter",
    "Status",
    "Warmed",
    "expand",
]
__version__ = "0.2.0"
