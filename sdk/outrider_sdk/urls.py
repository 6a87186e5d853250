"""Names of objects: s3:// URLs, and the templates that stand for many of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)", re.ASCII)


def expand(urls: str | Iterable[str]) -> Iterator[str]:
    """One URL after the other; `{000..123}` counts (a leading zero keeps the width), `{a,b}` lists.

    Raises:
        ValueError: braces that mean neither.
    """
    for template in [urls] if isinstance(urls, str) else urls:
        pieces = _BRACES.split(template)
        texts, braces = pieces[::2], pieces[1::2]
        if any("{" in text or "}" in text for text in texts):
            raise ValueError(f"{template}: a brace without its other, or braces in braces")
        for chosen in _product([_choices(inner, template) for inner in braces]):
            yield "".join(itertools.chain.from_iterable(itertools.zip_longest(texts, chosen, fillvalue="")))


def path_of(url: str) -> str:
    """The path of s3://BUCKET/KEY on an S3 server.

    Raises:
        ValueError: it is no such URL.
    """
    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not bucket or not key or key.endswith("/"):
        raise ValueError(f"{url}: must be s3://BUCKET/KEY of one object, or a template of such")
    return f"/{bucket}/{quote(key, safe='/')}"


def _product(choices: list[_Choices]) -> Iterator[tuple[str, ...]]:
    """itertools.product, which would first make a list of each."""
    if not choices:
        yield ()
        return
    for chosen in choices[0]:
        for others in _product(choices[1:]):
            yield (chosen, *others)


class _Choices:
    """What one pair of braces stands for; can be gone through many times."""

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
        # As shells and WebDataset do: only a leading zero asks for a width.
        padded = match[1].startswith("0") or match[2].startswith("0")
        width = max(len(match[1]), len(match[2])) if padded and len(match[1]) + len(match[2]) > 2 else 0
        return _Choices(range(first, last + step, step), width)
    if "," in inner:
        return _Choices(inner.split(","), 0)
    raise ValueError(f"{template}: {{{inner}}} is neither a range like {{000..123}} nor a list like {{a,b}}")
