"""A record's configuration is run again as it was; what is no record is refused in one line."""

import json

import pytest

from data.errors import InputError
from trainer import flags
from trainer.config import RunConfig, fall_back_batch_sizes, fall_back_directories
from trainer.records import Identity, Record


@pytest.fixture
def write(tmp_path):
    """write(document): path of a file that holds it as JSON."""

    def write(document):
        path = tmp_path / "result.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path

    return write


def record_of(line):
    """The record that a run of this command line would leave, as JSON."""
    config = flags.parse(line.split())
    config, _ = fall_back_batch_sizes(fall_back_directories(config)[0], has_gpu=False)
    return config, json.loads(Record(identity=Identity("m", "training"), config=config.flat()).to_json())


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--dataset_type=synthetic --synthetic_rows=900 --benchmark --benchmark_seconds=2 --deep_hidden_units=8,4 --amp",
        "--model=dlrm --preset=tiny --embedding_parallelism=model --row_slice_threshold=7 --evaluate",
        "--model=dlrm --preset=tiny --learning_rate=24",
        "--model=dcnv2 --synthetic_dataset_cardinalities=7,9 --synthetic_dataset_hotness=1,2 --num_cross_layers=2",
        "--model=dlrm --synthetic_feature_spec=f.yaml --preset=criteo",
        "--deep_warmup_steps=3 --max_steps=4 --data_parallel_threshold=0 --results_dir=r --model_dir=m",
    ],
)
def test_the_whole_configuration_comes_back_wherever_it_runs(write, line):
    config, record = record_of(line)
    again = flags.parse([f"--config={write(record)}", "--results_dir=elsewhere"])
    assert again.flat() == config.flat() | {"results_dir": "elsewhere"}
    # A machine with other folders and devices changes nothing of it.
    assert fall_back_directories(again)[0] == again
    assert fall_back_batch_sizes(again, has_gpu=False)[0] == again


def test_the_records_folder_is_not_written_over(write):
    _, record = record_of("--results_dir=precious")
    assert flags.parse([f"--config={write(record)}"]).output.results_dir == RunConfig().output.results_dir


def test_given_is_what_the_model_would_not_have_by_itself(write):
    _, record = record_of("--model=dlrm --preset=tiny --learning_rate=0.5 --amp")
    given = flags.parse([f"--config={write(record)}", "--seed=0"]).given
    preset = flags.parse(["--model=dlrm", "--preset=tiny"]).given
    assert given == preset | {"amp", "learning_rate", "seed", "model_dir"}


def test_flags_come_before_the_record(write):
    _, record = record_of("--model=dlrm --global_batch_size=64 --learning_rate=0.5")
    path = write(record)
    for line in ([f"--config={path}", "--global_batch_size=32"], ["--global_batch_size=32", "--config", str(path)]):
        config = flags.parse(line)
        assert (config.training.global_batch_size, config.training.learning_rate) == (32, 0.5)
        assert {"global_batch_size", "learning_rate"} <= config.given


def test_a_result_of_the_suite_has_a_record_too(write):
    config, record = record_of("--num_epochs=3")
    again = flags.parse([f"--config={write({'cell': {}, 'status': 'ok', 'record': record})}"])
    assert again.training.num_epochs == 3 and again.model == config.model


def test_a_line_of_records_is_picked_by_its_number(write):
    results = [{"cell": {}, "record": record_of(f"--num_epochs={epochs}")[1]} for epochs in (3, 4)]
    path = write("\n".join(map(json.dumps, results)) + "\n")
    for line, epochs in ((1, 3), (2, 4)):
        assert flags.parse([f"--config={path}:{line}"]).training.num_epochs == epochs
    for line in (0, 3):
        with pytest.raises(InputError, match="has 2 lines, counted from 1: name one of them"):
            flags.parse([f"--config={path}:{line}"])
    with pytest.raises(InputError, match=r"not a JSON document.*FILE:LINE"):
        flags.parse([f"--config={path}"])


def test_a_record_of_an_older_version_lacks_settings_and_has_their_defaults(write):
    _, record = record_of("--num_epochs=3")
    del record["config"]["benchmark_seconds"], record["config"]["data_shards"]
    again = flags.parse([f"--config={write(record)}"])
    assert again.mode.benchmark_seconds is None and again.data.data_shards == RunConfig().data.data_shards


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("", "not a JSON document"),
        ("[" * 100_000, "not a JSON document"),
        ([], "holds no configuration"),
        ({}, "holds no configuration"),
        ({"config": None}, "holds no configuration"),
        ({"config": {}}, "holds no configuration"),
        ({"cell": {}, "record": {}}, "holds no configuration"),
        ({"config": {"speed": 3}}, "config.speed is no setting"),
        ({"config": {"num_epochs": "3"}}, 'config.num_epochs is "3", which is none of its type'),
        ({"config": {"num_epochs": True}}, "config.num_epochs is true"),
        ({"config": {"num_epochs": 3.5}}, "config.num_epochs is 3.5"),
        ({"config": {"amp": 1}}, "config.amp is 1"),
        ({"config": {"max_steps": [1]}}, "config.max_steps is [1]"),
        ({"config": {"deep_hidden_units": [8, "x"]}}, "config.deep_hidden_units is"),
        ({"config": {"embedding_dim": None}}, "config.embedding_dim is null"),
        ({"config": {"num_epochs": 0}}, "--num_epochs must be at least 1, got 0"),
        ({"config": {"model": "bert"}}, "--model must be one of"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(write, document, said):
    with pytest.raises(InputError) as caught:
        flags.parse([f"--config={write(document)}"])
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("flag", ["--model=dcnv2", "--preset=tiny"])
def test_another_model_is_no_repetition(write, flag):
    _, record = record_of("--model=dlrm")
    with pytest.raises(InputError, match=f"^{flag} and --config=.*: leave one of them out"):
        flags.parse([f"--config={write(record)}", flag])
    flags.parse([f"--config={write(record)}", "--model=dlrm"])


def test_what_another_program_ran_is_not_run_as_ours(write):
    _, record = record_of("--num_epochs=3")
    record["identity"]["implementation"] = "ootb"
    with pytest.raises(InputError, match=r"is of the implementation ootb, and main\.py is optimized"):
        flags.parse([f"--config={write(record)}"])
