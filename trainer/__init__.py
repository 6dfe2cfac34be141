"""How a model is run: configuration, distribution, optimizers, steps, metrics and the loops."""
