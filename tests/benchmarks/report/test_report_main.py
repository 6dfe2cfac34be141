"""The command: what it prints, where, and its exit codes."""

import json
import tarfile

import pytest
from report_cases import MACHINE, folder, log, repeats, turns, whole_log

from benchmarks.report import tables
from benchmarks.report.__main__ import main
from benchmarks.report.rows import summarise


def test_show_prints_the_table(tmp_path, capsys):
    results = repeats(100, 101)
    assert main(["show", str(folder(tmp_path, results))]) == 0
    out, err = capsys.readouterr()
    assert out == tables.text(summarise(results, "here"))
    assert err == ""


@pytest.mark.parametrize(
    ("form", "beginning"),
    [("text", "Machine"), ("markdown", "## Machine"), ("csv", "model,"), ("json", "{"), ("html", "<!DOCTYPE html>")],
)
def test_show_writes_each_form(tmp_path, capsys, form, beginning):
    folder(tmp_path, repeats(100))
    assert main(["show", str(tmp_path), "--format", form, "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text().startswith(beginning)
    assert capsys.readouterr().out == f"{tmp_path}/out: written\n"


def test_bad_lines_are_named_the_good_shown_and_the_code_is_1(tmp_path, capsys):
    folder(tmp_path, repeats(100), '{"cell": {"mod\n')
    assert main(["show", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "100.0" in out
    assert err.startswith(f"{tmp_path}/records.jsonl:2: ")
    assert main(["bundle", str(tmp_path), "--output", str(tmp_path / "b.tar.gz")]) == 0


def test_bad_logs_are_named_the_good_shown_and_the_code_is_1(tmp_path, capsys):
    log(tmp_path / "a b.log", *whole_log())
    log(tmp_path / "cut.log", *whole_log()[:-1])
    log(tmp_path / "empty.log")
    assert main(["show", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "A.1dev-embed32-fp32" in out and "12" in out
    assert err.splitlines() == [
        f"{tmp_path}/cut.log: no run_stop: the run did not finish",
        f"{tmp_path}/empty.log: empty",
    ]


def test_show_refuses_several_machines(tmp_path, capsys):
    a = folder(tmp_path / "a", repeats(100))
    b = folder(tmp_path / "b", repeats(100, fingerprint={**MACHINE, "cpu_model": "Cray"}))
    assert main(["show", str(a), str(b)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "cpu_model (Abacus / Cray)" in err and err.count("\n") == 1


def test_compare_systems(tmp_path, capsys):
    a = folder(tmp_path / "a", repeats(100, 101, 99))
    b = folder(tmp_path / "b", repeats(80, 81, 79, fingerprint={**MACHINE, "cpus": 9}))
    assert main(["compare", str(a), str(b)]) == 0
    out, err = capsys.readouterr()
    assert "slower" in out and "cpus (2 / 9)" in out and err == ""
    assert main(["compare", str(a), str(b), "--threshold", "0.75"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["compare", str(a), str(b), "--threshold", "0.95"]) == 1
    out, err = capsys.readouterr()
    assert err.startswith("slower than 0.95: dlrm-optimized-training-tiny, version 1, batch 64, fp32: 0.800 (")
    assert main(["compare", str(b), str(a), "--threshold", "0.95"]) == 0


def test_compare_with_an_uncertain_difference_passes(tmp_path):
    a, b = folder(tmp_path / "a", repeats(100, 101, 99)), folder(tmp_path / "b", repeats(80, 120, 60))
    assert main(["compare", str(a), str(b), "--threshold", "0.95"]) == 0


def test_a_score_that_is_lost_does_not_pass_a_threshold(tmp_path, capsys):
    a = folder(tmp_path / "a", [*repeats(100, 101, 99), *repeats(5, batch_size=8)])
    b = folder(tmp_path / "b", [*repeats(100, 101, 99), *repeats(5, batch_size=16)])
    assert main(["compare", str(a), str(b)]) == 0
    capsys.readouterr()
    assert main(["compare", str(a), str(b), "--threshold", "0.9"]) == 1
    lost = f"dlrm-optimized-training-tiny, version 1, batch 8, fp32: a score in {a}, none in {b}"
    assert capsys.readouterr().err == f"nothing to hold against 0.9: {lost}\n"


@pytest.mark.parametrize("form", ["text", "markdown", "csv", "json"])
def test_compare_implementations(tmp_path, capsys, form):
    folder(tmp_path, turns([50, 51, 52], [100, 101, 102]))
    assert main(["compare", str(tmp_path), "--implementations", "ootb,optimized", "--format", form]) == 0
    assert "paired t" in capsys.readouterr().out


def test_compare_names_bad_lines_of_both(tmp_path, capsys):
    a, b = folder(tmp_path / "a", repeats(1), "x\n"), folder(tmp_path / "b", repeats(1), "y\n")
    assert main(["compare", str(a), str(b)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_bundle(tmp_path, capsys):
    folder(tmp_path / "a", repeats(1))
    path = tmp_path / "b.tar.gz"
    assert main(["bundle", str(tmp_path / "a"), "--output", str(path)]) == 0
    assert main(["bundle", "--verify", str(path)]) == 0
    assert "files are what the manifest says" in capsys.readouterr().out


def test_bundle_that_was_changed(tmp_path, capsys):
    path = tmp_path / "b.tar.gz"
    (tmp_path / "x").write_text(json.dumps({"format": 1, "files": {"results/a": "0"}}))
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "x", "MANIFEST.json")
    assert main(["bundle", "--verify", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "0 of 1 files" in out
    assert err == f"{path}: results/a is missing\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["show"],
        ["shout", "x"],
        ["show", "gone"],
        ["show", "a", "--format", "pdf"],
        ["compare", "a"],
        ["compare", "a", "a", "a"],
        ["compare", "a", "gone"],
        ["compare", "a", "a", "--threshold", "0"],
        ["compare", "a", "a", "--threshold", "nan"],
        ["compare", "a", "a", "--threshold", "fast"],
        ["compare", "a", "a", "--implementations", "ootb,optimized"],
        ["compare", "a", "--implementations", "ootb"],
        ["compare", "a", "--implementations", "optimized,optimized"],
        ["compare", "a", "--implementations", "ootb,optimized"],
        ["compare", "a", "a", "--format", "html"],
        ["bundle"],
        ["bundle", "a"],
        ["bundle", "a", "--verify", "x"],
        ["bundle", "--verify", "gone"],
        ["show", "a", "--output", "gone/x"],
    ],
)
def test_bad_input_is_one_line_and_code_2(tmp_path, capsys, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "a", repeats(1))
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1


def test_a_threshold_never_passes_what_has_no_interval(tmp_path, capsys):
    for name, score in (("a", 100), ("b", 10)):
        (tmp_path / name).mkdir()
        folder(tmp_path / name, repeats(score))
    arguments = ["compare", str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(arguments) == 0
    capsys.readouterr()
    assert main([*arguments, "--threshold", "0.95"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("no interval to hold against 0.95: ") and "0.100; both need two repeats" in line


NO_RESULTS = {
    "empty.jsonl": b"",
    "empty.log": b"",
    "binary.jsonl": b"\x7fELF\n\x00\n\xff\n",
    "binary.log": b"\x7fELF\n\x00\n",
    "text": b"root:x:0:0:root\ndaemon:x:1:1:daemon\nbin:x:2:2:bin\n",
    "page.json": b'{\n "rows": []\n}\n',
}


@pytest.mark.parametrize("name", NO_RESULTS)
@pytest.mark.parametrize("command", ["show", "compare", "compare --implementations ootb,optimized", "agreement"])
def test_a_file_without_a_result_is_one_line_and_code_2(tmp_path, capsys, name, command):
    path = tmp_path / name
    path.write_bytes(NO_RESULTS[name])
    word, *options = command.split()
    good = str(folder(tmp_path / "good", repeats(1)))
    both = [] if options or word == "show" else [good]
    assert main([word, *both, str(path), *options]) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == "" and line.startswith(f"{path}:") and "name a folder or file of results" in line
    assert ("empty" if name.startswith("empty") else "not JSON") in line


def test_a_log_that_is_cut_and_a_folder_of_such_are_one_line_and_code_2(tmp_path, capsys):
    log(tmp_path / "cut.log", *whole_log()[:-1])
    assert main(["show", str(tmp_path / "cut.log")]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path}/cut.log: no run_stop: the run did not finish; name a ")
    log(tmp_path / "empty.log")
    assert main(["show", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no run_stop: the run did not finish, and 1 more without a result; name a " in line


def test_a_wrong_file_beside_a_good_one_is_one_line(tmp_path, capsys):
    good = folder(tmp_path / "good", repeats(100))
    (tmp_path / "text").write_bytes(NO_RESULTS["text"])
    assert main(["show", str(good), str(tmp_path / "text")]) == 1
    out, err = capsys.readouterr()
    assert "100.0" in out
    assert err == f"{tmp_path}/text:1: not JSON: Expecting value at letter 1, nor is any other line a result\n"


def test_results_without_a_single_one_are_not_packed(tmp_path, capsys):
    (tmp_path / "records.jsonl").write_text("")
    assert main(["bundle", str(tmp_path), "--output", str(tmp_path / "b.tar.gz")]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path}/records.jsonl: empty; ")
    assert not (tmp_path / "b.tar.gz").exists()


def test_a_folder_is_no_bundle(tmp_path, capsys):
    assert main(["bundle", "--verify", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"{tmp_path}: a folder, and no bundle; name the .tar.gz file that bundle --output has written\n"
    )


@pytest.mark.parametrize("command", [[], ["compare"], ["agreement"], ["bundle"]])
def test_help_says_what_the_exit_codes_mean(capsys, command):
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*command, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "the exit code is 1" in said and "without an interval" in said and "It is 2 for bad input" in said
