"""Raw Outbrain files through the whole program: generated, preprocessed, learnt from, scored on displays held out."""

import json

import pytest

pytest.importorskip("nvtabular")

import main
from data.outbrain import raw
from data.outbrain.preprocess import Options, preprocess
from data.outbrain.schema import outbrain_feature_spec
from trainer import flags
from trainer.distributed import SingleProcess
from trainer.runtime import Device, Surroundings

TRAINING = (
    "--global_batch_size=512",
    "--eval_batch_size=4096",
    "--num_epochs=5",
    "--deep_hidden_units=64,32",
    "--deep_learning_rate=0.002",
    "--deep_warmup_epochs=1",
    "--affinity=disabled",
)


def test_the_teachers_signal_survives_and_is_learnt(tmp_path):
    raw.generate(str(tmp_path / "raw"), rows=60_000, seed=1)
    preprocess(str(tmp_path / "raw"), str(tmp_path / "dataset"), Options(rows_per_part=20_000))
    sizes = tmp_path / "sizes.json"
    sizes.write_text(json.dumps(dict.fromkeys(outbrain_feature_spec().categorical, 8)))
    arguments = (
        f"--embedding_sizes_file={sizes}",
        f"--dataset_path={tmp_path}/dataset",
        f"--model_dir={tmp_path}/checkpoints",
        f"--results_dir={tmp_path}/results",
        *TRAINING,
    )
    record = main.run(flags.parse(arguments), SingleProcess(), Surroundings(Device(False, "CPU")))
    assert record.map_margin_share >= 0.8
    assert record.displays == 4798 and record.displays_without_click == 0
