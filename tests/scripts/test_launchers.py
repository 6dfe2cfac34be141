"""The launchers, .ci/run and the Makefile: which command comes out of which options."""

import os
import shlex
import shutil
from pathlib import Path

import pytest

SCRIPTS = ("training_benchmark.sh", "evaluating_benchmark.sh", "training_full.sh")
STEPS = ["--benchmark_warmup_steps=500", "--benchmark_steps=1000"]


@pytest.fixture
def checkout(root, tmp_path):
    """A copy of the scripts, in a folder with a space in its name."""
    copy = tmp_path / "check out"
    shutil.copytree(root / "scripts", copy / "scripts")
    for name in ("hvd_wrapper.sh", "Makefile"):
        shutil.copy(root / name, copy)
    return copy


@pytest.fixture
def launch(checkout, run, recorder, tmp_path):
    """launch(SCRIPT, *ARGUMENTS): the finished script and the arguments of what it started, if anything."""
    for name in ("python", "horovodrun"):
        recorder(tmp_path / "bin" / name)
    (tmp_path / "elsewhere").mkdir()

    def launch(script, *arguments, cwd=tmp_path / "elsewhere", **environment):
        before = len(recorder.calls())
        path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
        finished = run(["sh", checkout / "scripts" / script, *arguments], cwd=cwd, PATH=path, **environment)
        calls = recorder.calls()[before:]
        assert len(calls) <= 1
        return finished, [Path(calls[0][0]).name, *calls[0][1:]] if calls else None

    return launch


def test_one_rank_is_plain_python(launch, checkout):
    finished, command = launch("training_full.sh", "-g", "1")
    assert finished.returncode == 0, finished.stderr
    assert command == ["python", f"{checkout}/main.py"]


@pytest.mark.parametrize("ranks", ["2", "8", "96"])
def test_more_ranks_go_through_horovodrun_and_the_wrapper(launch, checkout, ranks):
    _, command = launch("training_full.sh", "-g", ranks)
    assert command == ["horovodrun", "-np", ranks, "sh", f"{checkout}/hvd_wrapper.sh", "python", f"{checkout}/main.py"]


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("training_benchmark.sh", ["--benchmark", *STEPS, "--global_batch_size=65536"]),
        ("evaluating_benchmark.sh", ["--evaluate", "--benchmark", *STEPS, "--eval_batch_size=65536"]),
        ("training_full.sh", ["--global_batch_size=65536"]),
    ],
)
def test_what_each_script_asks_of_main(launch, script, flags):
    _, command = launch(script, "-g", "1", "-b", "65536")
    assert command[2:] == flags


@pytest.mark.parametrize(
    "options",
    [
        ["-g", "4", "-b", "4096", "-a", "-x"],
        ["--gpu", "4", "--batch", "4096", "--amp", "--xla"],
        ["--gpus=4", "--batch=4096", "-x", "-a"],
        ["-x", "--amp", "-b", "4096", "--gpu=4"],
    ],
)
def test_short_and_long_options(launch, options):
    _, command = launch("training_full.sh", *options)
    assert command[:3] == ["horovodrun", "-np", "4"]
    assert sorted(command[7:]) == ["--amp", "--global_batch_size=4096", "--xla"]


def test_flags_of_main_arrive_last_and_unharmed(launch):
    flags = ["--benchmark_steps=7", "--dataset_path=/my data/(1)", "it's", "", "two\nlines\n", "$HOME *", "--", "-g"]
    _, command = launch("training_benchmark.sh", "-g", "2", "-a", "--", *flags)
    assert command[-len(flags) :] == flags
    assert command[-len(flags) - 1] == "--amp"


def test_hosts_start_horovodrun_even_for_one_rank(launch):
    _, command = launch("training_full.sh", "-g", "16", "-H", "a:8,b:8")
    assert command[:5] == ["horovodrun", "-np", "16", "-H", "a:8,b:8"]
    _, command = launch("training_full.sh", "-g", "1", "--hosts=a:1")
    assert command[:5] == ["horovodrun", "-np", "1", "-H", "a:1"]


