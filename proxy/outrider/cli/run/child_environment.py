"""Makes the environment of the child of `outrider run`: its S3 clients find the proxy, and all else stays as it is."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.adapters.origin.aws_config import in_profile
from outrider.cli.admin_port import STATUS_URL
from outrider.cli.aws_environment import ENDPOINTS, IGNORE_ENDPOINTS, ignores_endpoints

_PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_NO_PROXY = ("no_proxy", "NO_PROXY")


def for_child(
    environ: Mapping[str, str], *, endpoint: str, admin: str, region: str | None, needs_keys: bool
) -> dict[str, str]:
    """`needs_keys`: the child has no credentials, and SDKs refuse to send a request that they cannot sign."""
    child = {**environ, **dict.fromkeys(ENDPOINTS, endpoint), STATUS_URL: admin}
    if ignores_endpoints(environ):
        # Unsetting the variable would not do: the profile may say the same, and the variable wins over it.
        child[IGNORE_ENDPOINTS] = "false"
    # The general variable moves every service. The services that hand out the child's role must stay where they were.
    general = environ.get("AWS_ENDPOINT_URL") or in_profile(environ, "endpoint_url")
    sts = "https://sts.amazonaws.com" if region is None else _of_aws("sts", region)
    child.setdefault("AWS_ENDPOINT_URL_STS", general or sts)
    # Single sign-on may be in another region than the buckets.
    sso_region = in_profile(environ, "sso_region") or region
    for name, service in (("AWS_ENDPOINT_URL_SSO", "portal.sso"), ("AWS_ENDPOINT_URL_SSO_OIDC", "oidc")):
        if place := general or (sso_region and _of_aws(service, sso_region)):
            child.setdefault(name, place)
    if endpoint.startswith("http://"):
        # Rust's object_store refuses http otherwise.
        child.setdefault("AWS_ALLOW_HTTP", "true")
    child.update(_for_tools(endpoint, region))
    if needs_keys:
        child["AWS_ACCESS_KEY_ID"] = child["AWS_SECRET_ACCESS_KEY"] = "outrider-accepts-any"  # noqa: S105 - no secret
    if any(environ.get(name) for name in _PROXIES):
        # Some tools read one spelling, some the other: both variables get all hosts.
        listed = _hosts_without_proxy(environ)
        # curl, requests and urllib ignore `*` beside other hosts.
        hosts = "*" if set(listed) == {"*"} else ",".join(dict.fromkeys([*listed, "127.0.0.1", "localhost"]))
        child.update(dict.fromkeys(_NO_PROXY, hosts))
    return child


def _for_tools(endpoint: str, region: str | None) -> dict[str, str]:
    """The variables of libraries that read none of the SDKs', or need one more. docs/frameworks.md names each."""
    scheme, _, address = endpoint.partition("://")
    remote = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": endpoint, "ENV_AUTH": "true", "REGION": region or ""}
    return {
        # TensorFlow I/O, TensorBoard.
        "S3_ENDPOINT": endpoint,
        # Run:ai's model streamer would look for the host BUCKET.127.0.0.1.
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
        "DUCKDB_S3_ENDPOINT": address,
        "DUCKDB_S3_USE_SSL": "true" if scheme == "https" else "false",
        # A remote `outrider:`. RCLONE_S3_ENDPOINT would win over the endpoints in the user's own file of remotes.
        **{f"RCLONE_CONFIG_OUTRIDER_{name}": value for name, value in remote.items() if value},
    }


def _hosts_without_proxy(environ: Mapping[str, str]) -> list[str]:
    listed = ",".join(environ.get(name, "") for name in _NO_PROXY)
    return [host.strip() for host in listed.split(",") if host.strip()]


def _of_aws(service: str, region: str) -> str:
    return f"https://{service}.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
