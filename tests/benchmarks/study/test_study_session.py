"""Folders of studies: what is done again and what is not, what is refused, and what is said meanwhile."""

import os

import pytest
import study_cases
import study_click_cases

from benchmarks.study import cells, launcher, session
from benchmarks.study.cells import FAILED, OK, Run
from benchmarks.study.launcher import Task
from data.errors import InputError

FACTS = {"cpu_model": "a CPU", "cpus": 2}


class Launches:
    """Stands in for Launch. Each look ends one run; `breaks` are (cell's precision, seed) that break their launch."""

    def __init__(self, breaks=()):
        self.breaks = set(breaks)
        self.started, self.closed = [], 0

    def __call__(self, tasks, *, folder, scratch, runs_file, devices, timeout_s, held):
        os.makedirs(folder)
        self.started.append([(task.cell.precision, task.cell.world_size, task.seed) for task in tasks])
        return _Launch(self, tasks, runs_file)


class _Launch:
    def __init__(self, owner, tasks, runs_file):
        self.tasks = tuple(tasks)
        self._owner, self._runs_file = owner, runs_file
        self._done = []

    def poll(self):
        task = self.tasks[len(self._done)]
        if (task.cell.precision, task.seed) in self._owner.breaks:
            return [Run(task.cell, task.seed, FAILED, "it broke", fold=task.fold)]
        one = study_cases.run(task.cell, task.seed, fold=task.fold)
        cells.append(self._runs_file, one)
        self._done.append(one)
        return [] if len(self._done) == len(self.tasks) else None

    def done(self):
        return self._done

    def close(self):
        self._owner.closed += 1


@pytest.fixture
def start(tmp_path):
    """start(plan, launches): the runs, and the lines that were said."""

    def start(plan, launches=None, facts=FACTS, wait=lambda _: None):
        said = []
        folder = str(tmp_path / "study")
        with session.opened(folder, plan, facts) as lock:
            launches = launches or Launches()
            runs = session.run(folder, plan, say=said.append, held=(lock,), launch=launches, wait=wait)
        return runs, said

    return start


def recorded(tmp_path):
    return cells.read(str(tmp_path / "study" / cells.RUNS_FILE))


def test_every_run_is_made_once_seed_by_seed(start, tmp_path):
    launches = Launches()
    runs, said = start(study_cases.plan(), launches)
    assert launches.started == [
        [("float32", 1, 1)],
        [("mixed_bfloat16", 1, 1)],
        [("float32", 1, 2)],
        [("mixed_bfloat16", 1, 2)],
    ]
    assert len(runs) == 4 and recorded(tmp_path) == runs and session.problems(runs) == []
    assert said[0] == "[#####...............] 1/4 wide_deep-float32-1x64, seed 1: MAP@12 0.70000 in 3 s; about 9 s left"
    assert said[-1].endswith("that was the last one")


def test_runs_of_as_many_ranks_share_a_launch(start):
    launches = Launches()
    start(study_cases.plan(precisions=["float32"], world_sizes=[1, 2], runs_per_launch=2), launches)
    assert launches.started == [[("float32", 1, 1), ("float32", 1, 2)], [("float32", 2, 1), ("float32", 2, 2)]]


def test_runs_of_folds_have_a_dataset_each_and_are_made_once(start, tmp_path):
    plan = study_cases.plan(folds=2, sample_path=study_click_cases.write(tmp_path / "raw"), flags={}, runs_per_launch=8)
    seen = []

    class Watched(Launches):
        def __call__(self, tasks, **kept):
            assert (tmp_path / "study" / "folds" / "fold-2" / "feature_spec.yaml").exists()
            seen.extend(tasks)
            return super().__call__(tasks, **kept)

    runs, said = start(plan, Watched(breaks=[("mixed_bfloat16", 2)]))
    paths = {task.fold: f"--dataset_path={tmp_path / 'study' / 'folds' / f'fold-{task.fold}'}" for task in seen}
    assert len(seen) > 7 and all(paths[task.fold] in task.arguments for task in seen)
    assert [(task.seed, task.fold, task.cell.precision) for task in seen[:4]] == [
        (1, 1, "float32"), (1, 1, "mixed_bfloat16"), (1, 2, "float32"), (1, 2, "mixed_bfloat16"),
    ]  # fmt: skip
    assert len({run.key for run in runs}) == 8 and "seed 1 fold 1: " in said[0]
    again = Launches()
    runs, _ = start(plan, again)
    assert again.started == [[("mixed_bfloat16", 1, 2), ("mixed_bfloat16", 1, 2)]] and len(runs) == 8


def test_a_second_start_makes_nothing_again(start, tmp_path):
    start(study_cases.plan())
    launches = Launches()
    runs, said = start(study_cases.plan(), launches)
    assert launches.started == [] and len(runs) == 4 and said == [f"{tmp_path / 'study'} holds 4 of 4 runs: going on"]


def test_the_culprit_fails_and_the_others_of_its_launch_are_started_again(start, tmp_path):
    launches = Launches(breaks=[("mixed_bfloat16", 1)])
    runs, said = start(study_cases.plan(runs_per_launch=4), launches)
    assert [len(one) for one in launches.started] == [4, 2] and launches.closed >= 2
    (failed,) = [run for run in recorded(tmp_path) if run.status == FAILED]
    assert (failed.cell.precision, failed.seed, failed.reason) == ("mixed_bfloat16", 1, "it broke")
    assert len(runs) == 4 and "FAILED: it broke" in said[1]
    assert session.problems(runs) == [
        "1 run failed: the next start makes them again (wide_deep-mixed_bfloat16-1x64 seed 1)"
    ]


