"""The wishes of a pod: its labels and annotations under `outrider.dev/`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from outrider.core.errors import InvalidArgument
from outrider.core.maintenance.object_list import OBJECTS_MAX, count_of

PREFIX = "outrider.dev/"
SCHEDULE, INJECT = "outrider.dev/schedule", "outrider.dev/inject"
OPERATOR = "outrider.dev/operator"
"""The annotation by which the webhook says which operator opens the gate of the pod."""
DATA, WARM, DEADLINE = "outrider.dev/data", "outrider.dev/warm", "outrider.dev/warm-deadline"
_LABELS, _ANNOTATIONS = (SCHEDULE, INJECT), (DATA, WARM, DEADLINE)
DEADLINE_S = 15 * 60.0
_DEADLINE_MAX_S = 24 * 3600.0
_SHARE = re.compile(r"(?:(0(?:\.\d+)?|1(?:\.0+)?)|(\d{1,3}(?:\.\d+)?) ?%)")
_SECONDS = re.compile(r"(\d{1,6})(s|m|h)")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
# The list of URLs is given to the cache for each pod anew.
_DATA_CHARS_MAX = 8192


class WishError(ValueError):
    """A wish that makes no sense. The text names the label or annotation, and says what would be right."""


class Inject(StrEnum):
    SIDECAR = "sidecar"
    ENDPOINT = "endpoint"


@dataclass(frozen=True, slots=True)
class Wishes:
    """`data`: the URLs that the pod reads, in their order. `is_near`: it should run near them. `warm`: the share of
    their bytes, up to 1.0, that is to be cached before it is scheduled; None: it does not wait. It waits for
    `deadline_s` at most."""

    data: tuple[str, ...] = ()
    is_near: bool = False
    warm: float | None = None
    deadline_s: float = DEADLINE_S
    inject: Inject | None = None
    missing: str | None = None
    """The label without which its data has no effect, in words for a person; None: nothing is missing."""


def wishes_of(labels: Mapping[str, str | None], annotations: Mapping[str, str | None]) -> Wishes:
    """None as a value counts as an empty text, as in Kubernetes. Raises WishError."""
    return _wishes_of(*({name: value or "" for name, value in of.items()} for of in (labels, annotations)))


def _wishes_of(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Wishes:
    for kind, given, known in (("label", labels, _LABELS), ("annotation", annotations, _ANNOTATIONS)):
        for name in given:
            if name.startswith(PREFIX) and name not in known and name != OPERATOR:
                raise WishError(f"{kind} {name} is unknown; there are {', '.join(known)}")
    schedule = labels.get(SCHEDULE, "false")
    if schedule not in ("true", "false"):
        raise WishError(f'label {SCHEDULE}: {schedule!r} is neither "true" nor "false"')
    is_near = schedule == "true"
    inject = _inject(labels)
    data = _data(annotations.get(DATA, ""))
    if is_near and not data:
        raise WishError(f"annotation {DATA} is missing: the s3:// URLs that the pod reads, with blanks between them")
    warm = _share(annotations[WARM]) if WARM in annotations else None
    if warm is not None and not is_near:
        raise WishError(f'annotation {WARM} needs the label {SCHEDULE}: "true"')
    if warm is not None and inject is Inject.SIDECAR:
        raise WishError(
            f"annotation {WARM} warms the cache of the nodes, and {INJECT}: sidecar gives the pod one of its own"
        )
    # The label "false" says that this is meant.
    missing = f'annotation {DATA} has no effect without the label {SCHEDULE}: "true"' if data else None
    return Wishes(
        data, is_near, warm, _seconds(annotations.get(DEADLINE)), inject, None if SCHEDULE in labels else missing
    )


def _inject(labels: Mapping[str, str]) -> Inject | None:
    if INJECT not in labels:
        return None
    try:
        return Inject(labels[INJECT])
    except ValueError:
        raise WishError(f"label {INJECT}: {labels[INJECT]!r} is neither sidecar nor endpoint") from None


def _data(text: str) -> tuple[str, ...]:
    if len(text) > _DATA_CHARS_MAX:
        raise WishError(f"annotation {DATA} is longer than {_DATA_CHARS_MAX} characters; name a prefix")
    urls = tuple(dict.fromkeys(text.split()))
    names = 0
    for url in urls:
        try:
            names += count_of(url)
        except (InvalidArgument, UnicodeError):
            raise WishError(
                f"annotation {DATA}: {url[:200]!r} is not s3://BUCKET/KEY, s3://BUCKET/PREFIX/ or a template of such"
            ) from None
    if names > OBJECTS_MAX:
        raise WishError(f"annotation {DATA} names more than {OBJECTS_MAX} objects; name a prefix")
    return urls


def _share(text: str) -> float:
    matched = _SHARE.fullmatch(text.strip())
    if matched is not None:
        share = float(matched[1]) if matched[1] else float(matched[2]) / 100
        if 0 < share <= 1:
            return share
    raise WishError(f'annotation {WARM}: {text!r} is no share of the data, like "0.95" or "95 %"')


def _seconds(text: str | None) -> float:
    if text is None:
        return DEADLINE_S
    matched = _SECONDS.fullmatch(text.strip())
    seconds = float(matched[1]) * _UNIT_S[matched[2]] if matched else 0.0
    if not 0 < seconds <= _DEADLINE_MAX_S:
        raise WishError(f"annotation {DEADLINE}: {text!r} is no time up to a day, like 15m")
    return seconds
