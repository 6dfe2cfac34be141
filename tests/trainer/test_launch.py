import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from data.errors import InputError
from trainer import affinity, distributed, launch, nvml, runtime
from trainer.config import RunConfig
from trainer.distributed import SingleProcess

ROOT = Path(__file__).resolve().parents[2]


class Comm(SingleProcess):
    """Keeps what it was asked."""

    def __init__(self, **place):
        super().__init__(**place)
        self.calls = []

    def barrier(self):
        self.calls.append("barrier")

    def shutdown(self):
        self.calls.append("shutdown")


def lost_rank():
    """What a collective raises when a peer has gone."""
    error = tf.errors.UnknownError(None, None, "HorovodAllreduce: Horovod has been shut down")
    if not distributed.is_lost_rank(error):
        raise AssertionError("not the error of a lost rank any more")
    return error


class Exited(BaseException):
    """Instead of the end of the process."""


@pytest.fixture
def comm(monkeypatch):
    """The rank that `connect` finds. TensorFlow, which runs already, keeps its threads, and this process its CPUs."""
    comm = Comm()
    monkeypatch.setattr(distributed, "connect", lambda: comm)
    monkeypatch.setattr(runtime, "import_tensorflow", lambda device: tf)
    for name in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        monkeypatch.setattr(tf.config.threading, name, lambda number: None)
    for name in ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)

    def leave(code):
        raise Exited(code)

    monkeypatch.setattr(os, "_exit", leave)
    before = signal.getsignal(signal.SIGTERM)
    yield comm
    signal.signal(signal.SIGTERM, before)
    keras.mixed_precision.set_global_policy("float32")


def config_for(folder, **settings):
    settings = {"results_dir": f"{folder}/results", "affinity": "disabled"} | settings
    return RunConfig.from_flat(settings, frozenset(settings))


def start(config, run):
    """A rank whose Python writes to the process's descriptors, which pytest's own streams pass by."""
    with (
        os.fdopen(1, "w", buffering=1, closefd=False) as out,
        os.fdopen(2, "w", buffering=1, closefd=False) as err,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        return launch.run_as_rank(config, run)


def failing(error):
    def run(config, comm, surroundings):
        print("a line before it")
        raise error

    return run


# Ways to end.


def test_a_run_that_ends_well(comm, tmp_path, capfd):
    def run(config, comm, surroundings):
        print("printed")
        os.write(2, b"warned\n")

    assert start(config_for(tmp_path), run) == 0
    assert comm.calls == ["shutdown"]
    assert tuple(capfd.readouterr()) == ("printed\n", "warned\n")
    assert sorted((tmp_path / "results/rank-0.log").read_text().splitlines()) == ["printed", "warned"]


def test_bad_input_is_one_line_and_code_2(comm, tmp_path, capfd):
    assert start(config_for(tmp_path), failing(InputError("x.yaml: no such file"))) == 2
    assert tuple(capfd.readouterr()) == ("a line before it\n", "main.py: x.yaml: no such file\n")
    # Nobody leaves before all have said their line.
    assert comm.calls == ["barrier", "shutdown"]
    assert "main.py: x.yaml: no such file\n" in (tmp_path / "results/rank-0.log").read_text()


def test_among_several_the_line_names_the_rank(comm, tmp_path, capfd, monkeypatch):
    comm.rank, comm.size, comm.local_rank, comm.local_size = 1, 2, 1, 2
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setattr(comm, "allgather_object", lambda value: [value, value])
    assert start(config_for(tmp_path), failing(InputError("nonsense"))) == 2
    assert capfd.readouterr().err == "main.py: rank 1: nonsense\n"
    assert "rank 1: nonsense" in (tmp_path / "results/rank-1.log").read_text()


def test_bad_input_before_the_ranks_know_each_other(comm, tmp_path, capfd, monkeypatch):
    def connect():
        raise InputError("the launcher started 2 processes but Horovod sees one")

    monkeypatch.setattr(distributed, "connect", connect)
    assert start(config_for(tmp_path), failing(AssertionError("not run"))) == 2
    assert tuple(capfd.readouterr()) == ("", "main.py: the launcher started 2 processes but Horovod sees one\n")
    assert comm.calls == []


def test_results_that_cannot_be_written(comm, tmp_path, capfd):
    (tmp_path / "file").write_text("")
    config = config_for(tmp_path, results_dir=f"{tmp_path}/file/results")
    assert start(config, failing(AssertionError("not run"))) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("main.py: cannot write the log") and err.count("\n") == 1


def test_an_interrupted_run_says_so_in_a_line(comm, tmp_path, capfd):
    with pytest.raises(Exited) as left:
        start(config_for(tmp_path), failing(KeyboardInterrupt()))
    assert left.value.args == (130,) and comm.calls == []
    err = capfd.readouterr().err
    assert err == "main.py: interrupted; --use_checkpoint goes on from the last checkpoint, if there is one\n"


def test_anything_else_ends_the_process_at_once_with_its_trace(comm, tmp_path, capfd):
    error = ZeroDivisionError("a bug")
    with pytest.raises(Exited) as left:
        start(config_for(tmp_path), failing(error))
    assert left.value.args == (1,) and comm.calls == []
    out, err = capfd.readouterr()
    assert out == "a line before it\n"
    assert err.startswith("main.py: rank 0 failed:\nTraceback") and type(error).__name__ in err.splitlines()[-1]
    assert type(error).__name__ in (tmp_path / "results/rank-0.log").read_text()


def test_a_rank_that_lost_another_points_there(comm, tmp_path, capfd):
    with pytest.raises(Exited) as left:
        start(config_for(tmp_path), failing(lost_rank()))
    assert left.value.args == (1,)
    err = capfd.readouterr().err
    assert err == "main.py: ended because another rank did: that rank's output says why, unless it was killed\n"


def test_a_rank_that_cannot_meet_the_others_after_bad_input(comm, tmp_path, capfd, monkeypatch):
    def barrier():
        raise lost_rank()

    monkeypatch.setattr(comm, "barrier", barrier)
    with pytest.raises(Exited):
        start(config_for(tmp_path), failing(InputError("nonsense")))
    assert capfd.readouterr().err.splitlines()[0] == "main.py: nonsense"


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, 0),
        ({"HOROVOD_RANK": "3"}, 3),
        ({"OMPI_COMM_WORLD_RANK": "5"}, 5),
        ({"HOROVOD_RANK": "2", "OMPI_COMM_WORLD_RANK": "0"}, 2),
        ({"PMI_RANK": "1"}, 1),
        ({"HOROVOD_RANK": "", "PMI_RANK": "4"}, 4),
        ({"SLURM_PROCID": "5"}, 0),
    ],
)
def test_the_rank_by_the_launchers_word(environ, rank):
    assert launch.launched_rank(environ) == rank


