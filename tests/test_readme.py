"""The README's commands name things that exist, and flags that main.py takes."""

import re
import shlex

import pytest

from data import command_line, transcode
from data.outbrain import preprocess, raw
from trainer import flags


def commands(root):
    """The command lines of the README's code blocks, continuation lines joined."""
    # Every other piece between fences is a block; its first line is the language.
    blocks = (root / "README.md").read_text().split("```")[1::2]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if re.match(r"(make|python|horovodrun|bash|docker) ", line)]


@pytest.fixture
def root(pytestconfig):
    return pytestconfig.rootpath


def test_flags_of_main(root):
    lines = [line for line in commands(root) if "main.py" in line]
    assert len(lines) >= 10
    for line in lines:
        arguments = shlex.split(line)
        # A record that is run again is there after the commands before it: tests/trainer/test_recorded_config.py.
        flags.parse([one for one in arguments[arguments.index("main.py") + 1 :] if not one.startswith("--config=")])


def test_flags_after_the_scripts_options(root):
    lines = [line for line in commands(root) if line.startswith("bash ") and "preproc.sh" not in line]
    assert len(lines) == 3
    for line in lines:
        arguments = shlex.split(line)
        assert (root / arguments[1]).is_file()
        flags.parse(arguments[arguments.index("--") + 1 :])


def test_flags_of_the_commands_that_write_datasets(root, monkeypatch):
    modules = {"scripts/preproc.sh": preprocess, "data.outbrain.raw": raw, "data.transcode": transcode}
    parsed = []
    monkeypatch.setattr(command_line, "run", lambda parser, _, arguments: parsed.append(parser.parse_args(arguments)))
    lines = [(line, name) for line in commands(root) for name in modules if name in line.split()]
    assert {name for _, name in lines} == set(modules)
    for line, name in lines:
        arguments = shlex.split(line)
        modules[name].main(arguments[arguments.index(name) + 1 :])
    assert len(parsed) == len(lines)


def test_modules_files_and_targets(root):
    makefile = (root / "Makefile").read_text()
    for line in commands(root):
        for module in re.findall(r"python -m (\S+)", line):
            path = root / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), line
        for path in re.findall(r"\bsh (\S+\.sh)", line):
            assert (root / path).is_file(), line
        for target in re.findall(r"^make (\w+)", line):
            assert f"\n{target}:" in makefile, line
