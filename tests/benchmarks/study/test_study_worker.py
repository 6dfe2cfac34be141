"""Jobs, and what a worker writes down of its runs."""

import pytest
import study_cases

from benchmarks.study import cells, worker
from benchmarks.study.cells import FAILED, OK
from benchmarks.study.worker import Job, Notes
from data.errors import InputError
from trainer import launch
from trainer.records import Identity, Record


@pytest.fixture
def job(tmp_path):
    runs = (
        (study_cases.cell(), 1, None, ("--num_epochs=1", "--seed=1")),
        (study_cases.cell(xla=True), 2, 3, ("--xla",)),
    )
    return Job(str(tmp_path), str(tmp_path / "scratch"), str(tmp_path / "runs.jsonl"), runs)


def test_a_job_survives_its_file(job):
    assert worker.read_job(worker.write_job(job)) == job


@pytest.mark.parametrize("text", ["", "[]", '{"runs": []}', '{"runs": [[1, 2]]}'])
def test_what_is_no_job_is_bad_input(tmp_path, text, capsys):
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(InputError, match="is no job of a study"):
        worker.read_job(str(tmp_path / "job.json"))
    assert worker.main([str(tmp_path / "job.json")]) == 2 and capsys.readouterr().err.count("\n") == 1
    assert worker.main([]) == 2


def test_runs_are_written_down_as_they_begin_and_end(job):
    times = iter([1.0, 4.5, 10.0, 12.0])
    notes = Notes(job, clock=lambda: next(times))
    record = Record(identity=Identity(model="wide_deep", mode="training"), loss=0.5)
    notes.started(0)
    assert worker.begun(job.folder) == [0] and not cells.os.path.exists(job.runs_file)
    notes.ended(0, record, None)
    notes.started(1)
    notes.ended(1, None, "step 3: the loss is nan")
    first, second = cells.read(job.runs_file)
    assert (first.cell, first.seed, first.status, first.seconds) == (study_cases.cell(), 1, OK, 3.5)
    assert (first.fold, second.fold) == (None, 3)
    assert first.record["loss"] == 0.5
    assert (second.seed, second.status, second.reason, second.record) == (2, FAILED, "step 3: the loss is nan", None)
    assert worker.begun(job.folder) == [0, 1]


def test_a_training_that_a_signal_ended_is_made_again(job):
    notes = Notes(job)
    notes.started(0)
    notes.ended(0, Record(identity=Identity(model="wide_deep", mode="training"), loss=0.5, ended_by="signal"), None)
    (run,) = cells.read(job.runs_file)
    assert run.status == FAILED and run.reason == "a signal ended its training early"


def test_what_a_run_leaves_is_removed(job, tmp_path):
    folder = tmp_path / "scratch" / "run-0"
    folder.mkdir(parents=True)
    (folder / "checkpoint").write_text("large")
    notes = Notes(job)
    notes.started(0)
    notes.ended(0, None, "it broke")
    assert not folder.exists()


def test_each_run_has_folders_of_its_own(job, monkeypatch):
    seen = []
    monkeypatch.setattr(worker, "run_several_as_rank", lambda configs, run, **kept: seen.extend(configs) or 0)
    assert worker.main([worker.write_job(job)]) == 0
    assert [config.output.results_dir for config in seen] == [worker.run_folder(job, 0), worker.run_folder(job, 1)]
    assert len({config.output.model_dir for config in seen}) == 2 and seen[1].device.xla
    assert seen[0].training.seed == 1 and launch.BAD_INPUT == 2
