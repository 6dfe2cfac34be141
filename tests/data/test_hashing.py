import numpy as np
import pytest

from data.hashing import WEYL_STEP, mix


# The first outputs of SplitMix64 as its authors' generator and others publish them.
@pytest.mark.parametrize(
    ("seed", "outputs"),
    [
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]),
        (1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]),
    ],
)
def test_golden_values_of_the_generator(seed, outputs):
    states = np.arange(1, 5, dtype=np.uint64) * WEYL_STEP + np.uint64(seed)
    mixed = mix(states)
    assert mixed.dtype == np.uint64
    assert mixed.tolist() == outputs


def test_every_value_can_be_mixed_back():
    def unshift(bits, by):
        result = bits
        for _ in range(64 // by):
            result = bits ^ (result >> by)
        return result

    def unmix(bits):
        bits = unshift(bits, 31) * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
        bits = unshift(bits, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
        return unshift(bits, 30)

    values = np.random.default_rng(0).integers(0, 2**64, 200, dtype=np.uint64)
    values[:3] = 0, 1, 2**64 - 1
    assert [unmix(bits) for bits in mix(values).tolist()] == values.tolist()
    assert mix(values)[0] == 0


def test_any_shape_and_the_argument_is_left_as_it_is():
    values = np.arange(6, dtype=np.uint64).reshape(2, 3)
    assert mix(values).shape == (2, 3)
    assert mix(values[:0]).shape == (0, 3)
    np.testing.assert_array_equal(mix(values).ravel(), mix(values.ravel()))
    np.testing.assert_array_equal(values, np.arange(6, dtype=np.uint64).reshape(2, 3))
