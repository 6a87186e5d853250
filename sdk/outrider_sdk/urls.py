"""Names of objects: s3:// URLs, other URLs of the same objects, and templates that stand for many of them."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import SplitResult, unquote, urlsplit

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)", re.ASCII)


def expand(urls: str | Iterable[str]) -> Iterator[str]:
    """The URLs of a template, one after the other. `{000..123}` counts (a leading zero keeps the width), `{a,b}` lists.

    Raises:
        ValueError: braces are neither a range nor a list.
    """
    for template in [urls] if isinstance(urls, str) else urls:
        pieces = _BRACES.split(template)
        texts, braces = pieces[::2], pieces[1::2]
        if any("{" in text or "}" in text for text in texts):
            raise ValueError(f"{template}: a brace without its partner, or braces in braces")
        for chosen in _product([_choices(inner, template) for inner in braces]):
            yield "".join(itertools.chain.from_iterable(itertools.zip_longest(texts, chosen, fillvalue="")))


# Query parameters of a signature (SigV4, SigV2), and `x-id`, which means nothing. With any other parameter the URL
# requests more than the object.
_SIGNATURE = re.compile(
    r"(?:(?:(?:x-amz-(?:algorithm|credential|date|expires|signedheaders|signature|security-token)"
    r"|awsaccesskeyid|signature|expires|x-id)(?:=[^&]*)?)?(?:&|$))*",
    re.IGNORECASE | re.ASCII,
)
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))


def object_of(url: str, endpoint: str | None) -> str | None:
    """s3://BUCKET/KEY of the object that `url` reads, the key without escapes; None: it is no object, or not just one.

    `url` has one of three forms: s3://BUCKET/KEY; an http(s) URL at `endpoint` (path style, or the bucket before its
    host; signed or not); or WebDataset's `pipe:` with a command that names exactly one such URL.
    """
    if url.startswith("pipe:"):
        return _object_of_command(url.removeprefix("pipe:"), endpoint)
    if url.startswith("s3://"):
        bucket, _, key = url.removeprefix("s3://").partition("/")
        return url if bucket and key and not key.endswith("/") else None
    if url.startswith(("http://", "https://")) and endpoint is not None:
        return _object_at(url, endpoint)
    return None


def _object_of_command(command: str, endpoint: str | None) -> str | None:
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    found = {object_of(word, endpoint) for word in words if not word.startswith("pipe:")} - {None}
    # A command with two objects is a copy from bucket to bucket, or has a shell's alternatives.
    return found.pop() if len(found) == 1 else None


def _object_at(url: str, endpoint: str) -> str | None:
    # A sampler's first batch waits until a thousand URLs were announced. `urlsplit` and `parse_qsl`, which also decodes
    # the values of a signature, take several times as long as this.
    plain, _, query = url.partition("#")[0].partition("?")
    scheme, _, rest = plain.partition("//")
    host, slash, path = rest.partition("/")
    place = _place(f"{scheme}//{host}", endpoint)
    if place is None or _SIGNATURE.fullmatch(query) is None:
        return None
    before, folder = place
    path = unquote(f"{slash}{path}".removeprefix(folder), errors="surrogateescape").removeprefix("/")
    return object_of(f"s3://{before}{path}", None)


@lru_cache(maxsize=64)
def _place(url: str, endpoint: str) -> tuple[str, str] | None:
    """Beginning of the object's name that the host of `url` gives ("" or `BUCKET/`), and the path before the rest of
    the name; None: `url` is not at `endpoint`."""
    try:
        plain, proxy = urlsplit(url), urlsplit(endpoint)
        if _port(plain) != _port(proxy):
            return None
    except ValueError:
        return None
    host, own = plain.hostname or "", proxy.hostname or ""
    if host == own or {host, own} <= _LOOPBACK:
        return "", proxy.path
    return (f"{host.removesuffix(f'.{own}')}/", proxy.path) if host.endswith(f".{own}") else None


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _product(choices: list[_Choices]) -> Iterator[tuple[str, ...]]:
    """As itertools.product, which would first make a list of each argument."""
    if not choices:
        yield ()
        return
    for chosen in choices[0]:
        for others in _product(choices[1:]):
            yield (chosen, *others)


class _Choices:
    """The texts that one pair of braces stands for. It can be iterated many times."""

    def __init__(self, words: Iterable[object], width: int) -> None:
        self._words = words
        self._width = width

    def __iter__(self) -> Iterator[str]:
        return (str(word).zfill(self._width) for word in self._words)


def _choices(inner: str, template: str) -> _Choices:
    match = _RANGE.fullmatch(inner)
    if match is not None:
        first, last = int(match[1]), int(match[2])
        step = 1 if last >= first else -1
        # As in shells and WebDataset, only a leading zero sets a width.
        padded = any(bound.startswith("0") and len(bound) > 1 for bound in match.groups())
        width = max(map(len, match.groups())) if padded else 0
        return _Choices(range(first, last + step, step), width)
    if "," in inner:
        return _Choices(inner.split(","), 0)
    raise ValueError(f"{template}: {{{inner}}} is neither a range like {{000..123}} nor a list like {{a,b}}")
