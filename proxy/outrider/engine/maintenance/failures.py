"""Why an object was not warmed: in words, and whether another try may go well."""

from __future__ import annotations

from outrider.core.errors import OriginBroke, S3Error, ServiceUnavailable, SlowDown, StoreUnavailable, VersionChanged
from outrider.core.origin.backoff import RETRYABLE_STATUSES
from outrider.core.origin.error_causes import code_of
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.read.version_answers import NotCacheable


class NoRoomForObject(StoreUnavailable):
    """The object does not fit, and will not when it is tried again."""


def is_unreachable(error: Exception) -> bool:
    """The origin did not answer, or will answer otherwise soon."""
    if isinstance(error, OriginRefused):
        return error.status in RETRYABLE_STATUSES
    return isinstance(error, OriginBroke | ServiceUnavailable | SlowDown)


def is_passing(error: Exception) -> bool:
    """Another try may go well."""
    is_ours = isinstance(error, VersionChanged | StoreUnavailable) and not isinstance(error, NoRoomForObject)
    return is_ours or is_unreachable(error)


def reason_of(error: Exception) -> str:
    """Why an object was not warmed, in words for a person."""
    if isinstance(error, OriginRefused):
        code = code_of(error.body)
        return f"{error.status} {code}" if code else str(error)
    if isinstance(error, VersionChanged):
        return "it is overwritten again and again"
    if isinstance(error, NotCacheable):
        return f"it cannot be cached: {error}"
    return error.text if isinstance(error, S3Error) else str(error)
