"""What records say of the machine."""

from study_cases import cell
from study_report_cases import ENVIRONMENT, runs, small_plan, study

from benchmarks.study.report import facts


def test_one_machine_is_described_once(tmp_path):
    found = facts.environments(study(tmp_path, small_plan(), runs(cell())))
    assert found == {**ENVIRONMENT, "measured at commit": "abc", "device": "CPU, 2 threads a rank"}


def test_what_differs_is_named(tmp_path):
    other = {**ENVIRONMENT, "host": "other", "versions": {"tensorflow": "2.22.0"}, "dirty": True}
    its_runs = [*runs(cell(), [0.7]), *runs(cell(), [None, 0.7], environment=other, device="GPU")]
    found = facts.environments(study(tmp_path, small_plan(), its_runs))
    assert found["host"] == ["abacus", "other"]
    assert found["versions"] == ["tensorflow 2.21.0", "tensorflow 2.22.0"]
    assert found["measured at commit"] == ["abc", "abc WITH CHANGES"]
    assert found["cpus"] == 2


def test_a_cpu_is_known_by_its_device(tmp_path):
    assert facts.on_cpu(study(tmp_path / "a", small_plan(), runs(cell())))
    assert not facts.on_cpu(study(tmp_path / "b", small_plan(), runs(cell(), device="GPU (H200)")))
    assert facts.environments(study(tmp_path / "c", small_plan(), [])) == {}
