"""Keras models that return logits. Imports TensorFlow and data.feature_spec only."""
