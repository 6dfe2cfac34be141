"""Keras models that return logits. Imports TensorFlow, Keras, numpy and the data room only."""
