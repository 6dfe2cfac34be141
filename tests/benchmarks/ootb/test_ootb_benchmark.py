import dataclasses
import json
import math

import keras
import numpy as np
import pytest
from ootb_cases import BATCH, PLACE, make_dataset, run_config

import main
from benchmarks.ootb import benchmark, memory, weights
from benchmarks.our_steps import weights as our_weights
from data.errors import InputError
from trainer.assembly import make_model, place_tables
from trainer.distributed import SingleProcess


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    make_dataset(folder)
    return folder


def run(config, comm=None):
    """The record, which must be the one in result.json."""
    record = benchmark.run(config, comm or SingleProcess(), PLACE)
    with open(f"{config.output.results_dir}/result.json", encoding="utf-8") as file:
        written = json.load(file)
    assert written == json.loads(record.to_json())
    return record


def test_training_has_what_our_benchmark_has(dataset, tmp_path, capsys):
    config = run_config("wide_deep", dataset, tmp_path, benchmark_name="small")
    record = run(config)
    identity = record.identity
    assert (identity.model, identity.mode, identity.implementation) == ("wide_deep", "training", "ootb")
    assert identity.config == "small" and record.config == config.flat()
    assert (record.warmup_steps, record.measured_steps, record.requested_steps) == (2, 4, 6)
    assert len(record.step_times_ms) == 4 and record.missing_steps == 0
    assert record.samples_per_sec == pytest.approx(4 * BATCH / (sum(record.step_times_ms) / 1000))
    assert record.rank_step_ms == (record.step_ms["p50"],)
    assert 0.3 < record.loss < 1.5 and record.distinct_rows == 6 * BATCH and record.data_source == "generated"
    assert (record.device, record.precision, record.world_size) == ("CPU, in a test", "float32", 1)
    assert record.environment["versions"]["keras"] == keras.__version__ and record.peak_memory_bytes[0] > 2**27
    ours = main.run(run_config("wide_deep", dataset, tmp_path), SingleProcess(), PLACE)
    lacking = {
        field.name
        for field in dataclasses.fields(record)
        if getattr(record, field.name) is None and getattr(ours, field.name) is not None
    }
    assert lacking == {"input_wait_share", "predicted_alltoall_bytes", "settings_in_force", "trained"}
    said = capsys.readouterr().out
    assert said.startswith("benchmark of training out of the box, wide_deep | Keras ") and "ootb" in said


@pytest.mark.parametrize("name", ["dlrm", "dcnv2"])
def test_both_implementations_train_on_the_same_batches(dataset, tmp_path, monkeypatch, name):
    """From the same weights they come to the same loss."""
    config = run_config(name, dataset, tmp_path)
    real = benchmark.make_variables

    def ours_instead(model, spec):
        real(model, spec)
        comm = SingleProcess()
        ours = make_model(config, spec, comm, place_tables(config, spec, comm, None))
        weights.load(model, our_weights(ours), spec)

    expected = main.run(config, SingleProcess(), PLACE).loss
    monkeypatch.setattr(benchmark, "make_variables", ours_instead)
    assert run(config).loss == pytest.approx(expected, abs=1e-4)


def test_inference_scores_each_row_of_a_pass_once(dataset, tmp_path):
    config = run_config("dlrm", dataset, tmp_path, evaluate=True, eval_batch_size=50, benchmark_steps=9)
    record = run(config)
    assert record.identity.mode == "inference" and record.global_batch_size == 50 and record.loss is None
    assert (record.warmup_steps, record.measured_steps) == (2, 7)
    rows = record.samples_per_sec * sum(record.step_times_ms) / 1000
    steps = math.ceil(record.distinct_rows / 50)
    assert 1 < steps < 7 and record.distinct_rows % 50 and rows == pytest.approx(round(rows))
    assert record.passes == pytest.approx((rows + 2 * 50) / record.distinct_rows)
    assert any("Untrained" in note for note in record.notes)


def test_seconds_end_it_and_count_as_asked_for(dataset, tmp_path):
    config = run_config("dlrm", dataset, tmp_path, benchmark_steps=400, benchmark_seconds=1e-9)
    record = run(config)
    assert record.measured_steps == 5 and record.requested_steps == 7 and record.missing_steps == 0


def test_the_seed_decides_the_initial_weights(dataset, tmp_path):
    one, again, other = (
        run(run_config("dlrm", dataset, tmp_path, benchmark_steps=3, seed=seed)).loss for seed in (1, 1, 2)
    )
    assert one == again != other


def test_several_ranks_go_through_the_loop(dataset, tmp_path, monkeypatch):
    """Two processes stand side by side in tests/ranks; here the other one has nothing to add."""

    class Second(SingleProcess):
        broadcast = 0

        def broadcast_variables(self, variables):
            self.broadcast += len(variables)

        def allgather_object(self, value):
            return [value, value]

    comm = Second(rank=0, size=2, local_size=2)
    record = run(run_config("dlrm", dataset, tmp_path), comm)
    assert record.world_size == 2 and len(record.rank_step_ms) == 2 and 0 <= record.input_wait_share <= 1
    assert comm.broadcast > 10
    comm = Second(rank=0, size=2, local_size=2)
    record = run(run_config("dlrm", dataset, tmp_path, evaluate=True, benchmark_steps=4), comm)
    assert record.measured_steps == 2 and comm.broadcast > 10 and record.auc is None


def test_what_the_machine_cannot_hold_is_refused_before_it_is_made(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark.machine, "read_available_memory_bytes", lambda: 10)
    monkeypatch.setattr(benchmark, "build_model", lambda *given: pytest.fail("the model was made"))
    with pytest.raises(InputError, match=r"feature_spec.yaml: training in plain Keras needs about .* GiB a rank"):
        benchmark.run(run_config("dlrm", dataset, tmp_path), SingleProcess(), PLACE)


def test_memory_of_a_machine_is_shared_by_its_ranks(dataset, tmp_path, monkeypatch):
    config = run_config("dlrm", dataset, tmp_path)
    spec = benchmark.open_spec(config)
    needed = memory.predicted_bytes(config, spec, "training", 2) - memory.BASE_BYTES
    two = SingleProcess(rank=0, size=2, local_size=2)
    for available, fits in ((2 * needed + 1, True), (2 * needed - 2, False)):
        monkeypatch.setattr(benchmark.machine, "read_available_memory_bytes", lambda given=available: given)
        if fits:
            benchmark.check_memory(config, spec, two, has_gpu=False)
        else:
            with pytest.raises(InputError):
                benchmark.check_memory(config, spec, two, has_gpu=False)


def test_steps_with_overflown_gradients_are_not_updates():
    variable = keras.Variable(np.ones(2, np.float32))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build([variable])
    for gradient in (1.0, np.inf, 1.0):
        optimizer.apply([keras.ops.full((2,), gradient)], [variable])
    assert benchmark.updates(optimizer) == 2
    plain = keras.optimizers.SGD(0.1)
    plain.build([variable])
    plain.apply([keras.ops.ones((2,))], [variable])
    assert benchmark.updates(plain) == 1


def test_mixed_precision_trains_with_a_loss_scale(dataset, tmp_path):
    policy = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        record = run(run_config("wide_deep", dataset, tmp_path, amp=True, benchmark_steps=4))
    finally:
        keras.mixed_precision.set_dtype_policy(policy)
    assert record.precision == "mixed_float16" and 0.3 < record.loss < 1.5
