"""All targets: importing this registers them."""

from __future__ import annotations

from tests.fuzz import body_bytes, disk_bytes, member_bytes, origin_bytes, request_bytes
from tests.fuzz.target import TARGETS

__all__ = ["TARGETS", "body_bytes", "disk_bytes", "member_bytes", "origin_bytes", "request_bytes"]