# What a run is given.


def settle(comm, folder, **settings):
    found = []
    code = start(config_for(folder, **settings), lambda *arguments: found.append(arguments))
    ((config, given_comm, surroundings),) = found
    assert code == 0 and given_comm is comm
    return config, surroundings


def test_batch_sizes_fall_back_on_a_cpu(comm, tmp_path):
    config, surroundings = settle(comm, tmp_path, global_batch_size=77)
    assert (config.training.global_batch_size, config.training.eval_batch_size) == (77, 4096)
    assert surroundings.fell_back[-1] == "eval_batch_size 4096 (no GPU)"
    assert not any("global_batch_size" in note or "results_dir" in note for note in surroundings.fell_back)


def test_batch_sizes_stay_on_a_gpu(comm, tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "configure", lambda device, threads: runtime.Device(True, "GPU NVIDIA X"))
    config, surroundings = settle(comm, tmp_path)
    assert config.training.global_batch_size == 131072 and surroundings.device.description == "GPU NVIDIA X"


def test_threads_are_the_ranks_cpus_unless_given(comm, tmp_path, monkeypatch):
    monkeypatch.setattr(affinity, "_allowed_cpus", lambda: frozenset(range(6)))
    assert settle(comm, tmp_path)[1].device.description == "CPU, 6 threads a rank"
    assert settle(comm, tmp_path, intra_op_threads=4)[1].device.description == "CPU, 4 threads a rank"
    comm.size, comm.local_size = 3, 3
    monkeypatch.setattr(comm, "allgather_object", lambda value: [value] * 3)
    # Ranks that are not kept apart share the CPUs.
    assert settle(comm, tmp_path)[1].device.description == "CPU, 2 threads a rank"


