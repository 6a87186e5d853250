"""A version as bytes: 100 bytes for a small object, in place of 600 as objects of Python.

    4 bytes    the number of the frame: all that many versions share (see `Frame`)
    8 bytes    the size
    2 bytes    the length of the key
    then       the key
    4 bytes    Last-Modified in seconds since 1970, where the frame leaves it open
    16 bytes   the ETag, where it has the form of an MD5
    then       the other values that the frame leaves open, each with its length

The numbers of frames are those of one `Packing`: the process has one, and each file of packed versions another one.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import repeat
from struct import Struct
from typing import NamedTuple

from outrider.core.memo import Memo
from outrider.core.model import Headers, ObjectRef, ObjectVersion, shared_headers, shared_text

_HEAD = Struct("<IQH")
_NUMBER = Struct("<I")
_DATE = Struct("<I")
_LENGTH = Struct("<I")
MD5_BYTES = 16
# By the two bytes of its length. Names of S3 are shorter; those in a file may be anything.
_KEY_BYTES_MAX = 2**16 - 1


class Frame(NamedTuple):
    """All of a version that it shares with many others. `headers`: those at the places below are empty here, as their
    values are the version's own."""

    bucket: str
    whole_headers: bool
    has_md5: bool
    """The ETag has the form of an MD5. Otherwise it is the first text."""
    headers: Headers
    etags: tuple[int, ...] = ()
    """Headers that repeat the ETag."""
    date: int = -1
    """The Last-Modified that is a number; -1: there is none."""
    texts: tuple[int, ...] = ()
    """Headers whose values are behind the key."""


_new, _set = object.__new__, object.__setattr__
_ref: Callable[[tuple[str, str]], ObjectRef] = partial(tuple.__new__, ObjectRef)


# A store whose headers are the same but for dates, ETags and values that come once has a few frames for each bucket.
# Beyond this number, all values of a version are its own; beyond twice the number, its names are too (frame 0).
_FRAMES_MAX = 4096


