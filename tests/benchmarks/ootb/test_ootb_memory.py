import pytest
from ootb_cases import PLACE, make_workload, run_config

from benchmarks import own_process, workloads
from benchmarks.ootb.memory import BASE_BYTES, predicted_bytes
from data import synthetic
from data.errors import InputError
from data.flat_spec import flat_spec
from trainer.config import RunConfig
from trainer.dataset import open_spec
from trainer.distributed import SingleProcess

MIB = 1 << 20


def measured_peak(config: RunConfig) -> int:
    """Peak memory of a benchmark, in a process of its own."""
    from trainer import runtime

    runtime.import_tensorflow(config.device)
    runtime.configure(config.device, threads=1)
    from benchmarks.ootb import benchmark

    return benchmark.run(config, SingleProcess(), PLACE).peak_memory_bytes[0]


def test_prediction_holds_and_is_not_far_off(tmp_path):
    """One table of 73 MiB, which Adam makes five times as much of."""
    synthetic.generate(str(tmp_path / "rows"), rows=400, seed=1, spec=flat_spec([300_000], [1], 2))
    config = run_config(
        "dlrm", tmp_path / "rows", tmp_path, embedding_dim=(64,), bottom_mlp_dims=(8, 64), optimizer="adam"
    )
    predicted = predicted_bytes(config, open_spec(config), "training")
    measured = own_process.call(measured_peak, config)
    assert predicted > BASE_BYTES + 5 * 73 * MIB
    # The process of a test holds pytest too.
    assert 0.85 * predicted < measured < 1.05 * predicted


def table_bytes(workload, **arguments):
    """The prediction without what is the same for all."""
    return predicted_bytes(workload.config, workload.spec, **arguments) - BASE_BYTES


def test_optimizers_and_ranks_take_more_than_inference():
    workload = workloads.dlrm_tiny("fixed")
    tables = 8 * 1_000_001 * 64 * 4
    inference = table_bytes(workload, mode="inference")
    assert tables < inference < 1.4 * tables
    needed = [
        table_bytes(workload.changed(optimizer=name), mode="training", world_size=ranks)
        for name, ranks in (("sgd", 1), ("adagrad", 1), ("rmsprop", 1), ("adam", 1), ("adam", 2))
    ]
    assert needed[0] > 1.4 * inference and needed[-1] > needed[-2] > needed[1] > needed[0]
    assert needed[3] > 4 * tables  # weights, two slots, temporaries


def test_batches_and_layers_count():
    small, large = (make_workload("wide_deep", global_batch_size=size) for size in (1000, 2000))
    one, two = (table_bytes(workload, mode="training") for workload in (small, large))
    # A row is the inputs of the layers, 14 + 24 columns of tables and lists: 5 copies of some 80 numbers at least.
    assert (two - one) / 1000 > 5 * 80 * 4
    assert table_bytes(large, mode="training", world_size=2) < two
    wider = make_workload("wide_deep", deep_hidden_units=(2000, 2000), global_batch_size=1)
    assert table_bytes(wider, mode="inference") > 4 * 2000 * 2000


def test_criteos_tables_cut_to_two_gibibytes():
    workload = workloads.dlrm_criteo(table_bytes=2 << 30)
    assert 2 << 30 < table_bytes(workload, mode="inference") < 3 << 30


def test_an_optimizer_that_keras_does_not_have():
    workload = make_workload("dlrm", optimizer="rowwise_adagrad")
    assert table_bytes(workload, mode="inference") > 0
    with pytest.raises(InputError, match="--optimizer=rowwise_adagrad"):
        table_bytes(workload, mode="training")


@pytest.mark.parametrize("name", ["wide_deep", "dlrm", "dcnv2"])
def test_every_model_has_a_prediction(name):
    workload = make_workload(name)
    for mode in ("training", "inference"):
        assert 0 < table_bytes(workload, mode=mode) < 30 * MIB
