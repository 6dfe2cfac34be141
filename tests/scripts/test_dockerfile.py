"""The Dockerfile, which cannot be built here: every path and command in it, and the image's package checks."""

import fnmatch
import importlib.metadata
import importlib.util
import re
import shlex
import sys

import pytest

IMAGES_OWN = {"tensorflow", "tensorflow-cpu", "tensorflow-gpu", "keras", "tf-keras", "horovod", "numpy", "protobuf"}
# What an image of Ubuntu with Python has; everything else that a RUN line calls must be in the tree.
PROGRAMS = {"python", "rm"}


@pytest.fixture
def instructions(root):
    """(INSTRUCTION, rest) of each line, continuation lines joined, comments left out."""
    text = (root / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines()]


def of(instructions, name):
    return [rest for instruction, rest in instructions if instruction == name]


@pytest.fixture
def packages(root):
    """scripts/image_packages.py as a module."""
    specification = importlib.util.spec_from_file_location("image_packages", root / "scripts/image_packages.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_instructions_are_known_and_start_with_the_image(instructions):
    assert instructions[0] == ("FROM", "nvcr.io/nvidia/tensorflow:25.02-tf2-py3")
    assert {name for name, _ in instructions} == {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "CMD"}
    assert len(of(instructions, "FROM")) == 1


def test_every_copied_path_exists_and_is_not_ignored(root, instructions):
    lines = [line.strip() for line in (root / ".dockerignore").read_text().splitlines()]
    ignored = [line.removeprefix("**/") for line in lines if line and not line.startswith("#")]
    copies = [shlex.split(rest)[:-1] for rest in of(instructions, "COPY")]
    assert copies
    for source in (source for sources in copies for source in sources):
        assert (root / source).exists(), source
        assert not any(fnmatch.fnmatch(part, pattern) for part in source.split("/") for pattern in ignored), source


def test_the_program_is_in_the_image_and_the_working_copy_is_not(root, instructions):
    assert "." in [shlex.split(rest)[0] for rest in of(instructions, "COPY")]
    lines = set((root / ".dockerignore").read_text().splitlines())
    assert {".git", ".venv", "results", "checkpoints"} <= lines
    for name in ("main.py", "hvd_wrapper.sh", "data", "models", "trainer", "scripts"):
        assert name not in lines


def test_what_run_lines_call_is_there_when_they_run(root, instructions):
    copied, calls = set(), 0
    for name, rest in instructions:
        if name == "COPY":
            *sources, target = shlex.split(rest)
            copied.update(sources)
            for source in sources:  # ./ and scripts/ keep a file's place in the tree
                assert source == "." or target in ("./", f"{source.rpartition('/')[0]}/"), rest
        if name != "RUN":
            continue
        for command in rest.split("&&"):
            words = [word for word in shlex.split(command) if word != "PIP_CONSTRAINT="]
            assert words[0] in PROGRAMS, words[0]
            for word in words[1:]:
                if word.endswith((".py", ".txt", ".sh")) and not word.startswith("/tmp/"):
                    assert word in copied and (root / word).is_file(), word
                    calls += 1
    assert calls >= 3


def test_files_of_one_run_line_are_written_before_they_are_read(instructions):
    (line,) = of(instructions, "RUN")
    record, missing, install, compare, remove = [shlex.split(command) for command in line.split("&&")]
    assert record[2:] == ["record", compare[-1]] and compare[2] == "compare"
    assert missing[2:4] == ["missing", "requirements-ngc.txt"] and missing[4:] == [">", install[-1]]
    assert {"install", "--no-deps", "-r"} <= set(install)
    assert set(remove[1:]) == {compare[-1], install[-1]}


def test_the_commands_to_type_stand_in_the_working_folder(root, instructions):
    (folder,) = of(instructions, "WORKDIR")
    assert folder.startswith("/")
    text = (root / "Dockerfile").read_text()
    assert "horovodrun -np 8 sh hvd_wrapper.sh python main.py" in text
    assert (root / "hvd_wrapper.sh").is_file() and (root / "main.py").is_file()
    (command,) = of(instructions, "CMD")
    assert command == '["python", "main.py", "--help"]'
    assert "OMPI_ALLOW_RUN_AS_ROOT=1" in " ".join(of(instructions, "ENV"))


def test_nothing_secret_and_no_registry_is_named(root):
    for name in ("Dockerfile", "requirements-ngc.txt"):
        text = (root / name).read_text().lower()
        for word in ("index-url", "find-links", "http", "token", "password", "secret"):
            assert word not in text, (name, word)


def test_the_images_requirements_leave_its_own_packages_alone(root, packages):
    names = {packages.canonical(line.split("==")[0]) for line in requirement_lines(root / "requirements-ngc.txt")}
    assert names and not names & IMAGES_OWN
    training = {packages.canonical(line.split("==")[0]) for line in requirement_lines(root / "requirements.txt")}
    assert names <= training
    # Versions are kept the same as in training elsewhere.
    assert set(requirement_lines(root / "requirements-ngc.txt")) <= set(requirement_lines(root / "requirements.txt"))


def test_what_reports_of_the_suite_need_is_there_with_all_that_it_requires(root, packages):
    names = {packages.canonical(line.split("==")[0]) for line in requirement_lines(root / "requirements-ngc.txt")}
    needed, found = ["matplotlib", "scipy"], set()
    while needed:
        name = needed.pop()
        if name not in found and name not in IMAGES_OWN:
            found.add(name)
            lines = [line for line in importlib.metadata.requires(name) or () if "extra ==" not in line]
            needed += [packages.canonical(re.match(r"[\w.-]+", line)[0]) for line in lines]
    assert {"matplotlib", "scipy", "pillow"} <= found <= names


def test_preprocessing_stays_outside_of_the_image_and_that_is_said(root):
    for name in ("Dockerfile", "requirements-ngc.txt"):
        comments = " ".join(line for line in (root / name).read_text().splitlines() if line.startswith("#"))
        assert "make setup" in comments and "NVTabular" in comments and "Python 3.12" in comments, name
        assert "requirements-preproc" not in (root / name).read_text()


def requirement_lines(path):
    return [line for line in (line.split("#")[0].strip() for line in path.read_text().splitlines()) if line]


def test_only_missing_packages_are_installed(packages):
    text = "# for the image\n\nPyYAML==6.0.4\nnvidia-ml-py==13.1  # NVML\nabsl_py==2.5.1\n"
    present = {"pyyaml": "5.0", "absl-py": "1.0", "nvidia-ml": "1"}
    assert packages.missing_lines(text, present) == ["nvidia-ml-py==13.1"]


def test_changed_and_lost_packages_are_found(packages):
    before = {"numpy": "1.26.4", "horovod": "0.28.1+nv25.2", "six": "1"}
    assert packages.changes(before, {**before, "tqdm": "4"}) == []
    assert packages.changes(before, {"numpy": "2.0", "six": "1"}) == [
        "horovod was 0.28.1+nv25.2 and is now gone",
        "numpy was 1.26.4 and is now 2.0",
    ]


def test_record_then_compare(packages, tmp_path, monkeypatch, capsys):
    record = tmp_path / "packages.txt"
    own = {"tensorflow": "2.17.0+nv25.2", "horovod": "0.28.1+nv25.2", "numpy": "1.26.4"}
    monkeypatch.setattr(packages, "installed", lambda: dict(own))
    monkeypatch.setattr(packages, "import_failures", lambda modules: [])
    assert packages.main(["record", str(record)]) == 0
    assert packages.main(["compare", str(record)]) == 0
    own["tensorflow"] = "2.21.0"
    assert packages.main(["compare", str(record)]) == 1
    assert "tensorflow was 2.17.0+nv25.2 and is now 2.21.0" in capsys.readouterr().err


def test_an_image_without_horovod_is_refused(packages, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(packages, "installed", lambda: {"tensorflow": "2.17.0"})
    monkeypatch.setattr(packages, "import_failures", lambda modules: [])
    packages.main(["record", str(tmp_path / "record")])
    assert packages.main(["compare", str(tmp_path / "record")]) == 1
    assert "no horovod of its own" in capsys.readouterr().err


def test_installed_packages_are_those_of_this_python(packages):
    found = packages.installed()
    assert found["numpy"] == importlib.metadata.version("numpy")
    assert found["absl-py"] == importlib.metadata.version("absl-py")


def test_a_module_that_does_not_import_is_a_failure_but_for_the_driver(packages, tmp_path, monkeypatch):
    (tmp_path / "fake_driverless.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')\n")
    (tmp_path / "fake_broken.py").write_text("raise ImportError('undefined symbol: _ZN10tensorflow')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    failures = packages.import_failures(("json", "fake_driverless", "fake_broken", "fake_absent"))
    assert [failure.split()[0] for failure in failures] == ["fake_broken", "fake_absent"]


@pytest.mark.parametrize("arguments", [[], ["record"], ["check", "x"]])
def test_wrong_arguments_print_the_usage(packages, arguments, capsys):
    assert packages.main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
