"""A second decoder, written from PROTOCOL.md alone: one element after the other, in Python's own numbers.

The product, sum, difference or quotient of two float32 in float64, rounded to float32, is the one that IEEE 754 asks
for: float64 has more than twice the bits, and two.
"""

import math
import struct
from collections.abc import Iterator

LENGTHS = {"float32": (1, 4), "int4": (256, 130), "sign": (256, 34), "sparse16": (4096, 260), "sparse64": (4096, 68)}
"""Elements and bytes of a block."""
SCALES = {"float32": 0, "int4": 1, "sign": 1, "sparse16": 2, "sparse64": 2}


def fl(value: float) -> float:
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def half(value: float) -> float:
    rounded: float = struct.unpack("<e", struct.pack("<e", value))[0]
    return rounded


def blocks_of(codec: str, payload: bytes) -> Iterator[bytes]:
    num_bytes = LENGTHS[codec][1]
    return (payload[start : start + num_bytes] for start in range(0, len(payload), num_bytes))


def is_valid(codec: str, payload: bytes) -> bool:
    for block in blocks_of(codec, payload):
        if codec == "float32":
            if not math.isfinite(struct.unpack("<f", block)[0]):
                return False
            continue
        bits = struct.unpack_from(f"<{SCALES[codec]}H", block)
        if any(each > 0x7BFF for each in bits) or bits[0] > bits[-1]:
            return False
    return True


def values_of(codec: str, payload: bytes) -> Iterator[tuple[int, float]]:
    """Each element that has a value, those that fill up the last block among them."""
    for number, block in enumerate(blocks_of(codec, payload)):
        first = number * LENGTHS[codec][0]
        scales = struct.unpack_from(f"<{SCALES[codec]}e", block)
        body = block[2 * SCALES[codec] :]
        if codec == "float32":
            yield first, struct.unpack("<f", body)[0]
        elif codec == "int4":
            for place, byte in enumerate(body):
                yield first + place, scales[0] * ((byte & 15) - 8)
                yield first + place + 128, scales[0] * ((byte >> 4) - 8)
        elif codec == "sign":
            for place in range(256):
                yield first + place, -scales[0] if body[place // 8] >> place % 8 & 1 else scales[0]
        else:
            low, high = scales
            group, place_bits, num_levels = (16, 4, 8) if codec == "sparse16" else (64, 6, 2)
            for number_of_group, byte in enumerate(body):
                level = byte >> place_bits + 1
                size = half(fl(fl(fl(fl(high - low) * level) / (num_levels - 1)) + low))
                is_negative = byte >> place_bits & 1
                yield first + group * number_of_group + byte % group, -size if is_negative else size


def add(codec: str, payload: bytes, weight: float, out: list[float]) -> None:
    for element, value in values_of(codec, payload):
        if element < len(out):
            out[element] = fl(out[element] + fl(fl(weight) * value))
