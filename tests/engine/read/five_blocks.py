"""An object of five blocks and a part of one, for tests of its reads."""

from __future__ import annotations

from tests.support.engine import BLOCK
from tests.support.fakes import RAMP, ramp

SIZE = 5 * BLOCK + 777
DATA = RAMP[:SIZE]
OTHER = ramp(SIZE, start=17)
