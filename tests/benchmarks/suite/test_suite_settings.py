"""From definitions to command lines that main.py takes."""

import pytest
import suite_cases

from benchmarks.suite.definitions import load
from benchmarks.suite.settings import arguments, check_settings, config_of, resolve, settings
from data.errors import InputError
from trainer import flags


def test_a_cells_settings_are_the_flags_the_method_and_the_sizes():
    one = suite_cases.definition(flags={"deep_dropout": 0, "embedding_sizes_file": "s.json"})
    found = settings(one, batch_size=128)
    assert found["deep_dropout"] == 0.0 and isinstance(found["deep_dropout"], float)
    assert (found["global_batch_size"], found["benchmark_name"], found["benchmark"]) == (128, "small", True)
    assert (found["benchmark_warmup_steps"], found["benchmark_steps"], found["benchmark_seconds"]) == (3, 33, 3.0)
    assert "evaluate" not in found and "amp" not in found


def test_inference_evaluates_and_flags_come_before_the_method():
    one = suite_cases.definition(mode="inference", flags={"benchmark_steps": 9})
    found = settings(one, batch_size=128)
    assert found["evaluate"] is True and found["eval_batch_size"] == 128 and found["benchmark_steps"] == 9
    assert "global_batch_size" not in found


@pytest.mark.parametrize(
    ("precision", "said"),
    [("fp32", "float32"), ("tf32", "float32"), ("bf16", "mixed_bfloat16"), ("fp16", "mixed_float16")],
)
def test_precisions(precision, said):
    config = config_of(settings(suite_cases.definition(), batch_size=8, precision=precision))
    assert config.device.precision == said


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"speed": 1}, "'speed' is no flag of main.py"),
        ({"num_epochs": "3"}, "flag num_epochs is '3'"),
        ({"amp": 1}, "flag amp is 1"),
        ({"deep_hidden_units": ["a"]}, "flag deep_hidden_units is"),
        ({"num_epochs": 2.5}, "flag num_epochs is 2.5"),
    ],
)
def test_flags_that_cannot_be_are_named(stated, said):
    with pytest.raises(InputError, match=r"^wide_deep-training-small: ") as caught:
        settings(suite_cases.definition(flags=stated), batch_size=8)
    assert said in str(caught.value)


@pytest.mark.parametrize("one", [one for one in load() if not one.is_micro], ids=lambda one: one.name)
def test_the_projects_definitions_give_command_lines_that_main_takes_as_they_are_meant(one):
    for precision in one.precisions:
        cell = suite_cases.cell(one, precision=precision)
        given = settings(one, batch_size=cell.batch_size, precision=precision)
        assert flags.parse(arguments(given)) == resolve(one, cell)
    checking = check_settings(one)
    assert flags.parse(arguments(checking)) == config_of(checking)
