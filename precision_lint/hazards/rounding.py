"""What the formats hold: how numbers round in float16 and bfloat16, and where their ranges end."""

from __future__ import annotations

import math
import struct
from typing import Final

from precision_lint.domains.dtypes import BFLOAT16, FLOAT16, FLOAT32

FLOAT16_MAX: Final = 65504.0
FLOAT16_OVERFLOWS: Final = 65520.0
"""From here on a number rounds to infinity in float16."""
VANISHES: Final = 2.0**-25
"""Up to here a number rounds to 0 in float16."""
RECIPROCAL: Final = 1 / 65520.0
"""Below this the reciprocal of a number overflows in float16 (1.53e-5)."""
EXACT: Final = {FLOAT16: 2048.0, BFLOAT16: 256.0, FLOAT32: 2.0**24}
"""Up to here every integer is represented."""
MAXIMA: Final = {
    FLOAT16: FLOAT16_MAX,
    BFLOAT16: 3.3895313892515355e38,
    FLOAT32: 3.4028234663852886e38,
}


def rounded(value: float, dtype: int) -> float:
    """A number as a dtype holds it."""
    if value != value or math.isinf(value):
        return value
    if dtype == FLOAT16:
        if abs(value) >= FLOAT16_OVERFLOWS:
            return math.copysign(math.inf, value)
        return float(struct.unpack("<e", struct.pack("<e", value))[0])
    if dtype == BFLOAT16:
        if abs(value) > MAXIMA[FLOAT32]:
            return math.copysign(math.inf, value)
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0])
    return value
