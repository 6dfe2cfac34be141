"""Launches: what is started, how it is watched, and who is to blame when it breaks."""

import os
import sys

import pytest
import study_cases

from benchmarks.study import cells, launcher, worker
from benchmarks.study.cells import FAILED
from benchmarks.study.launcher import Launch, Task
from benchmarks.suite import commands
from data.errors import InputError

# A worker that does what it is told: words of its argument, one after the other.
STAND_IN = """
import json, os, sys
sys.path[:0] = [sys.argv[1]]
from benchmarks.study import cells, worker
from benchmarks.study.cells import Run
job = worker.read_job(sys.argv[2])
notes = worker.Notes(job)
for word in sys.argv[3].split():
    if word == "hang":
        os.mkfifo(os.path.join(job.scratch, "fifo"))
        open(os.path.join(job.scratch, "fifo")).read()
    elif word.startswith("exit"):
        print("main.py: rank 0 failed:")
        print("ValueError: broken")
        sys.stdout.flush()
        os._exit(int(word[4:]))
    elif word.startswith("begin"):
        notes.started(int(word[5:]))
    else:
        cell, seed, fold, _ = job.runs[int(word[4:])]
        cells.append(job.runs_file, Run(cell, seed, "ok", record={}, fold=fold))
"""


@pytest.fixture
def launch(tmp_path):
    """launch(words): a launch of three runs whose worker does these; it is closed at the end. folds: of the runs."""
    made = []

    def launch(words, clock=lambda: 0.0, folds=None):
        trials = [(seed, None) for seed in (1, 2, 3)] if folds is None else [(1, fold) for fold in folds]

        def start(arguments, **kept):
            job = next(word for word in arguments if word.endswith(worker.JOB_FILE))
            return launcher.start_process([sys.executable, "-c", STAND_IN, str(commands.ROOT), job, words], **kept)

        made.append(
            Launch(
                [Task(study_cases.cell(), seed, ("--num_epochs=1",), fold) for seed, fold in trials],
                folder=str(tmp_path / "launch"),
                scratch=str(tmp_path / "scratch"),
                runs_file=str(tmp_path / "runs.jsonl"),
                devices={},
                timeout_s=10.0,
                start=start,
                clock=clock,
            )
        )
        return made[-1]

    yield launch
    for one in made:
        one.close()


def ended(launch):
    """What `poll` says once the process has ended."""
    launch._process.wait(60)
    return launch.poll()


def test_a_launch_whose_runs_all_end_has_no_culprit(launch):
    one = launch("begin0 done0 begin1 done1 begin2 done2")
    assert ended(one) == [] and [run.seed for run in one.done()] == [1, 2, 3]


def test_the_run_that_had_begun_last_is_to_blame(launch, tmp_path):
    one = launch("begin0 done0 begin1 exit3")
    (failed,) = ended(one)
    assert (failed.seed, failed.status) == (2, FAILED) and [run.seed for run in one.done()] == [1]
    assert failed.reason == "its process ended (code 3): ValueError: broken"


def test_runs_of_one_seed_on_several_folds_are_told_apart(launch):
    one = launch("begin0 done0 begin1 exit3", folds=(1, 2, 3))
    (failed,) = ended(one)
    assert (failed.seed, failed.fold) == (1, 2) and [run.key for run in one.done()] == [(study_cases.cell(), 1, 1)]


def test_where_none_had_begun_all_failed(launch):
    failed = ended(launch("exit2"))
    assert [run.seed for run in failed] == [1, 2, 3]
    assert failed[0].reason == "its process did not begin (code 2): ValueError: broken"


def test_one_that_ends_between_two_runs_blames_none(launch):
    one = launch("begin0 done0 exit0")
    assert ended(one) == [] and [run.seed for run in one.done()] == [1]


def test_a_run_that_takes_too_long_is_ended(launch):
    now = [0.0]
    one = launch("begin0 done0 begin1 hang", clock=lambda: now[0])
    while len(worker.begun(one._folder)) < 2:
        assert one._process.poll() is None
    assert one.poll() is None
    now[0] = 9.9
    assert one.poll() is None
    now[0] = 10.1
    (failed,) = one.poll()
    assert failed.seed == 2 and "ran past its time of 10 s and was ended" in failed.reason
    assert one._process.poll() is not None


def test_time_counts_from_the_last_run_that_began_or_ended(launch, tmp_path):
    now = [0.0]
    one = launch("hang", clock=lambda: now[0])
    now[0] = 9.0
    worker.Notes(worker.read_job(str(tmp_path / "launch" / worker.JOB_FILE))).started(0)
    assert one.poll() is None
    now[0] = 18.0
    assert one.poll() is None


def test_what_is_closed_has_ended_and_leaves_its_logs_alone(launch, tmp_path):
    one = launch("hang")
    one.close()
    assert one._process.poll() is not None and not (tmp_path / "scratch").exists()
    assert sorted(os.listdir(tmp_path / "launch")) == [worker.JOB_FILE, launcher.OUTPUT]


def test_runs_of_others_are_not_of_this_launch(launch, tmp_path):
    one = launch("begin0 done0 begin1 done1 begin2 done2")
    cells.append(str(tmp_path / "runs.jsonl"), study_cases.run(study_cases.cell(xla=True)))
    ended(one)
    assert len(one.done()) == 3


def test_device_sets_bind_processes_to_cpus_and_gpus(monkeypatch):
    monkeypatch.setattr(launcher.shutil, "which", lambda _: "/bin/taskset")
    found = launcher.command(1, "job.json", {"cpus": "0-3"})
    assert found == ["/bin/taskset", "-c", "0-3", sys.executable, "-m", "benchmarks.study.worker", "job.json"]
    assert launcher.environment({"gpus": "2,3"})["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert launcher.environment({})["NVIDIA_TF32_OVERRIDE"] == "0"
    monkeypatch.setattr(launcher.shutil, "which", lambda _: None)
    with pytest.raises(InputError, match="taskset, which is not there"):
        launcher.command(1, "job.json", {"cpus": "0"})
