"""The command line of transcoding: its refusals, one line each, and what a run that fails leaves behind (nothing)."""

import os
import signal
import subprocess
import sys

import pytest
from transcode_cases import TABLE, contents, simple

from data import transcode as command
from data.errors import InputError
from data.feature_spec import FeatureSpec
from data.transcode_options import ColumnOptions

BY_N = ("--split_time_column=n", "--split_at=20")


def run(*arguments):
    return command.main([str(argument) for argument in arguments])


def refused(tmp_path, capsys, *arguments, input_path):
    """The one line of a refusal; nothing may be left behind."""
    before = contents(tmp_path)
    out = tmp_path / "out"
    assert run("--input", input_path, "--output", out, *arguments) == 2
    assert contents(tmp_path) == before and not out.exists() and not (tmp_path / "out.partial").exists()
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    return printed.err


@pytest.mark.parametrize(
    ("old", "new", "arguments", "message"),
    [
        ("1,b,3,3|4", "2,b,3,3|4", [], "line 5: column 'y': '2': a label is 0 or 1"),
        ("1,b,3,3|4", ",b,3,3|4", [], "line 5: column 'y': missing: a label is 0 or 1"),
        ("1,b,3,3|4", "1,b,inf,3|4", [], "line 5: column 'n': 'inf': a numerical value is finite"),
        ("1,b,3,3|4", "1,b,1e300,3|4", [], "line 5: column 'n': '1e300': does not fit a 32-bit float"),
        ("1,b,3,3|4", "1,b,x,3|4", ["--numerical=n"], "line 5: column 'n': 'x': it is not a number"),
        ("1,b,3,3|4", "1,b,3", [], "line 5: the record has 3 fields instead of 4"),
        ("1,b,3,3|4", '1,"b\n",3,3|4|5', ["--hotness=t=2"], "line 5: column 't': '3|4|5': has 3 ids, more than --hot"),
        (
            "1,b,39,",
            '1,b,"39",',
            ["--categorical=n", "--cardinality=n=39"],
            "line 41: column 'n': '39': ids are 0 to 38",
        ),
        ("", "", ["--cardinality", "t=5"], "line 6: column 't': '5': ids are 0 to 4 with --cardinality t=5"),
        (
            "1,b,3,3|4",
            "1,rare,3,3|4",
            [*BY_N, "--cardinality=c=3"],
            "line 5: column 'c': 'rare': there are 3 values",
        ),
        ("1,b,3,3|4", "1,b,,3|4", ["--split_key=n"], "line 5: column 'n': missing: every row needs a value to split"),
        ("1,b,3,3|4", "1,b,,3|4", ["--display_id=n"], "line 5: column 'n': missing: every row needs a"),
        ("1,b,3,3|4", "1,b,x,3|4", ["--split_time_column=n", "--split_at=5"], "line 5: column 'n': 'x': it is not a n"),
        ("", "", ["--label=z"], "has no column 'z', which --label names; it has ['y', 'c', 'n', 't']"),
        ("", "", ["--categorical=z"], "has no column 'z', which a role names"),
        ("", "", ["--split_key=z"], "has no column 'z', which the split names"),
        ("", "", ["--hotness=z=1"], "has no column 'z', which --hotness names"),
        ("", "", ["--categorical=c,n", "--numerical=n"], "column 'n' is named by --categorical and by --numerical"),
        ("", "", ["--ignore=y"], "column 'y' is named by --label and by --ignore"),
        ("", "", ["--display_id=y"], "column 'y' is named by --label and by --display_id"),
        ("", "", ["--cardinality=n=9"], "--cardinality names 'n', whose role is numerical (whole numbers); name it in"),
        ("", "", ["--hotness=c=9"], "--hotness names 'c', whose role is categorical"),
        ("", "", ["--vocabulary=n"], "--vocabulary names 'n', whose role is numerical"),
        ("", "", ["--cardinality=c"], "--cardinality c: give NAME=N, N a whole number"),
        ("", "", ["--cardinality=c=0"], "--cardinality c=0: give at least 1"),
        ("", "", ["--ignore=c,n,t"], "no column is left to learn from"),
        ("", "", ["--test_fraction=1e-9"], "none of the 40 rows is left to test on; give another --test_fraction"),
        (
            "",
            "",
            ["--split_time_column=n", "--split_at=0"],
            "none of the 40 rows is left to train on; give a --split_at",
        ),
        (
            "",
            "",
            ["--split_time_column=n", "--split_at=99"],
            "none of the 40 rows is left to test on; give a --split_at",
        ),
        ("", "", ["--split_time_column=n"], "--split_time_column and --split_at go together"),
        ("", "", ["--split_at=3"], "--split_time_column and --split_at go together"),
        ("", "", ["--split_time_column=n", "--split_at=3", "--seed=0"], "--seed and --split_time_column contradict"),
        (
            "",
            "",
            ["--split_time_column=n", "--split_at=3", "--split_key=c"],
            "--split_key and --split_time_column cont",
        ),
        ("", "", ["--columns=a,b"], "add --no_header, or drop --columns"),
        ("", "", ["--train_files=a"], "--train_files is for --in_place"),
        ("", "", ["--in_place", "--log_standardize"], "--log_standardize and --in_place contradict each other"),
        ("", "", ["--in_place", "--seed=0"], "--seed and --in_place contradict each other"),
        ("", "", ["--min_count=0"], "--min_count=0: give at least 1"),
        ("", "", ["--fill=much"], "--fill=much: give a number, or mean"),
        ("", "", ["--fill=inf"], "--fill=inf: give a finite number"),
        ("", "", ["--rows_per_group=0"], "--rows_per_group=0"),
        ("", "", ["--delimiter=ab"], "--delimiter='ab'"),
        ("", "", ["--bogus"], "unrecognized arguments: --bogus"),
    ],
)
def test_one_line_for_what_is_wrong_and_nothing_left(tmp_path, capsys, old, new, arguments, message):
    assert old in TABLE
    path = simple(tmp_path, TABLE.replace(old, new, 1))
    line = refused(tmp_path, capsys, *([] if "--label=z" in arguments else ["--label=y"]), *arguments, input_path=path)
    assert message in line
    if message.startswith("line"):
        assert line.startswith(f"{path} line ")