@pytest.mark.parametrize("ranks", ["1", "3"])
def test_dry_run_prints_the_command_and_runs_nothing(launch, ranks):
    arguments = ["training_benchmark.sh", "-g", ranks, "-b", "512", "-x", "--", "--f=a b", "it's", "", "l1\nl2\n", "~"]
    _, command = launch(*arguments)
    finished, started = launch(*arguments, DRY_RUN="1")
    assert (finished.returncode, started) == (0, None)
    assert shlex.split(finished.stdout) == command


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "-g RANKS is missing"),
        (["-g"], "-g needs a value"),
        (["-g", "0"], "-g 0"),
        (["-g", "two"], "-g two"),
        (["-g", "2", "-b", "-1"], "-b -1"),
        (["-g", "2", "--learning-rate", "1"], "'--learning-rate'"),
        (["-g", "2", "--precision=amp"], "'--precision'"),
        (["-g", "2", "4096"], "'4096'"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(launch, script, arguments, word):
    finished, command = launch(script, *arguments)
    assert (finished.returncode, finished.stdout, command) == (2, "", None)
    assert len(finished.stderr.splitlines()) == 1
    assert finished.stderr.startswith(f"{script}: ") and word in finished.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_lists_the_options(launch, script):
    finished, command = launch(script, "-h")
    assert (finished.returncode, finished.stderr, command) == (0, "", None)
    for option in ("-g, --gpu", "-b, --batch", "-a, --amp", "-x, --xla", "-H, --hosts", "-h, --help", script):
        assert option in finished.stdout


def test_the_environment_of_the_checkout_goes_first(launch, checkout, recorder):
    recorder(checkout / ".venv/bin/python")
    finished, _ = launch("training_full.sh", "-g", "1")
    assert finished.returncode == 0
    assert recorder.calls()[-1][0] == f"{checkout}/.venv/bin/python"


def test_without_horovodrun_it_says_what_to_do(launch, tmp_path):
    (tmp_path / "bin/horovodrun").unlink()
    finished, command = launch("training_full.sh", "-g", "2")
    assert (finished.returncode, command) == (2, None)
    assert len(finished.stderr.splitlines()) == 1 and "make setup" in finished.stderr and "-g 1" in finished.stderr


@pytest.fixture
def slurm(launch, program, tmp_path, checkout):
    """slurm(*ARGUMENTS, **environment): a job on two nodes, run from a copy as Slurm does."""
    program(tmp_path / "bin/scontrol", '#!/bin/sh\n[ "$*" = "show hostnames n[1-2]" ] && printf "n1\\nn2\\n"\n')
    names = ("RANKS_PER_NODE", "SLURM_GPUS_ON_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_SUBMIT_DIR")
    spooled = shutil.copy(checkout / "scripts/slurm.sh", tmp_path / "slurm_script")

    def slurm(*arguments, **environment):
        job = {**dict.fromkeys(names), "SLURM_SUBMIT_DIR": str(checkout), "SLURM_JOB_NODELIST": "n[1-2]"}
        return launch(spooled, *arguments, **{**job, **environment})

    return slurm


@pytest.mark.parametrize(
    ("environment", "per_node"),
    [
        ({"SLURM_GPUS_ON_NODE": "8", "SLURM_NTASKS_PER_NODE": "1"}, 8),
        ({"SLURM_NTASKS_PER_NODE": "2"}, 2),
        ({"RANKS_PER_NODE": "3", "SLURM_GPUS_ON_NODE": "8"}, 3),
        ({}, 1),
    ],
)
def test_slurm_takes_every_node(slurm, checkout, environment, per_node):
    finished, command = slurm("--num_epochs=3", "--model_dir=/my models", **environment)
    assert finished.returncode == 0, finished.stderr
    assert command == [
        *("horovodrun", "-np", str(2 * per_node), "-H", f"n1:{per_node},n2:{per_node}"),
        *(
            "sh",
            f"{checkout}/hvd_wrapper.sh",
            "python",
            f"{checkout}/main.py",
            "--num_epochs=3",
            "--model_dir=/my models",
        ),
    ]


@pytest.mark.parametrize(
    ("environment", "word"),
    [
        ({"SLURM_SUBMIT_DIR": "/"}, "no checkout at /"),
        ({"SLURM_JOB_NODELIST": None}, "sbatch"),
        ({"SLURM_JOB_NODELIST": "wrong"}, "wrong"),
        ({"RANKS_PER_NODE": "8(x2)"}, "8(x2)"),
    ],
)
def test_slurm_says_what_is_wrong(slurm, environment, word):
    finished, command = slurm(**environment)
    assert (finished.returncode, command) == (2, None)
    assert len(finished.stderr.splitlines()) == 1 and word in finished.stderr


def make(checkout, run, program, *arguments, **environment):
    program(checkout / "scripts/setup.sh", '#!/bin/sh\necho "setup $*"\n')
    for name in ("RANKS", "BATCH", "WARMUP_STEPS", "STEPS", "ROWS", "RESULTS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        environment.setdefault(name)
    return run(["make", "--no-print-directory", "-C", checkout, *arguments], **environment)


def test_make_benchmark_is_two_ranks_of_the_main_job(checkout, run, program, recorder):
    recorder(checkout / ".venv/bin/horovodrun")
    recorder(checkout / ".venv/bin/python")
    finished = make(checkout, run, program, "benchmark")
    assert finished.returncode == 0 and "setup --keep" in finished.stdout, finished.stderr
    assert recorder.calls() == [
        [
            *(f"{checkout}/.venv/bin/horovodrun", "-np", "2", "sh", f"{checkout}/hvd_wrapper.sh"),
            *("python", f"{checkout}/main.py", "--dataset_type=synthetic", "--synthetic_rows=200000", "--benchmark"),
            *("--benchmark_warmup_steps=5", "--benchmark_steps=25", "--global_batch_size=4096"),
            "--results_dir=results/benchmark",
        ]
    ]


def test_make_benchmark_takes_other_numbers(checkout, run, program, recorder):
    recorder(checkout / ".venv/bin/horovodrun")
    recorder(checkout / ".venv/bin/python")
    numbers = ("RANKS=3", "BATCH=64", "STEPS=9", "WARMUP_STEPS=2", "ROWS=1000", "RESULTS=/my results")
    assert make(checkout, run, program, "benchmark", *numbers).returncode == 0
    command = recorder.calls()[0]
    assert command[1:3] == ["-np", "3"] and command[-1] == "--results_dir=/my results"
    assert {"--benchmark_warmup_steps=2", "--benchmark_steps=9", "--global_batch_size=64"} <= set(command)
    assert "--synthetic_rows=1000" in command


def test_make_benchmark_without_horovod_is_one_process(checkout, run, program, recorder):
    recorder(checkout / ".venv/bin/python")
    assert make(checkout, run, program, "benchmark").returncode == 0
    assert [call[:2] for call in recorder.calls()] == [[f"{checkout}/.venv/bin/python", f"{checkout}/main.py"]]


def test_make_test_is_lint_and_all_tests(checkout, run, program, recorder):
    for name in ("ruff", "pytest"):
        recorder(checkout / ".venv/bin" / name)
    assert make(checkout, run, program, "test").returncode == 0
    commands = [[Path(call[0]).name, *call[1:]] for call in recorder.calls()]
    assert commands == [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["pytest"]]


def test_make_test_fails_when_lint_fails(checkout, run, program, recorder):
    program(checkout / ".venv/bin/ruff", "#!/bin/sh\nexit 1\n")
    recorder(checkout / ".venv/bin/pytest")
    assert make(checkout, run, program, "test").returncode != 0
    assert recorder.calls() == []


def test_make_hands_its_options_to_the_set_up(checkout, run, program):
    def echo(path, _):
        program(path, '#!/bin/sh\necho "$HOROVOD$PREPROC$MPI$GPU$PYTHON"\n')

    finished = make(checkout, run, echo, "HOROVOD=0", "PREPROC=0", "MPI=1", "GPU=1", "PYTHON=/my python", "setup")
    assert finished.stdout == "0011/my python\n"


def test_make_alone_lists_the_targets(checkout, run, program):
    finished = make(checkout, run, program)
    assert finished.returncode == 0
    for target in ("setup", "benchmark", "test", "lint", "format", "clean"):
        assert f"make {target} " in finished.stdout


def test_make_clean_leaves_results_alone(checkout, run, program):
    for name in (".venv/bin", ".pytest_cache", "data/__pycache__", "results/run", "checkpoints"):
        (checkout / name).mkdir(parents=True)
    assert make(checkout, run, program, "clean").returncode == 0
    left = {path.name for path in checkout.iterdir()}
    assert {"results", "checkpoints", "data"} <= left and not {".venv", ".pytest_cache"} & left
    assert list((checkout / "data").iterdir()) == []


def test_ci_runs_exactly_make_test(root, run, recorder, tmp_path):
    recorder(tmp_path / "bin/make")
    finished = run([root / ".ci/run"], cwd=tmp_path, PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert finished.returncode == 0, finished.stderr
    assert [call[1:] for call in recorder.calls()] == [["test"]]


def test_every_script_can_be_run_and_parsed(root, run):
    scripts = [*sorted((root / "scripts").glob("*.sh")), root / "hvd_wrapper.sh", root / ".ci/run"]
    assert len(scripts) >= 8
    for script in scripts:
        first = script.read_text().splitlines()[0]
        shell = "bash" if "bash" in first or script.name == "horovod_wheel.sh" else "sh"
        assert run([shell, "-n", script]).returncode == 0, script
        if first.startswith("#!"):
            assert os.access(script, os.X_OK), script
