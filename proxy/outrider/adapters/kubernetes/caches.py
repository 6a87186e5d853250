"""The caches that the operator talks to: warm-ups by S3, as `outrider warm` does, and what each holds by its admin
port."""

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

from outrider.core.cluster.object_samples import NUMBERS, SAMPLED_MAX, KnownObject, ObjectSample
from outrider.core.operator.holdings import HeldDataset
from outrider.core.s3.operation import CONTROL_BUCKET
from outrider.operator_ports import CacheError, CachePod, CacheRefusedError

# A cache reports 256 datasets at most.
_DATASETS_BYTES_MAX = 4 * 2**20
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
        self._any = await self._stack.enter_async_context(self._made(self._endpoint))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def warm(self, name: str, urls: Sequence[str], *, at: CachePod | None = None) -> None:
        body = "\n".join(urls).encode()
        async with self._client(at) as client:
            await client.put_object(Bucket=CONTROL_BUCKET, Key=f"warm/{name}", Body=body)

    async def progress(self, name: str, *, at: CachePod | None = None) -> Mapping[str, Any] | None:
        try:
            async with self._client(at) as client:
                answer = await client.get_object(Bucket=CONTROL_BUCKET, Key=f"warm/{name}")
                return _report(json.loads(await answer["Body"].read()))
        except _MissingError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CacheError(f"no report of a warm-up: {error!r}") from error

    async def datasets(self, pod: CachePod) -> Sequence[HeldDataset]:
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        try:
            async with self._http.get(f"http://{host}:{self._admin_port}/datasets") as reply:
                if reply.status != 200:
                    raise CacheError(f"its admin port answers {reply.status}")
                body = await reply.content.read(_DATASETS_BYTES_MAX)
                while not reply.content.at_eof() and len(body) < _DATASETS_BYTES_MAX:
                    body += await reply.content.read(_DATASETS_BYTES_MAX - len(body))
            return [_dataset(each) for each in json.loads(body)["datasets"]]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CacheError(f"{type(error).__name__}: {error}") from error

    def _made(self, endpoint: str) -> Any:
        config = AioConfig(
            s3={"addressing_style": "path"}, retries={"max_attempts": 0}, proxies={}, connect_timeout=_TIMEOUT_S,
            read_timeout=_ANSWER_S, signature_version=UNSIGNED if self._keys is None else None,
        )  # fmt: skip
        return self._session.create_client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config)

    @asynccontextmanager
    async def _client(self, at: CachePod | None) -> AsyncIterator[Any]:
        try:
            if at is None:
                yield self._any
            else:
                host = f"[{at.address}]" if ":" in at.address else at.address
                async with self._made(f"http://{host}:{self._s3_port}") as client:
                    yield client
        except ClientError as error:
            refusal = error.response["Error"]
            text = f"{refusal.get('Code', '?')}: {refusal.get('Message', '')}"
            status = error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
            if refusal.get("Code") == "NoSuchKey":
                raise _MissingError(text) from error
            if status < _REFUSED_BELOW or status == _TOO_LARGE:
                raise CacheRefusedError(text) from error
            raise CacheError(text) from error
        except (BotoCoreError, aiohttp.ClientError, TimeoutError, OSError) as error:
            raise CacheError(f"{type(error).__name__}: {error}") from error


class _MissingError(CacheRefusedError):
    """There is no such object."""


# A cache may be of another release. Both raise ValueError, KeyError, TypeError or AttributeError: it is of no form that
# is known here.


def _report(report: Any) -> Mapping[str, Any]:
    numbers = [*(report["bytes"][name] for name in ("wanted", "on_disk")), report["rate_bytes_per_s"]]
    numbers += [report["objects"][name] for name in ("wanted", "unsized")]
    if report["eta_s"] is not None:
        numbers.append(report["eta_s"])
    if report.get("ended_s") is not None:
        numbers.append(report["ended_s"])
    if not all(isinstance(number, int | float) for number in numbers) or not isinstance(report["state"], str):
        raise ValueError("numbers are missing")
    failures = [
        {"object": str(failure["object"]), "error": str(failure["error"]), "passing": failure.get("passing") is True}
        for failure in report.get("failures") or ()
    ]
    return {**report, "failures": failures}


def _dataset(answer: Any) -> HeldDataset:
    """Caches before 0.3 report no objects."""
    objects = [KnownObject(*map(int, each)) for each in answer.get("objects") or ()]
    if len(objects) > SAMPLED_MAX or any(not 0 <= each.held <= each.size for each in objects):
        raise ValueError("no sample of objects")
    return HeldDataset(
        str(answer["bucket"]), str(answer["name"]), ObjectSample(objects, int(answer.get("below", NUMBERS)))
    )
