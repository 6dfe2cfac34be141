import pytest

from benchmarks.microbenchmarks import catalogue
from benchmarks.microbenchmarks.shapes import read_settings, require_fit
from data.errors import InputError


def settings(name, mode, **stated):
    return read_settings(catalogue.find(name), mode, **stated)


def test_defaults_are_the_first_preset():
    found = settings("gemm", "forward")
    assert (found.shapes, found.batch, found.precision, found.parameters) == (((256, 1024, 1024),), 256, "fp32", {})
    assert str(found) == "gemm forward fp32, batch 256, 256,1024,1024"


def test_shapes_as_text_as_lists_and_as_presets():
    text = settings("gemm", "forward", shapes="2,3,4;5,6,7")
    assert text.shapes == ((2, 3, 4), (5, 6, 7)) and text.batch == 7
    assert settings("gemm", "forward", params='{"shapes": [[2, 3, 4], [5, 6, 7]]}') == text
    assert settings("gemm", "forward", params={"shapes": "2,3,4;5,6,7"}) == text
    assert settings("allreduce", "exchange", params='{"shapes": [2200, 9944]}').shapes == ((2200,), (9944,))
    assert settings("allreduce", "exchange", shapes="large").batch == 22372
    assert settings("gemm", "forward", shapes="small", params={"shapes": "9,9,9"}).shapes == ((256, 1024, 1024),)


def test_a_batch_is_a_number_of_every_shape_or_stands_by_itself():
    assert settings("gemm", "forward", shapes="2,3,4", batch=9).shapes == ((9, 3, 4),)
    assert settings("alltoall", "exchange", batch=800).shapes == ((800,),)
    linear = settings("linear", "forward", batch=256)
    assert linear.shapes == ((1024,) * 19,) and linear.batch == 256
    assert settings("linear", "forward").batch == 128 and settings("embedding_bag", "forward").batch == 2048


def test_long_shapes_are_short_in_texts():
    assert str(settings("linear", "forward")).endswith("batch 128, 1024,1024,...,1024 (19 numbers)")
    assert str(settings("embedding_bag", "forward", shapes="tiny")).endswith("8 x 1000000,64,100")


def test_parameters():
    found = settings("embedding_bag", "forward", params='{"ids": "power_law", "exponent": 2}')
    assert found.parameters == {"ids": "power_law", "exponent": 2.0}
    assert settings("embedding_bag", "forward").parameters == {"ids": "uniform", "exponent": 1.1}


@pytest.mark.parametrize(
    ("name", "mode", "stated", "message"),
    [
        ("gemm", "backward", {}, "gemm: there is no mode 'backward'; give forward"),
        ("gemm", "forward", {"precision": "fp64"}, "precision 'fp64'; give fp32, tf32, bf16, fp16"),
        ("embedding_bag", "forward", {"precision": "bf16"}, "precision 'bf16'; give fp32"),
        ("allreduce", "exchange", {"precision": "bf16"}, "precision 'bf16'; give fp32, fp16"),
        ("gemm", "forward", {"batch": 0}, "--batch=0: give at least 1"),
        ("gemm", "forward", {"shapes": "big"}, "shapes 'big': give m,n,k;... or one of small"),
        ("gemm", "forward", {"shapes": "1,2"}, "shapes '1,2': give m,n,k"),
        ("gemm", "forward", {"shapes": "1,2,0"}, "shapes '1,2,0': give m,n,k"),
        ("gemm", "forward", {"params": {"shapes": []}}, "give m,n,k"),
        ("gemm", "forward", {"params": {"shapes": 5}}, "shapes 5: give m,n,k"),
        ("gemm", "forward", {"params": {"shapes": [[1, 2, 3.5]]}}, "give m,n,k"),
        ("linear", "forward", {"shapes": "7"}, "shapes '7': give in,out,..."),
        ("input_pipeline", "read", {"shapes": "7"}, "input_pipeline: has no shapes, got '7'"),
        ("gemm", "forward", {"params": "{"}, "--params={: is not JSON"),
        ("gemm", "forward", {"params": "[1]"}, "--params=[1]: give an object"),
        ("gemm", "forward", {"params": {"size": 3}}, "no parameter 'size' (given 3); there is shapes"),
        ("input_pipeline", "read", {"params": {"rows": "9"}}, "parameter 'rows' is '9': give one of type int"),
        ("input_pipeline", "read", {"params": {"rows": True}}, "parameter 'rows' is True: give one of type int"),
        ("input_pipeline", "read", {"params": {"rows": 0}}, "parameter 'rows' is 0: give at least 1"),
        ("embedding_bag", "forward", {"params": {"ids": "even"}}, "is 'even': give one of uniform, power_law"),
        ("embedding_bag", "forward", {"params": {"exponent": -1}}, "is -1.0: give at least 0"),
        ("embedding_bag", "forward", {"params": '{"exponent": Infinity}'}, "is inf: give at least 0"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(name, mode, stated, message):
    with pytest.raises(InputError) as caught:
        settings(name, mode, **stated)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_what_cannot_fit_is_refused():
    large = settings("gemm", "forward", shapes="1000000,1000000,1000000")
    benchmark = catalogue.find("gemm")
    message = r"gemm forward .*1000000,1000000,1000000: needs about 2.*GB on each rank, and 24.0 GB are free"
    with pytest.raises(InputError, match=message):
        require_fit(benchmark, large, ranks=1, free_bytes=24 * 10**9)
    require_fit(benchmark, settings("gemm", "forward"), ranks=1, free_bytes=24 * 10**9)
    require_fit(benchmark, large, ranks=1, free_bytes=None)