class Packing:
    """The frames, and what was packed and unpacked a moment ago. There is one for all tables of the process: what one
    of them holds as bytes, another one can read."""

    def __init__(self) -> None:
        self.frames: list[Frame] = [Frame("", False, False, ())]
        self._numbers: dict[Frame, int] = {}
        # Pairs of name and value that came lately. A pair that comes again is most likely shared by many versions.
        self._seen: Memo[tuple[str, str], bool] = Memo(1024)
        # The same version is packed for the index of blocks and for the version cache, and several times as blocks
        # come: its bytes are held once. By identity, as to compare versions takes as long as to pack them.
        self._packed: Memo[int, tuple[ObjectVersion, bytes]] = Memo(256)
        self._shared: Memo[bytes, bytes] = Memo(256)
        self._unpacked: Memo[bytes, ObjectVersion] = Memo(256)

    def pack(self, version: ObjectVersion) -> bytes:
        """Two equal versions may be packed into different bytes. To be called from one thread."""
        known = self._packed.get(id(version))
        if known is not None and known[0] is version:
            return known[1]
        packed = self._pack(version)
        if (shared := self._shared.get(packed)) is not None:
            packed = shared
        else:
            self._shared.put(packed, packed)
            # It is most likely looked up in a moment.
            self._unpacked.put(packed, version)
        self._packed.put(id(version), (version, packed))
        return packed

    def unpack(self, packed: bytes) -> ObjectVersion:
        """The version that was packed; from any thread. It is the same object as at the last call, if that was a
        moment ago."""
        version = self._unpacked.get(packed)
        if version is None:
            version = self.unpack_once(packed)
            self._unpacked.put(packed, version)
        return version

    def take(self, frames: Mapping[int, Frame]) -> None:
        """Those of a file, by its numbers. Raises ValueError."""
        if frames and (min(frames) < 1 or max(frames) > 2 * _FRAMES_MAX):
            raise ValueError("no such frame")
        for number, frame in frames.items():
            self.frames += self.frames[:1] * (number + 1 - len(self.frames))
            self.frames[number] = frame

    def taken_over(
        self, file: Packing, raws: Sequence[bytes], check: Callable[[ObjectVersion], None]
    ) -> tuple[Sequence[ObjectRef], Sequence[int], Sequence[bytes]]:
        """The names and the sizes of what a file has packed with frames of its own, and the bytes that `pack` would
        give: at a start there are millions. `check` raises an error where a version that the form of its frame does not
        check makes no sense.

        Raises ValueError, LookupError, struct.error: nothing was packed like that.
        """
        # By the number of the file's frame: the bucket, the number of this frame, how many bytes of one length are
        # behind a key, and the forms of the texts that follow.
        known: dict[int, tuple[str, bytes, int, list[re.Pattern[bytes]]]] = {}
        numbers, sizes, lengths = zip(*map(_HEAD.unpack_from, raws), strict=True)
        for number in set(numbers):
            frame = file.frames[number]
            if number and frame is file.frames[0]:
                raise ValueError("no such frame")
            if frame.bucket and (its := self.number_of(frame)):
                rest = (MD5_BYTES if frame.has_md5 else 0) + (_DATE.size if frame.date >= 0 else 0)
                forms = [] if frame.has_md5 else [_PLAIN_ETAG]
                known[number] = frame.bucket, _NUMBER.pack(its), rest, forms + [_PLAIN] * len(frame.texts)
        if len(known) == len(set(numbers)) == 1:
            ((bucket, head, rest, forms),) = known.values()
            stops = [_HEAD.size + length for length in lengths]
            keys = [raw[_HEAD.size : stop] for raw, stop in zip(raws, stops, strict=True)]
            tails = [raw[stop:] for raw, stop in zip(raws, stops, strict=True)]
            if b"".join(keys).isascii() and _are_plain(tails, rest, forms):
                refs = list(map(_ref, zip(repeat(bucket), map(bytes.decode, keys))))
                return refs, sizes, [head + raw[_NUMBER.size :] for raw in raws]
        refs, packed = [], []
        for number, length, raw in zip(numbers, lengths, raws, strict=True):
            found, stop = known.get(number), _HEAD.size + length
            key = raw[_HEAD.size : stop]
            if found is not None and key.isascii() and _has_texts(raw, stop + found[2], found[3]):
                refs.append(_ref((found[0], key.decode())))
                packed.append(found[1] + raw[_NUMBER.size :])
            else:
                version = file.unpack_once(raw)
                check(version)
                refs.append(version.ref)
                packed.append(self.pack(version))
        return refs, sizes, packed

    def modified_s(self, packed: bytes) -> int:
        """The Last-Modified, in seconds since 1970; 0: it has none, or the version has to be unpacked for it."""
        number, _, length = _HEAD.unpack_from(packed)
        return 0 if self.frames[number].date < 0 else int(_DATE.unpack_from(packed, _HEAD.size + length)[0])

    def is_of(self, packed: bytes, ref: ObjectRef) -> bool:
        """Whether it is a version of this object."""
        number, _, length = _HEAD.unpack_from(packed)
        if not number:
            return self.unpack(packed).ref == ref
        if self.frames[number].bucket != ref.bucket:
            return False
        key = _raw(ref.key)
        return length == len(key) and packed.startswith(key, _HEAD.size)

    def _pack(self, version: ObjectVersion) -> bytes:
        ref, etag = version.ref, version.etag
        key, md5 = _raw(ref.key), md5_of(etag[1:-1]) if etag[:1] == etag[-1:] == '"' else b""
        is_sharing = len(self.frames) < _FRAMES_MAX
        seconds, date = 0, -1
        values = [] if md5 else [etag]
        headers, etags, texts = list(version.headers), [], []
        for place, pair in enumerate(version.headers):
            name, value = pair
            if value == etag:
                etags.append(place)
            elif date < 0 and name == "last-modified" and (seconds := _seconds_of(value)):
                date = place
            elif is_sharing and self._seen.get(pair):
                continue
            else:
                self._seen.put(pair, True)
                texts.append(place)
                values.append(value)
            headers[place] = shared_text(name), ""
        frame = Frame(ref.bucket, version.whole_headers, bool(md5), tuple(headers), tuple(etags), date, tuple(texts))
        number = self.number_of(frame)
        if not number or len(key) > _KEY_BYTES_MAX:
            return _packed_alone(version)
        parts = [_HEAD.pack(number, version.size, len(key)), key]
        if date >= 0:
            parts.append(_DATE.pack(seconds))
        parts.append(md5)
        for text in values:
            parts += _with_length(text)
        return b"".join(parts)

    def number_of(self, frame: Frame) -> int:
        """0: there is no room for it."""
        number = self._numbers.get(frame, 0)
        if not number and len(self.frames) < 2 * _FRAMES_MAX:
            number = self._numbers[frame] = len(self.frames)
            self.frames.append(frame)
        return number

    def unpack_once(self, packed: bytes) -> ObjectVersion:
        """As `unpack`, for a version that is not requested again.

        Raises ValueError, LookupError, struct.error: `packed` is from a file, and nothing was packed like that.
        """
        number, size, length = _HEAD.unpack_from(packed)
        frame, at = self.frames[number], _HEAD.size + length
        if not number:
            bucket, key, etag, whole, *rest = _texts_from(packed, at)
            headers = shared_headers(zip(rest[::2], rest[1::2], strict=True))
            return ObjectVersion(ObjectRef(shared_text(bucket), key), etag, size, headers, bool(whole))
        key = packed[_HEAD.size : at].decode("utf-8", "surrogatepass")
        date = etag = ""
        if frame.date >= 0:
            date = _date_of(_DATE.unpack_from(packed, at)[0])
            at += _DATE.size
        if frame.has_md5:
            etag = f'"{packed[at : at + MD5_BYTES].hex()}"'
            at += MD5_BYTES
        pairs = list(frame.headers)
        if frame.texts or not frame.has_md5:
            texts = _texts_from(packed, at)
            if not frame.has_md5:
                etag = texts.pop(0)
            for place, text in zip(frame.texts, texts, strict=True):
                pairs[place] = pairs[place][0], text
        elif at != len(packed):
            raise ValueError("more than the frame leaves open")
        for place in frame.etags:
            pairs[place] = pairs[place][0], etag
        if frame.date >= 0:
            pairs[frame.date] = pairs[frame.date][0], date
        version = _new(ObjectVersion)
        # By its constructor it would be checked again, which takes as long as all the rest.
        _set(version, "ref", _ref((frame.bucket, key)))
        _set(version, "etag", etag)
        _set(version, "size", size)
        _set(version, "headers", tuple(pairs))
        _set(version, "whole_headers", frame.whole_headers)
        return version


