"""Bits that look random and are a function of an integer or a text alone, the same on any machine."""

import hashlib

import numpy as np

# 2^64 over the golden ratio, odd: the step of SplitMix64, whose n-th output for a seed is mix(seed + n * WEYL_STEP).
WEYL_STEP = np.uint64(0x9E3779B97F4A7C15)


def mix(values: np.ndarray) -> np.ndarray:
    """64 well-mixed bits for each value: a bijection of 64-bit integers, 0 to 0.

    The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014,
    with the constants of Stafford's variant 13).

    Args:
      values: uint64 of any shape, numpy's or cupy's, left as they are.

    Returns:
      uint64 of that shape.
    """
    bits = values ^ (values >> np.uint64(30))
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits


def seeded_bits(ids: np.ndarray, seed: int, stream: int) -> np.ndarray:
    """uint64 for each int64 id, a function of (id, seed, stream): `mix` applied to the seed, the stream and the id."""
    state = np.zeros(len(ids), np.uint64)
    for part in (seed, stream, ids):
        state = mix(state + WEYL_STEP + np.asarray(part, np.int64).astype(np.uint64))
    return state


def fractions(bits: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1), float64, from uint64 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) / 2.0**53


def text_bits(value: str) -> int:
    """64 bits of a text: the first of BLAKE2b's digest of its UTF-8 bytes, the lowest byte first."""
    return int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")
