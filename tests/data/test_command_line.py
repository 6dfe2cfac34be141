import pytest

from data.command_line import Parser, run
from data.errors import InputError


@pytest.fixture
def parser():
    made = Parser(prog="program")
    made.add_argument("--rows", type=int, required=True)
    return made


def test_what_the_work_returns_is_printed(parser, capsys):
    assert run(parser, lambda options: f"{options.rows} rows", ["--rows", "3"]) == 0
    assert capsys.readouterr() == ("3 rows\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: --rows"),
        (["--rows", "many"], "argument --rows: invalid int value: 'many'"),
        (["--rows", "3", "--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_bad_arguments_are_one_line_and_code_2(parser, capsys, arguments, message):
    assert run(parser, lambda options: pytest.fail("called"), arguments) == 2
    assert capsys.readouterr() == ("", f"program: {message}; --help lists the options\n")


def test_bad_input_is_one_line_and_code_2_and_a_bug_passes_through(parser, capsys):
    def fail(error):
        def work(options):
            raise error

        return work

    assert run(parser, fail(InputError("rows=3: too few; ask for more")), ["--rows", "3"]) == 2
    assert capsys.readouterr() == ("", "rows=3: too few; ask for more\n")
    with pytest.raises(ValueError, match="a bug"):
        run(parser, fail(ValueError("a bug")), ["--rows", "3"])


def test_help_ends_with_code_0(parser, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        run(parser, lambda options: pytest.fail("called"), ["--help"])
    assert "--rows" in capsys.readouterr().out
