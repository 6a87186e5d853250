"""Parses the list of objects of a maintenance command (warm, pin, evict, verify): one name per line.

# a comment
s3://bucket/key
s3://bucket/prefix/                      all keys with this prefix; s3://bucket/ is the whole bucket
s3://bucket/shard-{000000..000099}.tar   a range of numbers; {a,b} is a list of words
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest

from outrider.core.errors import InvalidArgument
from outrider.core.model import ObjectRef, is_too_long
from outrider.core.s3.operation import is_bucket_name, ref_of

BODY_BYTES_MAX = 4 * 1024 * 1024
# Names and prefixes of one list, at most. Each name takes some 200 bytes during a warm-up.
OBJECTS_MAX = 200_000
PREFIXES_MAX = 1000
# A template that stands for more names counts as one that stands for so many.
_COUNT_MAX = 10**18
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ObjectList:
    """`refs` are in the order of the list, each once. The key of each of `prefixes` is a prefix of keys; an empty one
    stands for the whole bucket."""

    refs: tuple[ObjectRef, ...]
    prefixes: tuple[ObjectRef, ...]


@dataclass(frozen=True, slots=True)
class SavedWarmup:
    """A warm-up that a stop of the proxy cut off.

    `owner`: an access key; empty: no particular client. `body`: the list as it was sent. `at`: seconds since 1970.
    `bytes_per_s`: its bandwidth limit; 0: none. `copies`: see `core.maintenance.copies`.
    """

    owner: str
    name: str
    body: str
    at: float
    bytes_per_s: float
    copies: int = 1


def parse_list(body: bytes, *, objects_max: int = OBJECTS_MAX) -> ObjectList:
    """Raises InvalidArgument: a line is wrong (says which), or the list names nothing, or too much."""
    try:
        lines = body.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"The list is not UTF-8: {error.reason} at byte {error.start}.") from error
    refs: dict[ObjectRef, None] = {}
    prefixes: dict[ObjectRef, None] = {}
    expanded = 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        count, names = _expanded(text, number)
        expanded += count
        if expanded > objects_max:
            raise InvalidArgument(f"Line {number}: the list names more than {objects_max} objects; use a prefix.")
        for name in names:
            ref = _prefix(name)
            if ref is not None:
                prefixes[ref] = None
            elif (ref := ref_of(name)) is not None:
                refs[ref] = None
            else:
                raise InvalidArgument(
                    f"Line {number} is not s3://BUCKET/KEY, s3://BUCKET/PREFIX/ or a template of such: {name[:200]!r}"
                )
    if not refs and not prefixes:
        raise InvalidArgument("The list names nothing: one s3://BUCKET/KEY or s3://BUCKET/PREFIX/ a line.")
    if len(prefixes) > PREFIXES_MAX:
        raise InvalidArgument(f"The list has {len(prefixes)} prefixes; {PREFIXES_MAX} at most.")
    return ObjectList(tuple(refs), tuple(prefixes))


def count_of(line: str) -> int:
    """The number of names that one line stands for. Only the first of them is made, so that a long template costs no
    more than a short one. Raises InvalidArgument: that first one is no name."""
    count, texts, choices = _parsed(line, 1)
    first = _joined(texts, [words[0] for words in choices])
    if _prefix(first) is None and ref_of(first) is None:
        raise InvalidArgument(f"{first[:200]!r} is not s3://BUCKET/KEY, s3://BUCKET/PREFIX/ or a template of such")
    return count


def _prefix(name: str) -> ObjectRef | None:
    if not name.startswith("s3://"):
        return None
    bucket, slash, key = name.removeprefix("s3://").partition("/")
    if (slash and key and not key.endswith("/")) or not is_bucket_name(bucket):
        return None
    return None if is_too_long(key) else ObjectRef(bucket, key)


def _expanded(template: str, number: int) -> tuple[int, Iterator[str]]:
    """The number of names that `template` stands for, and the names, which are made one by one."""
    count, texts, choices = _parsed(template, number)
    return count, _names(texts, choices)


def _parsed(template: str, number: int) -> tuple[int, Sequence[str], list[Sequence[str]]]:
    """The number of names, the texts outside the braces, and the words of each brace."""
    pieces = _BRACES.split(template)
    texts, braces = pieces[::2], pieces[1::2]
    if any("{" in text or "}" in text for text in texts):
        raise InvalidArgument(
            f"Line {number}: a brace without its other, or braces in braces. A prefix covers such keys."
        )
    choices = [_choices(inner, number) for inner in braces]
    count = 1
    for words in choices:
        # Bounded: with a digit for each brace, each multiplication would take longer than the one before.
        count = min(count * len(words), _COUNT_MAX)
    return count, texts, choices


def _names(texts: Sequence[str], choices: Sequence[Sequence[str]]) -> Iterator[str]:
    # A generator: `product` copies its arguments, which must not happen before the count was checked.
    for chosen in product(*choices):
        yield _joined(texts, chosen)


def _joined(texts: Sequence[str], chosen: Sequence[str]) -> str:
    return "".join(map("".join, zip_longest(texts, chosen, fillvalue="")))


class _Counted(Sequence[str]):
    """The words of `{000..123}`, made one by one."""

    def __init__(self, numbers: range, width: int) -> None:
        self._numbers = numbers
        self._width = width

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # no slices
        return str(self._numbers[index]).zfill(self._width)


def _choices(inner: str, number: int) -> Sequence[str]:
    match = _RANGE.fullmatch(inner)
    if match is not None:
        first, last = int(match[1]), int(match[2])
        step = 1 if last >= first else -1
        # As in shells and WebDataset: numbers are padded only if one is written with a leading zero.
        padded = any(len(bound) > 1 and bound.startswith("0") for bound in match.groups())
        return _Counted(range(first, last + step, step), max(map(len, match.groups())) if padded else 0)
    if "," in inner:
        return inner.split(",")
    raise InvalidArgument(
        f"Line {number}: {{{inner[:100]}}} is neither a range like {{000000..000099}} nor a list like {{a,b}}."
    )
