"""Bits that look random and are a function of an integer alone, the same on any machine."""

import numpy as np

# 2^64 over the golden ratio, odd: the step of SplitMix64, whose n-th output for a seed is mix(seed + n * WEYL_STEP).
WEYL_STEP = np.uint64(0x9E3779B97F4A7C15)


def mix(values: np.ndarray) -> np.ndarray:
    """64 well-mixed bits for each value: a bijection of 64-bit integers, 0 to 0.

    The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014,
    with the constants of Stafford's variant 13).

    Args:
      values: uint64 of any shape, left as they are.

    Returns:
      uint64 of that shape.
    """
    bits = values ^ (values >> np.uint64(30))
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits
