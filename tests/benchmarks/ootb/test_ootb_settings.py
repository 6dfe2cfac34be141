import pytest

from benchmarks.ootb import settings
from data.errors import InputError
from trainer import flags


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([], "--benchmark"),
        (["--evaluate"], "--benchmark"),
        (["--benchmark", "--embedding_parallelism=model"], "--embedding_parallelism=model"),
        (["--benchmark", "--embedding_parallelism=auto"], "--embedding_parallelism=auto"),
        (["--benchmark", "--row_slice_threshold=0"], "--row_slice_threshold=0"),
        (["--benchmark", "--column_slice_threshold=10"], "--column_slice_threshold=10"),
        (["--benchmark", "--data_parallel_threshold=10"], "--data_parallel_threshold=10"),
        (["--benchmark", "--table_reduction=gather"], "--table_reduction=gather"),
        (["--benchmark", "--fp16_compression"], "--fp16_compression"),
        (["--benchmark", "--use_checkpoint"], "--use_checkpoint"),
        (["--benchmark", "--model=dlrm", "--optimizer=rowwise_adagrad"], "--optimizer=rowwise_adagrad"),
    ],
)
def test_what_plain_keras_does_not_have_is_refused_in_one_line(given, named):
    with pytest.raises(InputError) as caught:
        settings.check(flags.parse(given))
    message = str(caught.value)
    assert named in message and "main.py" in message and "\n" not in message


@pytest.mark.parametrize(
    "given",
    [
        ["--benchmark"],
        ["--benchmark", "--evaluate", "--xla", "--amp"],
        ["--benchmark", "--table_reduction=allreduce", "--benchmark_seconds=3"],
        ["--benchmark", "--model=dcnv2", "--optimizer=adagrad"],
        ["--benchmark", "--model=dlrm", "--optimizer=rowwise_adagrad", "--evaluate"],
    ],
)
def test_the_rest_is_taken(given):
    settings.check(flags.parse(given))
