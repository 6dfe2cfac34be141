import numpy as np
import pytest

from data.hashing import WEYL_STEP, fractions, mix, seeded_bits, text_bits


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


def test_seeded_bits_are_splitmix64_of_seed_stream_and_id():
    def mix(state):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            state = (state ^ (state >> shift)) * factor % 2**64
        return state ^ (state >> 31)

    ids = [0, 1, 2, 12345, 2**62]
    expected = []
    for number in ids:
        state = 0
        for part in (7, 1, number):
            state = mix((state + 0x9E3779B97F4A7C15 + part) % 2**64)
        expected.append((state >> 11) / 2**53)
    assert fractions(seeded_bits(np.array(ids), 7, 1)).tolist() == expected


def test_seeded_bits_are_even_and_their_streams_are_independent():
    ids = np.arange(1, 20001)
    split, fold = (fractions(seeded_bits(ids, 0, stream)) for stream in (0, 1))
    assert np.mean(split < 0.2) == pytest.approx(0.2, abs=0.01)
    assert np.mean(fold[split < 0.2]) == pytest.approx(0.5, abs=0.02)
    assert abs(np.corrcoef(split, fold)[0, 1]) < 0.03


def test_bits_of_texts_are_those_of_blake2b():
    # From the command: printf %s TEXT | b2sum -l 64, its bytes read from the last to the first.
    assert [hex(text_bits(text)) for text in ("", "US>CA>807")] == ["0xb4b2797457a0a6e4", "0xec09029326885d2b"]
