import json
import os
import signal

import pytest

from benchmarks import compare_peers, own_process, peer_rows, system_rows, torch_peer
from benchmarks.comparison import Row
from benchmarks.peer_rows import OURS, Against, Settings

TINY = Settings(runs=2, threads=1, shrink=4096, say=lambda line: None)


def speed(*speeds):
    """A contender of these speeds, after a first one that is left out."""
    turns = [1e9, *speeds]
    return lambda: (turns.pop(0), 1.0)


def test_ours_is_compared_with_each():
    against = {
        "slow": Against(speed(1, 2, 3), 1.5),
        "fast": Against(speed(8, 8, 8), 1.5, "of it", note="not the same"),
        "gone": Against(None, 1.2, note="torch is not installed"),
    }
    rows = {row.name: row for row in peer_rows.compare("row", speed(4, 5, 4), against, Settings(3, say=lambda _: None))}
    assert list(rows) == ["row: ours", "row: slow", "row: fast", "row: gone"]
    assert (rows["row: ours"].figure, rows["row: ours"].lowest, rows["row: ours"].highest) == (4, 4, 5)
    assert rows["row: ours"].ratio is None
    assert rows["row: slow"].ratio == 2 and rows["row: slow"].met is True
    assert (rows["row: fast"].ratio, rows["row: fast"].ratio_is, rows["row: fast"].met) == (0.5, "of it", False)
    assert rows["row: gone"].figure is None and rows["row: gone"].met is None
    assert "not installed" in rows["row: gone"].note


def test_the_ceiling_is_the_fastest_library():
    against = {"products (a)": Against(speed(4, 4), 0.9), "products (b)": Against(speed(5, 5), 0.9)}
    rows = peer_rows.compare("row", speed(4, 4), against, Settings(2, say=lambda _: None))
    assert [row.name for row in rows] == [f"row: {OURS}", "row: products (b)"] and rows[1].ratio == 0.8


def test_losses_that_part_are_seen():
    assert peer_rows.disagreement_of([1.0, 2.0], [1.0001, 2.0], 1e-3) == ""
    assert "2.000000 ours and 2.010000 its at step 2 of 3" in peer_rows.disagreement_of([1, 2, 3], [1, 2.01, 4], 1e-3)
    assert "step 1" in peer_rows.disagreement_of([1.0], [float("nan")], 1e-3)


def test_a_peer_that_disagrees_has_no_figure():
    made = []
    torch = peer_rows._torch(object(), "losses disagree: ...", lambda: made.append(1), 1.2)
    assert torch.work is None and torch.note == "losses disagree: ..." and made == []


def test_without_torch_its_rows_say_how_to_get_it(monkeypatch):
    monkeypatch.setattr(torch_peer, "is_installed", lambda: False)
    assert torch_peer.version() == "absent"
    torch_peer.use_threads(1)
    ours, bare, peer = peer_rows.dlrm_inference(TINY)
    assert bare.name.startswith("dlrm_inference: matrix products (") and bare.target is None
    assert ours.figure > 0 and peer.figure is None
    assert peer.note == "torch is not installed: pip install -r requirements-peers.txt"


def test_metrics_of_few_rows(monkeypatch):
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: None)  # this process goes on
    monkeypatch.setattr(system_rows, "_METRIC_BATCH", 100)
    seconds, memory = system_rows.metrics(TINY)
    assert seconds.name == "metrics: MAP@12 and AUC of 2,441 rows"
    assert 0 < seconds.ratio < 8 and seconds.met is True and seconds.lowest <= seconds.figure
    assert memory.unit == "GB" and memory.target == 0.8 and memory.at_most


@pytest.mark.parametrize(
    ("threads", "where", "note"), [(2, None, "horovodrun is not there"), (1, "x", "needs 2 threads")]
)
def test_ranks_that_cannot_be_started(monkeypatch, threads, where, note):
    monkeypatch.setattr(system_rows.shutil, "which", lambda *_, **__: where)
    one, two = system_rows.ranks(Settings(threads=threads))
    assert one.figure is None and two.figure is None and note in two.note and two.target == 0.92


def test_ranks_are_started_as_users_do(monkeypatch):
    commands = []

    def run(command):
        commands.append(command)
        (folder,) = (word.split("=")[1] for word in command if word.startswith("--results_dir="))
        with open(os.path.join(folder, "result.json"), "w") as file:
            json.dump({"samples_per_sec": 300.0 if "-np" in command else 200.0}, file)

    monkeypatch.setattr(system_rows.shutil, "which", lambda *_, **__: "/bin/horovodrun")
    monkeypatch.setattr(system_rows, "_run", run)
    one, two = system_rows.ranks(Settings(runs=2, threads=4, shrink=64, say=lambda line: None))
    assert (one.figure, two.figure, two.ratio) == (200, 300, 1.5)
    assert len(commands) == 4 and commands[1][:5] == ["/bin/horovodrun", "-np", "2", "sh", "hvd_wrapper.sh"]
    assert "--intra_op_threads=4" in commands[0] and "--intra_op_threads=2" in commands[1]
    assert "--global_batch_size=128" in commands[0] and "--global_batch_size=128" in commands[1]


