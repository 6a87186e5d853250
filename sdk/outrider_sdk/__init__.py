"""Client of Outrider, the S3 caching proxy: what it is doing, what will be read next, and how long training waited.

Beside what is here: `outrider_sdk.webdataset.announce` and `outrider_sdk.torch.AnnouncingSampler`.
"""

from outrider_sdk.client import Client, ProxyNotFound, ProxyRefused, Status
from outrider_sdk.stall import StallMeter
from outrider_sdk.urls import expand
from outrider_sdk.warming import Warmed

__all__ = ["Client", "ProxyNotFound", "ProxyRefused", "StallMeter", "Status", "Warmed", "expand"]
__version__ = "0.1.0"