PACKING = Packing()
"""That of the process."""
pack, unpack, is_of = PACKING.pack, PACKING.unpack, PACKING.is_of


def number_in(packed: bytes) -> int:
    """The number of the frame."""
    return int(_NUMBER.unpack_from(packed)[0])


def _packed_alone(version: ObjectVersion) -> bytes:
    """By frame 0."""
    whole = "whole" if version.whole_headers else ""
    texts = [*version.ref, version.etag, whole]
    for pair in version.headers:
        texts += pair
    parts = [_HEAD.pack(0, version.size, 0)]
    for text in texts:
        parts += _with_length(text)
    return b"".join(parts)


# -- fields ---------------------------------------------------------------------------------------------------------


def _raw(text: str) -> bytes:
    # Unlike "surrogateescape", this gives each text bytes of its own.
    return text.encode("utf-8", "surrogatepass")


def _with_length(text: str) -> tuple[bytes, bytes]:
    raw = _raw(text)
    return _LENGTH.pack(len(raw)), raw


def _texts_from(packed: bytes, at: int) -> list[str]:
    texts = []
    while at < len(packed):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(packed, at)[0]
        texts.append(packed[start:at].decode("utf-8", "surrogatepass"))
    if at > len(packed):
        raise ValueError("the last text is cut off")
    return texts


# ETags and values that need no further check.
_PLAIN_ETAG = re.compile(rb'"[!#-~]+"')
_PLAIN = re.compile(rb"[ -~]*")


def _has_texts(packed: bytes, at: int, forms: Sequence[re.Pattern[bytes]]) -> bool:
    """Whether texts of these forms, and nothing else, follow. Raises struct.error."""
    for form in forms:
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(packed, at)[0]
        if form.fullmatch(packed, start, at) is None:
            return False
    return at == len(packed)


# The bytes between the quotes of a `_PLAIN_ETAG`.
_INNER = bytes([ord("!"), *range(ord("#"), ord("~") + 1)])


def _are_plain(tails: Sequence[bytes], rest: int, forms: list[re.Pattern[bytes]]) -> bool:
    """Whether behind `rest` bytes of each there is nothing, or one ETag, if that is the form. False: each is to be
    looked at by itself. All are checked at once: a start does this a million times."""
    lengths = set(map(len, tails))
    if not forms:
        return lengths == {rest}
    if forms != [_PLAIN_ETAG]:
        return False
    for length in lengths:
        its, size = [tail[rest:] for tail in tails if len(tail) == length], length - rest - _LENGTH.size
        if size < 3 or {each[: _LENGTH.size] for each in its} != {_LENGTH.pack(size)}:
            return False
        etags, quotes = b"".join([each[_LENGTH.size :] for each in its]), b'"' * len(its)
        if not etags[::size] == etags[size - 1 :: size] == quotes or etags.translate(None, _INNER) != 2 * quotes:
            return False
    return True


def md5_of(text: str) -> bytes:
    """Those that the text shows as hex digits, as an ETag without quotes does. Empty: it has another form."""
    if len(text) == 2 * MD5_BYTES:
        try:
            md5 = bytes.fromhex(text)
        except ValueError:
            return b""
        if md5.hex() == text:
            return md5
    return b""


_SECONDS_MAX = 2**32 - 1


def _seconds_of(date: str) -> int:
    """0: it is not in the form that `_date_of` gives it."""
    try:
        seconds = _day_of(date[:16]) + 3600 * int(date[17:19]) + 60 * int(date[20:22]) + int(date[23:25])
    except ValueError:
        return 0
    return seconds if 0 < seconds <= _SECONDS_MAX and _date_of(seconds) == date else 0


def _date_of(seconds: int) -> str:
    """As `Mon, 23 Nov 2026 20:15:07 GMT`."""
    minutes, second = divmod(seconds, 60)
    return f"{_text_of(minutes)}{second:02} GMT"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@lru_cache(maxsize=4096)
def _day_of(text: str) -> int:
    """The first second of `Mon, 23 Nov 2026`. Raises ValueError."""
    return timegm((int(text[12:16]), _MONTHS.index(text[8:11]) + 1, int(text[5:7]), 0, 0, 0))


# The objects of a dataset are often as old as each other, to the hour.
@lru_cache(maxsize=4096)
def _text_of(minutes: int) -> str:
    at = _EPOCH + timedelta(minutes=minutes)
    return f"{_WEEKDAYS[at.weekday()]}, {at.day:02} {_MONTHS[at.month - 1]} {at.year:04} {at.hour:02}:{at.minute:02}:"
