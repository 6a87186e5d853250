"""The attributes of a trace's span that name the requested object. Source: OpenTelemetry semantic conventions, "HTTP"
and "AWS S3"."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from outrider.core.ahead.dataset.templates import template_of

Attributes = Mapping[str, str | int | float]


@lru_cache(maxsize=4096)
def subject(bucket: str | None, key: str) -> Attributes:
    """The result is shared by all callers, so it must not be changed."""
    attributes = {"aws.s3.bucket": bucket or "", "aws.s3.key": key, "outrider.template": template_of(key)}
    return {name: unicode_of(value) for name, value in attributes.items() if value}


def unicode_of(text: str) -> str:
    """Replaces what is no UTF-8: protobuf refuses a whole batch of spans for one such key."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
