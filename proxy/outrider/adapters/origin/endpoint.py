"""The endpoint of an origin: its URL, the region to sign for, and the forward proxy on the way to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from outrider.adapters.origin import aws_config
from outrider.adapters.origin.forward_proxy import ForwardProxy, forward_proxy_to
from outrider.core.model import Headers
from outrider.ports import OriginRequest

DEFAULT_REGION = "us-east-1"
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_REGION = re.compile(r"[a-z0-9]{2,15}(?:-[a-z0-9]{1,15}){0,5}", re.ASCII)
_AWS_ENDPOINT = re.compile(
    r"(?P<kind>https?://s3(?:-fips)?(?:\.dualstack)?)(?:[.-][a-z0-9-]+)?\.(?P<suffix>amazonaws\.(?:com\.cn|com|eu))",
    re.ASCII,
)
# The domains of AWS by the beginnings of their regions' names. Source: botocore's partitions.json.
_SUFFIXES = {
    "cn-": "amazonaws.com.cn", "eusc-": "amazonaws.eu", "us-iso-": "c2s.ic.gov", "us-isob-": "sc2s.sgov.gov",
    "eu-isoe-": "cloud.adc-e.uk", "us-isof-": "csp.hci.ic.gov",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A URL, the region that requests to it are signed for, and the forward proxy on the way there."""

    url: str
    region: str
    proxy: ForwardProxy
    # Computed once: each request needs them.
    base: str = field(init=False, compare=False)
    host: str = field(init=False, compare=False)
    key: str = field(init=False, compare=False, repr=False)
    """The same for all endpoints to which the same connections lead."""

    @classmethod
    def at(cls, url: str, region: str) -> Endpoint:
        return cls(without_default_port(url), region, forward_proxy_to(url))

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        base = f"{parts.scheme}://{parts.netloc}"
        for name, value in (
            ("host", parts.netloc), ("base", base), ("key", f"{base} {self.proxy.url or ''}"),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    @property
    def is_plain(self) -> bool:
        """The way there is TCP alone."""
        return self.base.startswith("http:") and (self.proxy.url is None or self.proxy.url.scheme == "http")


def without_default_port(url: str) -> str:
    """The URL without a port that is its scheme's default: botocore, and so S3, signs and sends the Host without it."""
    parts = urlsplit(url)
    host = parts.netloc.removesuffix(_DEFAULT_PORTS.get(parts.scheme, " "))
    return parts._replace(netloc=host).geturl()


def aws_url(region: str, environ: Mapping[str, str]) -> str:
    """The URL of AWS S3 in `region`: the FIPS or the dual-stack endpoint, if `environ` or the AWS profile say so."""
    fips = "-fips" if aws_config.is_on(environ, "use_fips_endpoint") else ""
    dual = ".dualstack" if aws_config.is_on(environ, "use_dualstack_endpoint") else ""
    suffix = next((suffix for start, suffix in _SUFFIXES.items() if region.startswith(start)), "amazonaws.com")
    return f"https://s3{fips}{dual}.{region}.{suffix}"


def moved(request: OriginRequest, status: int, headers: Headers, target: Endpoint) -> Endpoint | None:
    """The endpoint of the bucket, when the reply to a read says that it is in another region; else None.

    Only the region's name is taken from the reply. A `Location` is never followed: it could send our signature
    anywhere.

    Source: S3 user guide, "Making requests": 301 PermanentRedirect, and 400 AuthorizationHeaderMalformed.
    """
    if request.method not in ("GET", "HEAD") or status not in (301, 307, 400):
        return None
    region = dict(headers).get("x-amz-bucket-region", "")
    if region == target.region or _REGION.fullmatch(region) is None:
        return None
    return Endpoint.at(endpoint_in(target.url, region), region)


def endpoint_in(url: str, region: str) -> str:
    """The endpoint of `region` if `url` is AWS S3's. Any other store has one endpoint for all regions."""
    match = _AWS_ENDPOINT.fullmatch(url)
    return url if match is None else f"{match['kind']}.{region}.{match['suffix']}"
