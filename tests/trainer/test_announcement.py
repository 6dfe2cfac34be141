import dataclasses

import pytest

from trainer.announcement import first_line
from trainer.config import RunConfig
from trainer.distributed import SingleProcess
from trainer.gpu_settings import GpuSettings
from trainer.runtime import Device, Surroundings

CPU = Device(has_gpu=False, description="CPU, 2 threads a rank")
GPU = Device(has_gpu=True, description="GPU NVIDIA X")
TWO = SingleProcess(rank=0, size=2, description="Horovod over Gloo")


def line(comm=None, device=CPU, place=None, **settings):
    return first_line(RunConfig.from_flat(settings), comm or SingleProcess(), place or Surroundings(device))


def test_everything_in_its_place():
    assert line(global_batch_size=4096) == (
        "training of wide_deep | CPU, 2 threads a rank | float32 | 1 rank (single process) | "
        "batch 4096 global, 4096 per rank | learning rates: wide 0.02, deep 0.00012"
    )


def test_ranks_share_the_batch():
    assert " | 2 ranks (Horovod over Gloo) | batch 4096 global, 2048 per rank | " in line(TWO, global_batch_size=4096)
    assert " | batch 4097 global, 2048 to 2049 per rank | " in line(TWO, global_batch_size=4097)


@pytest.mark.parametrize(
    ("mode", "beginning", "batch"),
    [
        ({}, "training of wide_deep | ", 64),
        ({"evaluate": True}, "evaluation of wide_deep | ", 50),
        ({"benchmark": True}, "benchmark of training, wide_deep | ", 64),
        ({"benchmark": True, "evaluate": True}, "benchmark of evaluation, wide_deep | ", 50),
    ],
)
def test_what_is_done_on_which_batch(mode, beginning, batch):
    text = line(global_batch_size=64, eval_batch_size=50, **mode)
    assert text.startswith(beginning) and f"| batch {batch} global, {batch} per rank |" in text


def test_precision_and_compilation():
    assert " | float32, XLA | " in line(xla=True)
    assert " | mixed_float16 (emulated on a CPU: slower than float32) | " in line(amp=True)
    assert " | mixed_bfloat16 (emulated on a CPU: slower than float32), XLA | " in line(
        amp=True, amp_dtype="bfloat16", xla=True
    )
    tf32 = dataclasses.replace(GPU, gpu=GpuSettings(True, "bfc", memory_growth=True, l2_fetch_granularity=128))
    assert " | float32, TF32, XLA | " in line(xla=True, device=tf32)
    assert " | mixed_float16, TF32 | " in line(amp=True, device=tf32)
    assert " | mixed_float16 | " in line(amp=True, device=GPU) and " | GPU NVIDIA X | " in line(device=GPU)


@pytest.mark.parametrize(
    ("scaling", "rates"),
    [
        ("none", "wide 0.02, deep 0.00012"),
        ("linear", "wide 0.000625, deep 3.75e-06"),
        ("sqrt", "wide 0.00353553, deep 2.12132e-05"),
    ],
)
def test_learning_rates_are_the_scaled_ones(scaling, rates):
    assert line(lr_scaling=scaling, global_batch_size=4096).endswith(f"learning rates: {rates}")


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({"model": "dlrm"}, "learning rate 24, sgd"),
        ({"model": "dlrm", "optimizer": "rowwise_adagrad", "learning_rate": 0.5}, "learning rate 0.5, rowwise_adagrad"),
        ({"model": "dlrm", "lr_scaling": "linear", "global_batch_size": 4096}, "learning rate 1.5, sgd"),
        (
            {"model": "dcnv2"},
            "learning rate 0.0001, adam "
            "(lazy on embedding tables: rows that a batch does not look up keep their state)",
        ),
    ],
)
def test_the_rate_of_one_optimizer(settings, rate):
    assert line(**settings).endswith(f" per rank | {rate}")


def test_a_preset_is_named():
    assert line(model="dlrm", preset="tiny") == (
        "training of dlrm (preset tiny) | CPU, 2 threads a rank | float32 | 1 rank (single process) | "
        "batch 64 global, 64 per rank | learning rate 0.01, sgd"
    )
    assert line(model="dcnv2", preset="criteo", benchmark=True).startswith(
        "benchmark of training, dcnv2 (preset criteo) |"
    )


@pytest.mark.parametrize("model", ["wide_deep", "dlrm"])
def test_where_tables_are_not_on_every_rank(model):
    said = " | 2 ranks (Horovod over Gloo), embedding_parallelism model | batch "
    assert said in line(TWO, model=model, embedding_parallelism="model")
    assert "embedding" not in line(TWO, model=model, embedding_parallelism="data")


def test_what_fell_back_and_what_has_no_effect_come_last():
    place = Surroundings(CPU, fell_back=("model_dir ./checkpoints", "x 1"), without_effect=("cpu (no GPU here)",))
    assert line(place=place).endswith(
        " | fell back: model_dir ./checkpoints, x 1 | without effect here: cpu (no GPU here)"
    )