@pytest.mark.parametrize("block_bytes", [64, 128, 1 << 20])
def test_the_line_is_right_in_any_batch(tmp_path, block_bytes):
    path = simple(tmp_path, TABLE.replace("1,b,31,", "1,b,inf,").replace("1,b,33,", '1,"b\n",33,'))
    with pytest.raises(InputError, match=r"t\.csv line 33: column 'n': 'inf'"):
        command.transcode(path, str(tmp_path / "out"), ColumnOptions("y"), block_bytes=block_bytes)
    path = simple(tmp_path, TABLE.replace("1,b,31,", '1,"b\n",31,').replace("1,b,35,", "2,b,35,"))
    with pytest.raises(InputError, match=r"t\.csv line 38: column 'y': '2'"):
        command.transcode(path, str(tmp_path / "out"), ColumnOptions("y"), block_bytes=block_bytes)


def test_the_command_as_users_start_it(tmp_path, capsys):
    path = simple(tmp_path, TABLE.replace(",", "\t").replace("y\tc\tn\tt\n", ""))
    arguments = ["--input", path, "--output", tmp_path / "out", "--label", "y", "--delimiter", "\\t", "--no_header"]
    arguments += ["--columns", 'y,"c,c"', "--columns=n,t", "--categorical", '"c,c"', "--ignore=n", "--missing=b"]
    assert run(*arguments) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and "rows to train" in printed.out
    spec = FeatureSpec.from_yaml(str(tmp_path / "out" / "feature_spec.yaml"))
    assert spec.onehot == ("c,c",) and spec.features["c,c"].cardinality == 2
    assert run(*arguments) == 2
    assert "holds other data" in capsys.readouterr().err
    assert run(*arguments, "--overwrite", "--min_count=99") == 0
    spec = FeatureSpec.from_yaml(str(tmp_path / "out" / "feature_spec.yaml"))
    assert spec.features["c,c"].cardinality == 1


def test_a_failing_overwrite_leaves_the_old_dataset(tmp_path, capsys):
    path = simple(tmp_path, TABLE)
    out = tmp_path / "out"
    assert run("--input", path, "--output", out, "--label=y") == 0
    before = contents(out)
    simple(tmp_path, TABLE.replace("1,b,39,", "7,b,39,"))
    assert run("--input", path, "--output", out, "--label=y", "--overwrite") == 2
    assert contents(out) == before and sorted(os.listdir(tmp_path)) == ["out", "t.csv"]


def test_the_input_is_safe(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    simple(tmp_path, TABLE, "in/t.csv")
    for output, source in (("in", "in"), ("in/out", "in"), ("in", "in/t.csv"), ("in/out", f"file://{tmp_path}/in")):
        source = source if ":" in source else tmp_path / source
        assert run("--input", source, "--output", tmp_path / output, "--label=y", "--overwrite") == 2
        assert "name a folder elsewhere" in capsys.readouterr().err
    assert contents(tmp_path) == {"in/t.csv": TABLE.encode()}


def append_a_row(path):
    with open(path, "a", encoding="utf-8") as file:
        file.write("1,a,1,1\n")


@pytest.mark.parametrize(
    ("change", "message", "left"),
    [
        (append_a_row, "changed while they were read", ["t.csv"]),
        (os.remove, r"t\.csv: cannot be read any more", []),
    ],
)
def test_a_file_that_changes_meanwhile(tmp_path, monkeypatch, change, message, left):
    path = simple(tmp_path, TABLE)
    fit = command.Passes.fit

    def then_change(self, *arguments):
        fit(self, *arguments)
        change(path)

    monkeypatch.setattr(command.Passes, "fit", then_change)
    with pytest.raises(InputError, match=message):
        command.transcode(path, str(tmp_path / "out"), ColumnOptions("y"))
    assert os.listdir(tmp_path) == left


def test_a_signal_leaves_nothing(tmp_path):
    """The run waits once all rows are written, so that it is surely under way."""
    arguments = ["--input", simple(tmp_path, TABLE), "--output", str(tmp_path / "out"), "--label=y"]
    script = (
        "import sys, data.transcode_passes as p\nfrom data.transcode import main\nold = p.Passes.write\n"
        "def write(self, *a):\n    old(self, *a)\n    print('written', flush=True)\n    sys.stdin.read()\n"
        f"p.Passes.write = write\nsys.exit(main({arguments!r}))"
    )
    job = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert job.stdout.readline() == "written\n"
        assert os.path.exists(tmp_path / "out.partial" / "train")
        job.send_signal(signal.SIGTERM)
        out, err = job.communicate(timeout=60)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 128 + signal.SIGTERM and out == "" and "stopped by SIGTERM; nothing was written" in err
    assert os.listdir(tmp_path) == ["t.csv"]


def test_no_rows(tmp_path, capsys):
    path = simple(tmp_path, "y,x\n")
    assert f"{path}: 1 file(s) hold no rows" in refused(tmp_path, capsys, "--label=y", input_path=path)
