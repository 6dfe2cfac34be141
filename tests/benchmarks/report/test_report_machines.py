"""Fingerprints in words."""

from benchmarks.report.machines import described, only_one, shown


def test_description():
    fingerprint = {
        "cpu_model": "Abacus",
        "memory_bytes": 3 * 2**29,
        "gpus": ["a", "b"],
        "driver": None,
        "versions": {"x": "1"},
    }
    assert described({**fingerprint, "commit": "abc", "start_time": "now", "dirty": True}) == [
        ("cpu_model", "Abacus"), ("memory", "1.5 GiB"), ("gpus", "a, b"), ("driver", "none"), ("versions.x", "1"),
    ]  # fmt: skip


def test_differences_are_shown_with_both_values_and_not_without_end():
    assert shown({"cpus": 2}, {"cpus": 4}, ["cpus"]) == "cpus (2 / 4)"
    assert shown({"versions": {"x": "1"}}, {"versions": {}}, ["versions.x"]) == "versions.x (1 / none)"
    assert shown({}, {}, [str(number) for number in range(10)]).endswith("7 (none / none) and 2 more")


def test_of_none_it_is_unknown():
    assert only_one([{}, {}], "here") == {}
