"""hvd_wrapper.sh: which device a process gets, and that the command arrives as it was typed."""

import json
import sys

import pytest

RANKS = ("HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


@pytest.fixture
def wrapper(root, run, program, tmp_path):
    """wrapper(*ARGUMENTS, nvidia_smi=..., **environment): the wrapper on a machine with that `nvidia-smi -L`."""

    def wrapper(*arguments, nvidia_smi="exit 9", command=(sys.executable, "-c", SHOW), **environment):
        program(tmp_path / "bin/nvidia-smi", f"#!/bin/sh\n{nvidia_smi}\n")
        cleared = dict.fromkeys((*RANKS, "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"))
        path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
        return run(["sh", root / "hvd_wrapper.sh", *command, *arguments], **{**cleared, "PATH": path, **environment})

    return wrapper


def device_of(finished):
    """What the command saw as CUDA_VISIBLE_DEVICES, None if it was not set."""
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)[1].get("CUDA_VISIBLE_DEVICES")


EIGHT = "\n".join(f"echo 'GPU {index}: NVIDIA A100 (UUID: GPU-{index})'" for index in range(8))
MIG = "echo 'GPU 0: NVIDIA A100 (UUID: GPU-0)'; echo '  MIG 3g.20gb Device 0: (UUID: MIG-0)'"


@pytest.mark.parametrize("variable", RANKS)
def test_each_launchers_local_rank_takes_its_entry(wrapper, variable):
    assert device_of(wrapper(CUDA_VISIBLE_DEVICES="4,5,6", **{variable: "2"})) == "6"


def test_horovod_goes_before_mpi_goes_before_slurm(wrapper):
    ranks = dict(zip(RANKS, ("0", "1", "2"), strict=True))
    assert device_of(wrapper(CUDA_VISIBLE_DEVICES="a,b,c", **ranks)) == "a"
    assert device_of(wrapper(CUDA_VISIBLE_DEVICES="a,b,c", **{**ranks, RANKS[0]: None})) == "b"
    assert device_of(wrapper(CUDA_VISIBLE_DEVICES="a,b,c", **{**ranks, RANKS[0]: ""})) == "b"


@pytest.mark.parametrize(
    ("listed", "rank", "device"),
    [
        ("GPU-6a1c,GPU-77f0", "1", "GPU-77f0"),
        ("MIG-GPU-6a1c/1/0,MIG-9b2e", "0", "MIG-GPU-6a1c/1/0"),
        ("7, 3", "1", "3"),
        ("0,0,1,1", "2", "1"),
        ("0,1,2,3,4,5,6,7,8,9,10", "10", "10"),
        ("5", "0", "5"),
    ],
)
def test_entry_of_a_list(wrapper, listed, rank, device):
    assert device_of(wrapper(CUDA_VISIBLE_DEVICES=listed, HOROVOD_LOCAL_RANK=rank)) == device


@pytest.mark.parametrize("off", ["", "-1", "NoDevFiles"])
def test_gpus_switched_off_stay_off(wrapper, off):
    assert device_of(wrapper(CUDA_VISIBLE_DEVICES=off, HOROVOD_LOCAL_RANK="1", nvidia_smi=EIGHT)) == off


@pytest.mark.parametrize("listed", ["3", "3,4", "3,4,"])
def test_too_few_entries_are_an_error(wrapper, listed):
    finished = wrapper(CUDA_VISIBLE_DEVICES=listed, HOROVOD_LOCAL_RANK="2")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert len(finished.stderr.splitlines()) == 1
    assert f"CUDA_VISIBLE_DEVICES={listed} " in finished.stderr and "HOROVOD_LOCAL_RANK=2" in finished.stderr


def test_slurms_own_binding_to_one_device_is_kept(wrapper):
    assert device_of(wrapper(CUDA_VISIBLE_DEVICES="0", SLURM_LOCALID="3")) == "0"


def test_unset_becomes_the_local_rank_where_there_are_gpus(wrapper):
    assert device_of(wrapper(HOROVOD_LOCAL_RANK="5", nvidia_smi=EIGHT)) == "5"


def test_gpus_that_the_wrapper_numbers_are_counted_as_nvidia_smi_does(wrapper):
    def order_of(finished):
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout)[1].get("CUDA_DEVICE_ORDER")

    assert order_of(wrapper(HOROVOD_LOCAL_RANK="5", nvidia_smi=EIGHT)) == "PCI_BUS_ID"
    own = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "HOROVOD_LOCAL_RANK": "5"}
    assert order_of(wrapper(nvidia_smi=EIGHT, **own)) == "FASTEST_FIRST"
    # A list of the user's own is counted as the user has it, and without GPUs there is nothing to count.
    assert order_of(wrapper(HOROVOD_LOCAL_RANK="1", CUDA_VISIBLE_DEVICES="4,5", nvidia_smi=EIGHT)) is None
    assert order_of(wrapper(HOROVOD_LOCAL_RANK="1")) is None


@pytest.mark.parametrize("gpus", ["exit 9", "echo 'No devices found'", "echo 'NVIDIA-SMI has failed' >&2; exit 6"])
def test_a_machine_without_gpus_is_left_alone(wrapper, gpus):
    assert device_of(wrapper(HOROVOD_LOCAL_RANK="1", nvidia_smi=gpus)) is None


@pytest.mark.parametrize(("gpus", "rank"), [(EIGHT, "8"), (MIG, "1")])
def test_more_processes_than_gpus_is_an_error(wrapper, gpus, rank):
    finished = wrapper(HOROVOD_LOCAL_RANK=rank, nvidia_smi=gpus)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert len(finished.stderr.splitlines()) == 1 and f"HOROVOD_LOCAL_RANK={rank}" in finished.stderr


def test_without_a_launcher_the_list_stays_whole(wrapper):
    assert device_of(wrapper(CUDA_VISIBLE_DEVICES="4,5")) == "4,5"
    assert device_of(wrapper(nvidia_smi=EIGHT)) is None


def test_a_rank_that_is_no_number_is_an_error(wrapper):
    finished = wrapper(CUDA_VISIBLE_DEVICES="4,5", OMPI_COMM_WORLD_LOCAL_RANK="one")
    assert finished.returncode == 2 and "OMPI_COMM_WORLD_LOCAL_RANK=one" in finished.stderr


@pytest.mark.parametrize("rank", [None, "0"])
def test_arguments_arrive_unharmed(wrapper, rank):
    arguments = ["a b", "", "it's", 'say "x"', "(1, 2)", "$HOME `id` $(id)", "*", "\\n", "two\nlines\n", "-n", "ä;&|<>"]
    finished = wrapper(*arguments, HOROVOD_LOCAL_RANK=rank, nvidia_smi=EIGHT)
    assert json.loads(finished.stdout)[0] == arguments


def test_nothing_else_of_the_environment_changes(wrapper):
    mine = {"name": "n", "rank": "r", "gpus": "g", "device": "d", "CUDA_VISIBLE_DEVICES": "8,9", RANKS[0]: "1"}
    environment = json.loads(wrapper(**mine).stdout)[1]
    assert {name: environment[name] for name in mine} == {**mine, "CUDA_VISIBLE_DEVICES": "9"}


def test_the_commands_exit_code_is_returned(wrapper):
    assert wrapper(HOROVOD_LOCAL_RANK="0", command=("sh", "-c", "exit 7")).returncode == 7


def test_without_a_command_it_says_how_to_call_it(wrapper):
    finished = wrapper(command=())
    assert finished.returncode == 2
    assert len(finished.stderr.splitlines()) == 1 and "usage: sh hvd_wrapper.sh COMMAND" in finished.stderr