def test_a_command_that_fails_is_told_with_its_last_words():
    with pytest.raises(RuntimeError, match="code 3: last words"):
        system_rows._run(["sh", "-c", "echo last words; exit 3"])


def test_a_process_of_its_own():
    assert own_process.call(max, 3, 4) == 4
    assert own_process.call(os.getpid) != os.getpid()
    with pytest.raises(RuntimeError, match="ValueError: invalid literal"):
        own_process.call(int, "x")
    with pytest.raises(RuntimeError, match=f"ended with code -{signal.SIGKILL:d}"):
        own_process.call(signal.raise_signal, signal.SIGKILL)


def test_rows_run_in_the_order_given_and_one_that_fails_does_not_end_the_others(monkeypatch):
    def call(function, name, settings):
        if name == "ranks":
            raise RuntimeError("killed")
        return [Row(f"{name}: ours", 1.0, "samples/s")]

    monkeypatch.setattr(own_process, "call", call)
    rows = compare_peers.run(["metrics", "ranks", "table_size"], Settings())
    assert [row.name for row in rows] == ["metrics: ours", "ranks", "table_size: ours"]
    assert rows[1].note == "failed: killed" and rows[1].met is None


def test_the_command_prints_the_table_and_versions_and_writes_json(monkeypatch, tmp_path, capsys):
    given = []
    row = Row("metrics: memory", 0.5, "GB", ratio=0.5, ratio_is="GB", target=0.8, at_most=True)
    monkeypatch.setattr(own_process, "call", lambda function, name, settings: given.append((name, settings)) or [row])
    path = tmp_path / "rows.json"
    arguments = ["--rows=metrics", "--runs=3", "--threads=1", "--xla", "--json", str(path)]
    assert compare_peers.main(arguments) == 0
    table, versions = capsys.readouterr().out.splitlines()
    assert table.startswith("metrics: memory") and table.endswith("target: at most 0.8, met")
    assert "tensorflow" in versions and "torch" in versions and "CPUs" in versions
    ((name, settings),) = given
    assert (name, settings.runs, settings.threads, settings.xla) == ("metrics", 3, 1, True)
    (written,) = json.loads(path.read_text())
    assert {"name", "figure", "unit", "ratio", "target", "met"} <= written.keys() and written["met"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "-1:2"], "(one that begins with - is given as in --profile=-1)"),
        (["--profile=-1:2"], "--profile=-1:2: give the first and the last step to trace, from 1 on"),
        (["--profile="], "--profile=: give the first"),
        (["--profile=\u0665:8"], "give the first"),
        (["--profile=5:99999"], "--profile=5:99999: a run has 1,000 steps, and a trace of more than 100 is too large"),
        (["--profile=1:101"], "a trace of more than 100"),
        (["--profile=1001:1001"], "a run has 1,000 steps"),
        (["--profile=1000:1000", "--rows=metrics"], "--profile with --rows=metrics: name one of wide_deep_training"),
        (["--profile=901:1000", "--rows=metrics"], "--profile with --rows=metrics: name one of wide_deep_training"),
        (["--profile=1:2", "--threads=0", "--rows=dlrm_training"], "--threads=0 --shrink=1: give at least 1 each"),
        (["--profile_rank=0"], "--profile_rank does nothing without --profile: add that, or drop --profile_rank"),
        (["--profile_dir=x"], "--profile_dir does nothing without --profile"),
        (["--profile=1:2", "--profile_dir="], "--profile_dir is empty"),
        (["--profile=1:2", "--json=x"], "--json does nothing with --profile: drop one of them"),
        (["--profile=1:2", "--runs=5"], "--runs does nothing with --profile"),
        (["--rows=metrics", "--json="], "--json is empty"),
    ],
)
def test_options_that_would_do_nothing_or_too_much_are_one_line(monkeypatch, arguments, message, capsys):
    for function in (own_process, "call"), (compare_peers, "_prepare"):
        monkeypatch.setattr(*function, lambda *_: pytest.fail("it went to work"))
    assert compare_peers.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--rows=metrics,nothing", "--rows has 'nothing'; there are wide_deep_training, "),
        ("--runs=0", "--runs=0 --threads="),
        ("--shrink=0", "--shrink=0: give at least 1 each"),
        ("--profile=5", "--profile=5: give the first and the last step"),
        ("--profile=0:3", "--profile=0:3: give"),
        ("--profile=3:2", "--profile=3:2: give"),
        ("--profile=2:3", "name one of wide_deep_training, dlrm_training, criteo_training"),
    ],
)
def test_bad_arguments_are_told_in_one_line(argument, message, capsys):
    assert compare_peers.main([argument]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_every_target_of_the_table_has_a_row():
    assert list(compare_peers.ROWS) == [
        *("wide_deep_training", "wide_deep_evaluation", "dlrm_training", "dlrm_data_in_loop", "dlrm_inference"),
        *("criteo_training", "table_size", "parquet_input", "ranks", "metrics"),
    ]
