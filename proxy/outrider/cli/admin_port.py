"""Finds the admin port of a proxy on this machine, and reads what it answers."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from outrider.settings import Settings
from outrider.settings.members import is_everywhere

STATUS_URL = "OUTRIDER_STATUS_URL"
"""The variable by which `outrider run` shows its child where the admin port is. It is no setting."""

_TIMEOUT_S = 5.0
_BYTES_MAX = 16 * 2**20
# The status of an answer that says in words why there is no other; see `http.admin.server`.
_REFUSED = 422
_TEXT_BYTES_MAX = 4096

Status = dict[str, Any]


class NoStatus(Exception):
    """The status cannot be read. The text says why, and what to do."""


class WrongToken(NoStatus):
    """The admin port wants a token, or another one."""


def direct() -> urllib.request.OpenerDirector:
    """An opener that ignores http_proxy: the server is on this machine."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def loopback_of(host: str) -> str:
    """The host to connect to, to reach a server that listens on `host`. At `[::]` it takes IPv4, too, and a machine
    without IPv6 has no other loopback."""
    return "127.0.0.1" if is_everywhere(host) else host


def url_of(settings: Settings) -> str:
    host, _, port = settings.admin.rpartition(":")
    return f"http://{loopback_of(host)}:{port}"


def running_outrider(settings: Settings) -> Status | None:
    """The /status of the outrider at the address `admin`; None: there is none. Raises WrongToken."""
    try:
        return None if settings.admin.endswith(":0") else status_at(url_of(settings), settings)
    except WrongToken:
        raise
    except NoStatus:
        return None


def status_at(url: str, settings: Settings) -> Status:
    """Raises NoStatus."""
    status = answer_at(url, settings, "/status")
    if "verdict" not in status:
        raise NoStatus(f"{url} is no admin port of outrider, or of an older one. Is --admin right?")
    return status


def answer_at(url: str, settings: Settings, path: str) -> Status:
    """The JSON object at `path`. Raises NoStatus."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise NoStatus(f"{url} is no URL of an admin port: write http://HOST:PORT.")
    request = urllib.request.Request(f"{url}{path}")  # noqa: S310 - the scheme was checked above
    if settings.admin_token is not None:
        request.add_header("Authorization", f"Bearer {settings.admin_token.get_secret_value()}")
    try:
        with direct().open(request, timeout=_TIMEOUT_S) as reply:
            answer = json.loads(reply.read(_BYTES_MAX))
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 401:
                raise WrongToken(
                    f"{url} needs a token, or does not accept this one: set OUTRIDER_ADMIN_TOKEN."
                ) from error
            if error.code == _REFUSED:
                text = error.read(_TEXT_BYTES_MAX).decode("utf-8", "replace").strip()
            else:
                text = f"{url} answered {error.code}: that is no admin port of outrider. Is --admin right?"
        raise NoStatus(text) from error
    except OSError as error:
        raise NoStatus(
            f"No outrider answers at {url}. Start one with `outrider serve`, or say where it is: --admin HOST:PORT."
        ) from error
    except (ValueError, http.client.HTTPException) as error:
        raise NoStatus(f"{url} is no admin port of outrider. Is --admin right?") from error
    if not isinstance(answer, dict):
        raise NoStatus(f"{url} is no admin port of outrider, or of an older one. Is --admin right?")
    return answer