def test_a_rank_of_eight_gpus_has_a_thread_for_each_cpu_and_nothing_to_warn_of(comm, tmp_path, monkeypatch):
    """Two sockets of eight CPUs, four GPUs at each."""
    near = [frozenset(range(8 * (rank // 4), 8 * (rank // 4) + 8)) for rank in range(8)]
    comm.rank, comm.size, comm.local_rank, comm.local_size = 5, 8, 5, 8
    monkeypatch.setattr(comm, "allgather_object", lambda value: [(0, rank, sorted(near[rank])) for rank in range(8)])
    monkeypatch.setattr(runtime, "has_gpu", lambda: True)
    monkeypatch.setattr(nvml, "cpus_near", lambda device, **_: nvml.Locality(near[int(device)]))
    monkeypatch.setattr(nvml, "cpus_near_each", lambda **_: near)
    monkeypatch.setattr(affinity, "_allowed_cpus", lambda: frozenset(range(16)))
    monkeypatch.setattr(affinity, "_move_all_threads", lambda cpus: None)
    for module in (affinity, launch):
        monkeypatch.setattr(module, "read_topology", lambda: {cpu: (cpu, cpu // 8) for cpu in range(16)})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    threads = []

    def configure(device, *, threads: int, seen=threads):
        seen.append(threads)
        return runtime.Device(True, "GPU NVIDIA X", warnings=("L2 fetches: refused",))

    monkeypatch.setattr(runtime, "configure", configure)
    surroundings = settle(comm, tmp_path, affinity="unique_interleaved")[1]
    assert threads == [2] and surroundings.warnings == ("L2 fetches: refused",)


def test_a_progress_bar_has_the_terminal_and_not_the_log(comm, tmp_path, capfd):
    def run(config, comm, surroundings):
        print("bar", file=surroundings.terminal, flush=True)

    assert start(config_for(tmp_path), run) == 0
    assert capfd.readouterr().err == "bar\n"
    assert (tmp_path / "results/rank-0.log").read_text() == ""


def test_a_process_of_its_own_gets_cpus_threads_and_precision(tmp_path):
    """The one test in which TensorFlow's threads and the process's CPUs are really set."""
    script = """
import json, os, sys
from trainer import flags, launch

def run(config, comm, surroundings):
    import keras
    import tensorflow as tf
    print(json.dumps({
        "cpus": sorted(os.sched_getaffinity(0)),
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "policy": keras.mixed_precision.global_policy().name,
        "device": surroundings.device.description,
        "changed": not any("affinity" in note for note in surroundings.without_effect),
        "visible": os.environ["CUDA_VISIBLE_DEVICES"],
        "sum": float(tf.reduce_sum(tf.ones((3, 3)))),
    }))

sys.exit(launch.run_as_rank(flags.parse(sys.argv[1:]), run))
"""
    arguments = ["--affinity=single", "--amp", "--amp_dtype=bfloat16", "--cpu", f"--results_dir={tmp_path}"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "CUDA_"))}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True, env=environ
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    allowed = os.sched_getaffinity(0)
    assert len(found["cpus"]) == 1 and set(found["cpus"]) <= allowed
    assert found["threads"] == 1 and found["device"] == "CPU, 1 thread a rank"
    assert found["changed"] == (len(allowed) > 1)
    assert (found["policy"], found["visible"], found["sum"]) == ("mixed_bfloat16", "-1", 9.0)
    assert done.stderr == ""


@pytest.mark.parametrize(("asked", "ranks", "code"), [("1", 2, 2), ("0", 2, 0), ("1", 1, 0), (None, 2, 0)])
def test_sums_that_depend_on_time_are_refused_where_runs_are_to_be_the_same(
    comm, tmp_path, capfd, monkeypatch, asked, ranks, code
):
    comm.size = comm.local_size = ranks
    monkeypatch.setattr(comm, "allgather_object", lambda value: [value] * ranks)
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    monkeypatch.delenv("HOROVOD_AUTOTUNE", raising=False)
    if asked is not None:
        monkeypatch.setenv("HOROVOD_AUTOTUNE", asked)
    assert start(config_for(tmp_path, deterministic=True), lambda *arguments: None) == code
    assert ("HOROVOD_AUTOTUNE=1 changes how gradients are summed" in capfd.readouterr().err) == (code == 2)


@pytest.mark.parametrize("asked", [False, True])
def test_tensorflow_is_told_to_be_deterministic_where_that_is_asked_for(comm, tmp_path, monkeypatch, asked):
    told = []
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: told.append(True))
    settle(comm, tmp_path, deterministic=asked)
    assert bool(told) == asked
