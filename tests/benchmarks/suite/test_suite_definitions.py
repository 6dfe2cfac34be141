"""Definitions are read strictly: each mistake is named with its file and key."""

import pytest
import suite_cases
import yaml

from benchmarks.suite import definitions
from benchmarks.suite.definitions import DEFAULT, QUICK, load, read, select
from data.errors import InputError


def test_a_file_is_read_as_it_says(tmp_path):
    one = read(suite_cases.write_definition(tmp_path))
    assert one == suite_cases.definition() and one.name == "wide_deep-training-small" and not one.is_micro
    assert one.batch_sizes == (32, 64) and one.implementations == ("ootb", "optimized")


def test_a_microbenchmark_is_one(tmp_path):
    one = read(suite_cases.write_definition(tmp_path, **suite_cases.MICRO))
    assert one.is_micro and one.name == "gemm-forward-small"


@pytest.mark.parametrize("key", sorted(suite_cases.DOCUMENT))
def test_every_key_must_be_there(tmp_path, key):
    path = suite_cases.write_definition(tmp_path)
    document = yaml.safe_load(path.read_text())
    del document[key]
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match=f"{path}: the key '{key}' is missing: add it"):
        read(path)


BAD = [
    ({"speed": 3}, "there is no key 'speed'"),
    ({"version": 1.0}, "version must be a text in quotes, as '1.0', got 1.0"),
    ({"stands_for": " "}, "stands_for must be a text"),
    ({"implementations": []}, "implementations must be a list of some of ootb, optimized, micro, got []"),
    ({"implementations": ["ootb", "ootb"]}, "implementations must be"),
    ({"implementations": ["ootb", "micro"]}, "micro stands alone"),
    ({"implementations": ["fast"]}, "got ['fast']"),
    ({"mode": "testing"}, "mode must be training or inference, got 'testing'"),
    ({"flags": ["amp"]}, "flags must be a mapping of settings"),
    ({"batch_sizes": [0]}, "batch_sizes must be a list of numbers from 1 on, got [0]"),
    ({"batch_sizes": [True]}, "batch_sizes must be"),
    ({"batch_sizes": 64}, "batch_sizes must be"),
    ({"latency_limit_ms": 0}, "latency_limit_ms must be a number above 0 or null, got 0"),
    ({"precisions": ["fp8"]}, "precisions must be"),
    ({"quick": True}, "quick must be a mapping of implementations to lists of numbers from 1 on, or null, got True"),
    ({"default": {}}, "default must be a mapping of implementations to lists of numbers from 1 on, or null, got {}"),
    ({"quick": {"ootb": [48]}}, "quick has batch sizes [48] of ootb, and the benchmark [32, 64] of ootb, optimized"),
    ({"default": {"micro": [32]}}, "default has batch sizes [32] of micro, and the benchmark"),
    ({"expected_memory": {"ootb": "2 GB"}}, "expected_memory must be"),
    ({"correctness": {"check": "hope"}}, "correctness.check must be loss_band or reference, got 'hope'"),
    ({"correctness": {"check": "own"}}, "correctness.check must be loss_band or reference, got 'own'"),
    ({"correctness": {"check": "reference"}}, "correctness: the key 'flags' is missing"),
    ({"correctness": {"check": "reference", "flags": {}, "low": 1}}, "correctness: there is no key 'low'"),
    (
        {"correctness": {"check": "loss_band", "flags": {}, "steps": 3, "low": 0.6, "high": 0.3}},
        "low below high, got 3, 0.6 and 0.3",
    ),
    ({"world_sizes": [1, 2]}, "world_sizes [1, 2] need scaling"),
    ({"scaling": {"strong": [8]}}, "scaling: the key 'implementations' is missing"),
    ({"scaling": {"implementations": ["micro"]}}, "scaling.implementations has others"),
    ({"scaling": {"implementations": ["ootb"], "weak": [0]}}, "scaling.weak must be a list of numbers"),
    ({"needs": {"luck": 1}}, "needs: there is no key 'luck'"),
    ({"needs": {"gpus": 0}}, "needs must have numbers from 1 on"),
]


@pytest.mark.parametrize(("changes", "said"), BAD)
def test_what_cannot_be_is_refused_by_name(tmp_path, changes, said):
    path = suite_cases.write_definition(tmp_path, **changes)
    with pytest.raises(InputError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and said in message and "\n" not in message


@pytest.mark.parametrize("text", ["", "[]", "{a: [}", "- x"])
def test_what_is_no_mapping_is_refused(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=str(path)):
        read(path)


def test_a_key_that_stands_twice_is_named_with_its_line(tmp_path):
    path = suite_cases.write_definition(tmp_path)
    lines = path.read_text().count("\n")
    path.write_text(path.read_text() + "mode: inference\n")
    with pytest.raises(InputError, match=f"yaml:{lines + 1}: the key 'mode' stands in line "):
        read(path)


def test_a_file_has_the_name_of_its_benchmark(tmp_path):
    path = suite_cases.write_definition(tmp_path).rename(tmp_path / "other.yaml")
    with pytest.raises(InputError, match=r"call the file wide_deep-training-small\.yaml"):
        read(path)


def test_names_models_and_patterns_select():
    ones = [suite_cases.definition(config=config) for config in ("small", "large")] + [suite_cases.micro()]
    assert [one.name for one in select(ones, ["gemm", "wide_deep-*-large"])] == [ones[1].name, ones[2].name]
    assert select(ones, ["wide_deep"]) == ones[:2] and select(ones, [ones[2].name, ones[0].name]) == [ones[0], ones[2]]
    with pytest.raises(InputError, match=r"benchmark 'bert' is not known: .*gemm-forward-small"):
        select(ones, ["gemm", "bert"])


# The project's own.


def test_all_files_of_the_project_are_read_and_what_is_asked_for_is_there():
    ones = load()
    assert len({one.name for one in ones}) == len(ones)
    kinds = {(one.model, one.mode) for one in ones}
    assert kinds >= {(m, mode) for m in ("wide_deep", "dlrm", "dcnv2") for mode in ("training", "inference")}
    assert {one.model for one in ones if one.is_micro} == {
        *("gemm", "linear", "embedding_bag", "allreduce", "alltoall", "allgather", "input_pipeline"),
    }
    assert all(one.model in {q.model for q in ones if q.default} for one in ones)
    for one in ones:
        for implementation, sizes in one.stated(QUICK).items():
            default = one.stated(DEFAULT).get(implementation, ())
            assert set(sizes) <= set(default), f"{one.name} is quick and not in the default selection"
        if not one.is_micro:
            assert one.correctness["check"] == ("loss_band" if one.mode == "training" else "reference")


def test_the_list_of_rows_that_must_score_is_no_benchmark():
    assert (definitions.CONFIGS / definitions.MUST_SCORE).exists()
    assert definitions.MUST_SCORE.removesuffix(".yaml") not in {one.name for one in load()}
