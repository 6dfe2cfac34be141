import pytest


@pytest.fixture(params=["mixed_float16", "mixed_bfloat16"])
def half_precision(request):
    """The Keras policy, in force during the test alone."""
    import keras

    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy(request.param)
    yield request.param
    keras.mixed_precision.set_global_policy(before)