def test_a_second_start_repeats_what_failed_and_nothing_else(start, tmp_path):
    start(study_cases.plan(runs_per_launch=4), Launches(breaks=[("mixed_bfloat16", 1)]))
    launches = Launches()
    runs, _ = start(study_cases.plan(runs_per_launch=4), launches)
    assert launches.started == [[("mixed_bfloat16", 1, 1)]]
    assert [run.status for run in recorded(tmp_path)] == [OK] * 4 and len(runs) == 4


def test_what_was_finished_before_it_was_stopped_is_kept(start, tmp_path):
    class Stop(BaseException):
        pass

    def stop(_):
        raise Stop

    launches = Launches()
    with pytest.raises(Stop):
        start(study_cases.plan(runs_per_launch=4), launches, wait=stop)
    assert len(recorded(tmp_path)) == 1 and launches.closed == 1
    launches = Launches()
    start(study_cases.plan(runs_per_launch=4), launches)
    assert [len(one) for one in launches.started] == [3] and len(recorded(tmp_path)) == 4


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seeds": 3}, "seeds"),
        ({"equivalence_margin": 0.02}, "equivalence_margin"),
        ({"flags": {"dataset_type": "synthetic"}, "precisions": ["float32"]}, "precisions, flags"),
    ],
)
def test_another_plan_is_refused_and_its_keys_are_named(start, tmp_path, changed, named):
    start(study_cases.plan())
    before = (tmp_path / "study" / cells.RUNS_FILE).read_bytes()
    with pytest.raises(InputError, match=rf"study of another plan \({named} differ\): name another --results_dir"):
        start(study_cases.plan(**changed))
    assert (tmp_path / "study" / cells.RUNS_FILE).read_bytes() == before


def test_how_runs_are_started_may_change(start):
    start(study_cases.plan(runs_per_launch=1), Launches(breaks=[("float32", 1)]))
    launches = Launches()
    start(study_cases.plan(runs_per_launch=8, timeout_s=1), launches)
    assert len(launches.started) == 1


def test_another_machine_is_refused(start):
    start(study_cases.plan())
    with pytest.raises(InputError, match=r"another machine or installation \(cpus differ\)"):
        start(study_cases.plan(), facts=FACTS | {"cpus": 4})


def test_runs_without_a_plan_are_refused(start, tmp_path):
    (tmp_path / "study").mkdir()
    cells.append(str(tmp_path / "study" / cells.RUNS_FILE), study_cases.run(study_cases.cell()))
    with pytest.raises(InputError, match=r"holds runs and no plan\.yaml"):
        start(study_cases.plan())


def test_a_folder_that_is_in_use_is_refused(start, tmp_path):
    plan = study_cases.plan()
    with session.opened(str(tmp_path / "study"), plan, FACTS), pytest.raises(InputError, match="runs there already"):
        start(plan)
    start(plan)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match="cannot be written"),
        session.opened(str(tmp_path / "file"), study_cases.plan(), FACTS),
    ):
        pass


def test_the_plan_is_fixed_before_the_first_run(start, tmp_path):
    def launch(*_, **__):
        raise InputError("nothing can be started")

    with pytest.raises(InputError, match="nothing can be started"):
        start(study_cases.plan(), launch)
    assert (tmp_path / "study" / cells.PLAN_FILE).read_text() == study_cases.plan().to_yaml()


def test_device_sets_work_side_by_side_and_large_runs_wait_for_a_large_set(start):
    sets = [{"gpus": "0"}, {"gpus": "1,2"}]
    launches = Launches()
    plan = study_cases.plan(device_sets=sets, world_sizes=[1, 2], precisions=["float32"], runs_per_launch=2)
    runs, _ = start(plan, launches)
    # The runs of one rank are shared out; those of two fit the second set alone.
    assert launches.started[:2] == [[("float32", 1, 1)], [("float32", 2, 1)]] and len(runs) == 4


def test_a_run_that_proves_nothing_is_a_problem(start):
    cell = study_cases.cell()
    record = study_cases.record(cell, 1) | {"trained": False}
    run = study_cases.run(cell, record=record)
    assert "NOT COUNTED: its weights are those" in session.outcome(run)
    assert session.problems([run]) == ["1 run without proof: not counted (wide_deep-float32-1x64 seed 1)"]


def test_what_remains_goes_by_the_cell_or_by_all():
    slow, fast, other = (study_cases.cell(global_batch_size=size) for size in (1, 2, 3))
    runs = [study_cases.run(slow, seconds=90.0), study_cases.run(fast, seconds=10.0)]
    left = [Task(slow, 2, ()), Task(fast, 2, ()), Task(other, 1, ())]
    assert session.remaining(left, runs, 1) == "about 2 min left"  # 90 + 10 + 50 seconds
    assert session.remaining(left, runs, 2) == "about 75 s left"
    assert session.remaining(left, [], 1) == "3 left"


def test_logs_of_launches_have_a_folder_each(start, tmp_path):
    start(study_cases.plan())
    assert sorted(os.listdir(tmp_path / "study" / "logs")) == [f"launch-{n}" for n in (1, 2, 3, 4)]
    assert launcher.OUTPUT == "output.log"
