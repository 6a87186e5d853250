"""The ways in which an origin differs from AWS S3, and how often each was met.

An oddity never changes a byte that a client gets. It may keep a read out of the cache: what is kept must be proved by
the reply, and what is odd but complete is relayed. Source of the list: bug reports of caches, gateways and stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Oddity(Enum):
    """A kind of odd behaviour of an origin. The name in lower case is the label of metrics; the value is a sentence for
    people whose subject is the origin."""

    # -- replies to a Range
    RANGE_AS_200 = "answers a Range with status 200 and the part alone"
    RANGE_IGNORED = "answers a Range with the whole object"
    RANGE_OTHER = "answers a Range with other bytes than were asked for"
    RANGE_UNPROVED = "answers a Range without a Content-Range that states which bytes these are, and of how many"
    RANGE_MULTIPART = "answers a Range as multipart/byteranges"
    RANGE_UNASKED = "answers a plain GET with status 206"
    # -- lengths
    LENGTH_UNKNOWN = "does not state how long a body is, so that a short one may look whole"
    LENGTH_OTHER = "sends bodies of another length than it states"
    SIZES_DIFFER = "states different sizes of an object under one ETag"
    # -- HEAD
    HEAD_WITHOUT_SIZE = "does not state sizes by HEAD"
    HEAD_SIZE_ZERO = "states by HEAD a size of 0 for objects that have bytes"
    HEAD_REFUSED = "refuses HEAD of objects that it gives by GET"
    HEAD_WITHOUT_ETAG = "does not state ETags by HEAD"
    HEAD_SIZE_OTHER = "states other sizes by HEAD than by GET"
    HEAD_ETAG_OTHER = "states other ETags by HEAD than by GET"
    # -- request headers that it does not take
    CHECKSUM_MODE_REFUSED = "refuses requests with x-amz-checksum-mode"
    IF_MATCH_REFUSED = "refuses GETs with If-Match"
    IF_MATCH_FAILS = "answers 412 to a GET with If-Match and its own ETag"
    # -- validators
    ETAG_MISSING = "sends objects without an ETag"
    ETAG_WEAK = "sends weak ETags, which do not prove that the bytes are the same"
    ETAG_MALFORMED = "sends ETags that RFC 9110 does not allow, or empty ones"
    ETAG_SHARED = "sends one ETag for different contents"
    ETAG_CHANGES = "sends another ETag with each reply"
    DATE_CHANGES = "sends another Last-Modified with each reply"
    # -- the reply as a whole
    STATUS_ODD = "answers GETs of objects with a status that no S3 sends"
    VARIES = "sends objects that vary with the client's request (Vary)"
    ENCODED = "encodes bodies on the way (Content-Encoding), though identity was asked for"
    FRAMING_ODD = "frames bodies twice (Content-Length and Transfer-Encoding)"
    HEADER_MALFORMED = "sends headers that HTTP does not allow"
    # -- LIST
    LIST_CUT_SHORT = "sends truncated LIST pages without a token for the next"
    LIST_NOT_ENCODED = "ignores encoding-type of a LIST"

    @property
    def label(self) -> str:
        return self.name.lower()


HEAD_INSUFFICIENT = (
    Oddity.HEAD_WITHOUT_SIZE, Oddity.HEAD_SIZE_ZERO, Oddity.HEAD_REFUSED, Oddity.HEAD_WITHOUT_ETAG,
    Oddity.HEAD_SIZE_OTHER, Oddity.HEAD_ETAG_OTHER,
)  # fmt: skip
"""Oddities for which versions are requested by a GET of one byte in place of a HEAD."""


class Uncached(Enum):
    """Why a read stayed uncached, apart from an oddity. The name in lower case is the label of metrics."""

    CHANGING = "the object changed again and again under the read"
    REFUSED = "the origin refused a HEAD, and the read was forwarded for its reason"
    EMPTY = "the object has no byte to keep"
    RANGE_FORM = "the Range has a form that stores read differently"
    NO_STORE = "its Cache-Control says no-store"
    CONTENT = "the bytes did not match the bucket's checksum, twice"

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(slots=True)
class Met:
    """`times`: how often it was met. `uncached`: how many reads stayed uncached because of it. `example`: the first
    bucket or object that it was met with."""

    example: str
    times: int = 0
    uncached: int = 0


class OddityCounts:
    """The oddities of one origin. Called from one thread."""

    def __init__(self) -> None:
        self.met: dict[Oddity, Met] = {}
        """In the order in which they were first met."""

    def note(self, kind: Oddity, example: str, *, uncached: bool) -> bool:
        """Count one. Returns whether a warning is due now: at the first, and at each thousandfold of it."""
        met = self.met.setdefault(kind, Met(example))
        met.times += 1
        met.uncached += uncached
        return met.times == 1 or met.times in _REPORTED_AGAIN


# The count that goes with a warning would otherwise never be more than 1.
_REPORTED_AGAIN = frozenset((1_000, 1_000_000, 1_000_000_000))


def sentence(kind: Oddity, uncached: int = 0) -> str:
    """For people: `the origin does not state sizes by HEAD: 1,204 reads uncached`."""
    text = f"the origin {kind.value}"
    return text if uncached == 0 else f"{text}: {uncached:,} read{'s' if uncached != 1 else ''} uncached"
