"""Out of the box: the models in plain Keras, written the way a regular engineer writes them, with no tuning.

    python -m benchmarks.ootb FLAGS      FLAGS of main.py, --benchmark among them

One keras.layers.Embedding a feature, Dense layers, Keras's optimizers, `compile`, `fit` and `predict`. Batches
are those that our own training reads, in the same order: reading parquet is not what is compared.
"""
