"""Fixtures of the tests that run things on a small dataset."""

import pytest

# Modules are imported in the fixtures: most tests of this folder need no TensorFlow.


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Folder of the dataset of small_runs."""
    import small_runs

    folder = tmp_path_factory.mktemp("data")
    small_runs.make_dataset(folder)
    return folder


@pytest.fixture
def default_precision():
    """A run sets Keras's policy for the whole process."""
    import keras

    yield
    keras.mixed_precision.set_global_policy("float32")


@pytest.fixture
def idle(monkeypatch, default_precision):
    """Runs compute nothing; see small_runs.IdleSteps."""
    import small_runs

    with small_runs.idling(monkeypatch) as idle:
        yield idle


@pytest.fixture
def train(dataset, tmp_path, idle, monkeypatch):
    """train(**settings): a training run; its record, and its configuration as `train.config`.

    With a communicator of several ranks, of which there is but one, nothing is evaluated.
    """

    import small_runs

    from trainer import experiment
    from trainer.evaluate import Figures

    def run(comm=None, **settings):
        if comm is not None:
            figures = Figures(0.5, 1.0, 1.0, 0.5, 0.5, 1, 0, 10)
            monkeypatch.setattr(experiment, "evaluate", lambda *args, **kwargs: figures)
        run.config = small_runs.configure(dataset, tmp_path, **settings)
        return small_runs.open_experiment(run.config, comm=comm).train()

    return run
