"""A connection to the S3 port of a proxy: signed requests to the objects of the control bucket `_outrider`."""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import time
from collections.abc import Mapping
from html import unescape
from typing import Any
from urllib.parse import quote, urlsplit

from outrider_sdk.signing import keys_of, signed_headers

_BODY_BYTES_MAX = 16 * 1024 * 1024
_ERROR_BYTES_MAX = 64 * 1024
# Characters of an app's name that SDKs replace.
_NO_TOKEN = re.compile(r"[^!#$%&'*+\-.^_`|~,0-9A-Za-z]")
_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,64})</Code>")
_MESSAGE = re.compile(rb"<Message>([^<]{1,1000})</Message>")


class NotOutrider(Exception):
    """The server at the address is no Outrider, or refuses the request; the text says which."""


class S3Port:
    """One connection, made at the first request and kept from request to request. Not for two threads at a time.

    Requests are signed when AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set.
    """

    def __init__(self, endpoint: str, timeout_s: float) -> None:
        self._parts = urlsplit(endpoint)
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def send(
        self, method: str, path: str, body: bytes = b"", more: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """The answer, its body still to be read. If the caller does not read the body to its end, it calls `close`.

        Raises OSError, http.client.HTTPException: there is no answer.
        """
        path = self._parts.path + path
        host = self._parts.netloc.rpartition("@")[2]
        keys = keys_of(os.environ)
        headers = {"host": host, **(more or {})}
        if keys is not None:
            headers = signed_headers(keys, method, host, path, body, time.time(), more)
        if app := _app_of(os.environ):
            headers["user-agent"] = f"outrider-sdk app/{app}"
        idled = self._connection is not None
        try:
            return self._exchange(method, path, body, headers)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            # The server closes a connection that was idle for long, and has then not seen this request.
            if not idled:
                raise
            return self._exchange(method, path, body, headers)

    def _exchange(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        if self._connection is None:
            self._connection = self._connect()
        try:
            self._connection.request(method, path, body=body or None, headers=dict(headers))
            return self._connection.getresponse()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def status(self) -> Mapping[str, Any]:
        """Content of `status.json`.

        Raises:
            NotOutrider: another server answers, or the proxy refuses the request.
            OSError, http.client.HTTPException: there is no answer.
        """
        reply = self.send("GET", "/_outrider/status.json")
        if reply.getheader("server") != "outrider":
            self.close()
            raise NotOutrider("an S3 server, but no Outrider")
        body = reply.read(_BODY_BYTES_MAX)
        if reply.status != 200:
            raise NotOutrider(f"an Outrider that refuses the request: {_reason(reply.status, body)}")
        try:
            answer = json.loads(body)
        except ValueError as error:
            raise NotOutrider("something whose status is not JSON") from error
        if not isinstance(answer, dict) or "version" not in answer:
            raise NotOutrider("something whose status has no version")
        return answer

    def put(self, key: str, body: bytes, more: Mapping[str, str] | None = None) -> str | None:
        """Put an object into the control bucket; None: done, else the reason of the refusal. `more`: headers.

        Raises OSError, http.client.HTTPException: the proxy does not answer.
        """
        reply = self.send("PUT", _path(key), body, more)
        said = reply.read(_ERROR_BYTES_MAX)
        return None if reply.status == 200 else _reason(reply.status, said)

    def get(self, key: str) -> dict[str, Any] | None:
        """An object of the control bucket; None: there is no such object.

        Raises OSError, http.client.HTTPException: the proxy does not answer, or answers with an error.
        """
        reply = self.send("GET", _path(key))
        said = reply.read(_BODY_BYTES_MAX)
        if reply.status == 404:
            return None
        if reply.status != 200:
            raise OSError(_reason(reply.status, said))
        answer: dict[str, Any] = json.loads(said)
        return answer

    def delete(self, key: str) -> Mapping[str, str]:
        """Delete an object of the control bucket. Returns the headers of the answer; an absent object is no error.

        Raises OSError, http.client.HTTPException: as `get`.
        """
        reply = self.send("DELETE", _path(key))
        said = reply.read(_ERROR_BYTES_MAX)
        if reply.status not in (204, 404):
            raise OSError(_reason(reply.status, said))
        return {name.lower(): value for name, value in reply.getheaders()}

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            # The AWS tools take their trusted certificates from this variable.
            context = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or None)
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)


def _path(key: str) -> str:
    return f"/_outrider/{quote(key, safe='/')}"


def code_in(body: bytes) -> str:
    """The S3 error code in an error document; empty: it has none."""
    match = _CODE.search(body)
    return match[1].decode() if match else ""


def message_in(body: bytes) -> str:
    """The message in an error document; empty: it has none."""
    match = _MESSAGE.search(body)
    return unescape(match[1].decode("utf-8", "replace")) if match else ""


def _reason(status: int, body: bytes) -> str:
    message = message_in(body)
    text = f"{status} {code_in(body)}".strip() + (f": {message}" if message else "")
    return f"{text} (keys: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)" if status == 403 else text


def _app_of(environ: Mapping[str, str]) -> str:
    """The job's name as boto3 sends it, so that the proxy sees one client; empty: the job has no name.

    Source: AWS SDKs and Tools Reference Guide, "Application ID".
    """
    return _NO_TOKEN.sub("-", environ.get("AWS_SDK_UA_APP_ID", ""))
