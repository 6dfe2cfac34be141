import numpy as np
import tensorflow as tf

from trainer.direct_calls import DirectCalls


def test_each_shape_and_type_has_the_result_of_its_own_trace():
    factor = tf.Variable(2.0)

    @tf.function(reduce_retracing=True, autograph=False)
    def traced(values, number):
        return {"doubled": values * tf.cast(factor, values.dtype), "next": number + 1}

    calls = DirectCalls(traced)
    arrays = [np.arange(3.0), np.arange(3.0, dtype="f4"), np.ones((2, 2), "f4"), np.zeros((0,), "f4"), np.arange(5.0)]
    for _ in range(2):
        for number, array in enumerate(arrays):
            found = calls(tf.constant(array), tf.constant(number))
            expected = traced(tf.constant(array), tf.constant(number))
            assert found["doubled"].dtype == array.dtype and found["next"] == number + 1
            np.testing.assert_array_equal(found["doubled"], expected["doubled"])
            np.testing.assert_array_equal(found["doubled"], array * float(factor.numpy()))
        factor.assign(3.0)


def test_a_shape_that_comes_again_is_not_traced_again():
    traces = []

    @tf.function(reduce_retracing=True, autograph=False)
    def traced(values):
        traces.append(values.shape)
        return values + 1

    calls = DirectCalls(traced)
    for _ in range(3):
        for rows in (4, 3):  # whole batches and the rest of an epoch
            assert calls(tf.zeros((rows, 2))).shape == (rows, 2)
    assert len(traces) == 2
    assert calls(tf.zeros((1, 2))).shape == (1, 2)
    assert len(traces) == 2, "the second trace was one for any number of rows"


def test_a_shape_is_asked_of_the_function_once():
    asked = []

    class Function:
        def get_concrete_function(self, *tensors):
            asked.append([tensor.shape for tensor in tensors])
            return lambda values: values

    calls = DirectCalls(Function())
    for _ in range(3):
        calls(tf.zeros((2,)))
    assert asked == [[(2,)]]
