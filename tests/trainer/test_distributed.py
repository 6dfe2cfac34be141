"""Joining the ranks, agreeing on errors and knowing a lost rank; tests/ranks has what needs several processes."""

import importlib.metadata

import numpy as np
import pytest
import tensorflow as tf

from data.errors import InputError
from trainer import distributed
from trainer.agreement import agree
from trainer.distributed import SingleProcess, WireCounter, check_build, is_lost_rank, launched_processes


@pytest.mark.parametrize(
    ("environ", "processes"),
    [
        ({}, 1),
        ({"HOROVOD_SIZE": "4"}, 4),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, 2),
        ({"PMI_SIZE": "8"}, 8),
        ({"HOROVOD_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "2"}, 2),
        ({"SLURM_NTASKS": "2"}, 1),
        ({"HOROVOD_SIZE": "", "PMI_SIZE": "many"}, 1),
    ],
)
def test_launched_processes(environ, processes):
    assert launched_processes(environ) == processes


@pytest.mark.parametrize("version", ["0.28.1", "0.28.1+tf2.21.0.gloo", "0.28.1+tf2.21.0", "0.28.1+nv25.2"])
def test_a_fitting_or_silent_build_is_taken(version):
    check_build(version, "2.21.0")


@pytest.mark.parametrize("built_for", ["2.17.0", "2.21.1"])
def test_a_build_for_another_tensorflow_is_refused(built_for):
    with pytest.raises(InputError, match=rf"against TensorFlow {built_for} but TensorFlow 2\.21\.0 .*make setup"):
        check_build(f"0.28.1+tf{built_for}.gloo", "2.21.0")


@pytest.fixture
def installed(monkeypatch):
    """installed(version): what the environment says of Horovod; None: it is not there."""

    def say(version):
        def answer(name):
            if version is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return version

        monkeypatch.setattr(importlib.metadata, "version", answer)

    return say


def test_without_horovod_one_process_is_alone_and_says_why(installed):
    installed(None)
    comm = distributed.connect({"SLURM_NTASKS": "2"})
    assert (comm.rank, comm.size, comm.local_rank, comm.local_size) == (0, 1, 0, 1)
    assert "Horovod is not installed (HOROVOD=0)" in comm.description


def test_without_horovod_several_processes_are_refused(installed):
    installed(None)
    with pytest.raises(InputError, match="started 3 processes but Horovod is not installed"):
        distributed.connect({"PMI_SIZE": "3"})


def test_connect_compares_the_build(installed):
    installed("0.28.1+tf1.15.0.gloo")
    with pytest.raises(InputError, match=r"TensorFlow 1\.15\.0"):
        distributed.connect({})


SHUT_DOWN = (
    "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, "
    "allgather or broadcast a tensor after one of the ranks finished execution."
)
# As Horovod 0.28.1 over Gloo raised them in the rank that was left, by where the other one ended.
OBSERVED = {
    "in a step": f"Graph execution error:\n\nDetected at node gradients defined at\n\n{SHUT_DOWN}\n\t [[{{node t}}]]",
    "in a large transfer": (
        "Graph execution error:\n\nDetected at node big defined at\n\n[/build/third_party/gloo/gloo/transport/"
        "tcp/pair.cc:589] Read error [127.0.0.1]:39310: Connection reset by peer\n\t [[{node big}]]"
    ),
    "between steps": (
        "{{function_node __wrapped__HorovodAllreduce_device_/job:localhost/replica:0/task:0/device:CPU:0}} "
        f"{SHUT_DOWN} [Op:HorovodAllreduce] name: host_sum"
    ),
}


@pytest.mark.parametrize("place", OBSERVED)
def test_a_lost_rank_is_known(place):
    assert is_lost_rank(tf.errors.UnknownError(None, None, OBSERVED[place]))


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.UnknownError(None, None, "JIT compilation failed."),
        tf.errors.InvalidArgumentError(None, None, "indices[0] = 7 is not in [0, 5)"),
        tf.errors.FailedPreconditionError(None, None, "Mismatched allreduce tensor shapes"),
        RuntimeError("Connection reset by peer"),
        BrokenPipeError(32, "Broken pipe"),
        ZeroDivisionError(SHUT_DOWN),
    ],
)
def test_mistakes_are_not_taken_for_a_lost_rank(error):
    assert not is_lost_rank(error)


def test_alone_there_is_nothing_to_agree_on():
    def refuse():
        raise InputError("bad file")

    assert agree(SingleProcess(), lambda: 7) == 7
    with pytest.raises(InputError, match=r"^bad file$"):
        agree(SingleProcess(), refuse)


def test_other_errors_are_not_held_back_for_the_other_ranks():
    """They end the process, and with it the job."""
    with pytest.raises(ZeroDivisionError):
        agree(SingleProcess(), lambda: 1 // 0)


def test_alone_every_exchange_gives_back_what_it_was_given():
    comm = SingleProcess()
    values = np.array([1, 2**53 + 1])
    assert comm.allreduce_sum(values).tolist() == values.tolist()
    assert comm.allgather_object({"a": 1}) == [{"a": 1}]
    assert [part.tolist() for part in comm.alltoall_arrays([values])] == [values.tolist()]
    assert comm.broadcast_array(values, 0).tolist() == values.tolist()
    returned = (comm.allreduce_sum(values), comm.broadcast_array(values, 0), *comm.alltoall_arrays([values]))
    assert not any(np.shares_memory(array, values) for array in returned)
    comm.barrier()
    comm.shutdown()


def test_bytes_on_the_wire_are_counted_by_size_and_type():
    counter = WireCounter()
    assert counter.total().numpy() == 0
    counter.add("allreduce", tf.zeros((3, 5), tf.float16))
    counter.add("alltoall", tf.zeros((4,), tf.int64))
    counter.add("alltoall", tf.zeros((2,), tf.int32))
    assert counter.total().numpy() == 3 * 5 * 2 + 4 * 8 + 2 * 4
    assert counter.total("alltoall").numpy() == 4 * 8 + 2 * 4
    assert counter.total("allgather").numpy() == 0
