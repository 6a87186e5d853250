"""Checks of `outrider doctor` on the environment: would a job that has it use the proxy?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from outrider.adapters.origin.aws_config import ca_bundle
from outrider.cli import aws_environment
from outrider.cli.admin_port import STATUS_URL, loopback_of
from outrider.cli.doctor.finding import Diagnosis, ok, warn
from outrider.settings import Settings


def job_findings(settings: Settings, environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Nothing here fails, at worst it warns: the job may be started with another environment than this one."""
    host, _, port = settings.listen.rpartition(":")
    scheme = "http" if settings.tls_cert is None else "https"
    ours = f"{scheme}://{loopback_of(host)}:{port}"
    yield check_endpoint(ours, environ)
    if STATUS_URL not in environ and environ.get("S3_ENDPOINT_URL", ours).rstrip("/") != ours:
        yield warn("s5cmd", f"S3_ENDPOINT_URL is {_shown(environ['S3_ENDPOINT_URL'])}", f"For s5cmd: set it to {ours}")
    if _goes_by_proxy(scheme, environ):
        yield warn(
            "http proxy", "http_proxy is set, and NO_PROXY does not name 127.0.0.1",
            "Add 127.0.0.1,localhost to NO_PROXY and no_proxy of the job, else its reads go to that proxy.",
        )  # fmt: skip
    bundle = ca_bundle(environ)
    if bundle and not Path(bundle[1]).is_file():
        yield warn("certificates", f"{bundle[0]} names {bundle[1]}, which is no file", "Name a PEM file, or unset it.")


def check_endpoint(ours: str, environ: Mapping[str, str]) -> Diagnosis:
    do = f"For the job: export AWS_ENDPOINT_URL={ours} (or start it with `outrider run -- CMD`)."
    if aws_environment.ignores_endpoints(environ):
        return warn(
            "job", "the environment or the AWS profile says that AWS_ENDPOINT_URL is not looked at",
            "For the job: export AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=false (or start it with `outrider run -- CMD`).",
        )  # fmt: skip
    set_to = {name: environ[name] for name in aws_environment.ENDPOINTS[:2] if environ.get(name)}
    if not set_to:
        return warn("job", "AWS_ENDPOINT_URL is not set here: reads go past the cache", do)
    name, endpoint = next(iter(set_to.items()))
    if STATUS_URL in environ:
        return ok("job", f"{name} is {_shown(endpoint)}, the proxy of `outrider run`")
    if endpoint.rstrip("/").replace("//localhost:", "//127.0.0.1:") != ours:
        unset = " Also unset AWS_ENDPOINT_URL_S3, which wins." if name == "AWS_ENDPOINT_URL_S3" else ""
        return warn("job", f"{name} is {_shown(endpoint)}, not this proxy", do + unset)
    return ok("job", f"{name} is {ours}")


def _goes_by_proxy(scheme: str, environ: Mapping[str, str]) -> bool:
    if not any(environ.get(name) for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")):
        return False
    listed = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    return not {"*", "127.0.0.1", "127.0.0.0/8"} & {host.strip() for host in listed.split(",")}


def _shown(url: str) -> str:
    """`url` without user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
