"""The caches that the operator talks to: warm-ups by S3, as `outrider warm` does, and what each holds by its status."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore import UNSIGNED
from botocore.exceptions import BotoCoreError, ClientError

from outrider.core.s3.operation import CONTROL_BUCKET
from outrider.operator_ports import CacheError, CachePod, CacheRefusedError

_STATUS_BYTES_MAX = 64 * 2**20
_TIMEOUT_S = 5.0
# A warm-up of a prefix is answered at once; one of a list after a look at each object's name.
_ANSWER_S = 30.0
_REFUSED_BELOW = 500
_TOO_LARGE = 507


class S3Caches:
    """Implements `operator_ports.Caches`. `endpoint`: any of the caches, by URL. Keys are those of the
    environment; none: calls are unsigned. `async with` ends its connections."""

    def __init__(self, endpoint: str, *, s3_port: int, admin_port: int, admin_token: str | None) -> None:
        self._endpoint = endpoint
        self._s3_port = s3_port
        self._admin_port = admin_port
        self._headers = {} if admin_token is None else {"authorization": f"Bearer {admin_token}"}
        self._session = get_session()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> S3Caches:
        self._http = await self._stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_TIMEOUT_S), headers=self._headers)
        )
        self._keys = await self._session.get_credentials()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def warm(self, name: str, urls: Sequence[str], *, at: CachePod | None = None) -> None:
        body = "\n".join(urls).encode()
        async with self._client(at) as client:
            await client.put_object(Bucket=CONTROL_BUCKET, Key=f"warm/{name}", Body=body)

    async def progress(self, name: str) -> Mapping[str, Any] | None:
        try:
            async with self._client(None) as client:
                answer = await client.get_object(Bucket=CONTROL_BUCKET, Key=f"warm/{name}")
                report: Mapping[str, Any] = json.loads(await answer["Body"].read())
                return report
        except _MissingError:
            return None
        except ValueError as error:
            raise CacheError(f"no report of a warm-up: {error}") from error

    async def datasets(self, pod: CachePod) -> Sequence[Mapping[str, Any]]:
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        try:
            async with self._http.get(f"http://{host}:{self._admin_port}/status") as reply:
                if reply.status != 200:
                    raise CacheError(f"its admin port answers {reply.status}")
                body = await reply.content.read(_STATUS_BYTES_MAX)
                while not reply.content.at_eof() and len(body) < _STATUS_BYTES_MAX:
                    body += await reply.content.read(_STATUS_BYTES_MAX - len(body))
            found: Sequence[Mapping[str, Any]] = json.loads(body)["datasets"]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError) as error:
            raise CacheError(f"{type(error).__name__}: {error}") from error
        return found

    @asynccontextmanager
    async def _client(self, at: CachePod | None) -> AsyncIterator[Any]:
        endpoint = self._endpoint
        if at is not None:
            host = f"[{at.address}]" if ":" in at.address else at.address
            endpoint = f"http://{host}:{self._s3_port}"
        config = AioConfig(
            s3={"addressing_style": "path"}, retries={"max_attempts": 0}, proxies={}, connect_timeout=_TIMEOUT_S,
            read_timeout=_ANSWER_S, signature_version=UNSIGNED if self._keys is None else None,
        )  # fmt: skip
        client = self._session.create_client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config)
        try:
            async with client as opened:
                yield opened
        except ClientError as error:
            told = error.response["Error"]
            text = f"{told.get('Code', '?')}: {told.get('Message', '')}"
            status = error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
            if told.get("Code") == "NoSuchKey":
                raise _MissingError(text) from error
            if status < _REFUSED_BELOW or status == _TOO_LARGE:
                raise CacheRefusedError(text) from error
            raise CacheError(text) from error
        except (BotoCoreError, aiohttp.ClientError, TimeoutError, OSError) as error:
            raise CacheError(f"{type(error).__name__}: {error}") from error


class _MissingError(CacheRefusedError):
    """There is no such object."""
