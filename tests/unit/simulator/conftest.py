from __future__ import annotations

from tests.support.seeds import first_seeds

__all__ = ["first_seeds"]
