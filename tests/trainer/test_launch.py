"""A rank from its start to its exit code, without TensorFlow's part; tests/ranks has whole jobs."""

import pytest

from trainer.launch import launched_rank


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, 0),
        ({"HOROVOD_RANK": "3"}, 3),
        ({"OMPI_COMM_WORLD_RANK": "5"}, 5),
        ({"PMI_RANK": "1"}, 1),
        ({"HOROVOD_RANK": "2", "OMPI_COMM_WORLD_RANK": "0"}, 2),
        ({"SLURM_PROCID": "4"}, 0),
        ({"HOROVOD_RANK": "", "PMI_RANK": "6"}, 6),
    ],
)
def test_the_launcher_says_which_rank_it_is(environ, rank):
    assert launched_rank(environ) == rank
