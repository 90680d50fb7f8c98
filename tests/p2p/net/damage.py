"""Strategies for plain values, and for damage of bytes."""

from hypothesis import strategies as st

INTS = st.integers(-(2**63), 2**64 - 1)
LEAVES = st.none() | st.booleans() | INTS | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=5)
MUTATIONS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4)
"""Mutations of bytes: positions, and their new values."""


def mutate(frame: bytes, changes: list[tuple[int, int]]) -> bytes:
    mutant = bytearray(frame)
    for place, value in changes:
        mutant[place % len(mutant)] = value
    return bytes(mutant)
