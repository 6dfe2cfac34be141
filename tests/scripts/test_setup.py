"""scripts/setup.sh and horovod_wheel.sh with a fake Python, pip and compiler; and the requirement files."""

import importlib.metadata
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TENSORFLOW = "2.21.0"
GLOO = f"0.28.1+tf{TENSORFLOW}.gloo"
NVTABULAR = "23.8.0"
BASICS = (
    "awk basename bash cat cp cut dirname env flock grep gzip head ls mkdir mktemp mv nproc rm sed sh sha256sum tail"
)
TOOLS = ("g++", "make", "cmake")

# Plays the interpreter, venv and pip. Every call is logged; what pip would leave on the disk is left there.
FAKE_PYTHON = r"""
import json, os, pathlib, shutil, signal, sys
arguments = sys.argv[1:]
site = pathlib.Path(sys.argv[0]).parents[1] / "lib/python3.11/site-packages"
log = os.environ["FAKE_LOG"]

def record(*words):
    with open(log, "a") as file:
        file.write(json.dumps(words) + "\n")

def value(option):
    return pathlib.Path(arguments[arguments.index(option) + 1])

def dist_info(version):
    return site / f"horovod-{version}.dist-info"

if any("find_spec" in argument for argument in arguments):
    print(os.environ.get("FAKE_BASE", "@BASE@"))
    print(os.environ.get("FAKE_COMPLETE", "True"))
elif arguments == ["-I", "-c", ""]:
    record("runs?")
elif arguments[:2] == ["-m", "venv"]:
    record("venv", *arguments[2:-1])
    target = pathlib.Path(arguments[-1])
    shutil.rmtree(target, ignore_errors=True)
    (target / "bin").mkdir(parents=True)
    shutil.copy(os.environ.get("FAKE_BASE", "@BASE@"), target / "bin/python")
    site = target / "lib/python3.11/site-packages"
    site.mkdir(parents=True)
elif any("import horovod.tensorflow" in argument for argument in arguments):
    wheel = next(site.glob("horovod-*"))
    sys.exit("broken" in (wheel / "content").read_text())
elif "download" in arguments:
    import tarfile, tempfile
    record("download", *(word for word in arguments if word.startswith("horovod==")))
    with tempfile.TemporaryDirectory() as folder:
        sources = pathlib.Path(folder) / "horovod-0.28.1"
        (sources / "horovod/tensorflow").mkdir(parents=True)
        (sources / "horovod/__init__.py").write_text("a = 1\n__version__ = '0.28.1'\n")
        guard = os.environ.get("FAKE_GUARD", "#if TENSORFLOW_VERSION >= 2006000000")
        (sources / "horovod/tensorflow/xla_mpi_ops.cc").write_text(f"before\n{guard}\nbody\n#endif // guard\n")
        with tarfile.open(value("--dest") / "horovod-0.28.1.tar.gz", "w:gz") as archive:
            archive.add(sources, "horovod-0.28.1")
elif "wheel" in arguments:
    sources = pathlib.Path(arguments[-1])
    record("wheel", dict(os.environ), (sources / "horovod/tensorflow/xla_mpi_ops.cc").read_text())
    if "FAKE_HANG" in os.environ:
        pathlib.Path(os.environ["FAKE_HANG"]).write_text(f"{os.getpid()}\n")
        signal.pause()
    if "FAKE_BUILD_FAILS" in os.environ:
        sys.exit("error: the compiler gave up")
    version = (sources / "horovod/__init__.py").read_text().split("'")[1]
    value("--wheel-dir").mkdir()
    wheel = value("--wheel-dir") / f"horovod-{version}-cp311-cp311-linux_{os.uname().machine}.whl"
    wheel.write_text(os.environ.get("FAKE_CONTENT", "good"))
elif "install" in arguments and arguments[-1].endswith(".whl"):
    record("install wheel", arguments[-1])
    for old in site.glob("horovod-*"):
        shutil.rmtree(old)
    new = dist_info(pathlib.Path(arguments[-1]).name.split("-")[1])
    new.mkdir()
    (new / "content").write_text(pathlib.Path(arguments[-1]).read_text())
elif "install" in arguments:
    lists = [pathlib.Path(argument) for argument in arguments if argument.endswith(".txt")]
    options = [option for option in arguments if option in ("--no-deps", "--no-build-isolation")]
    step = "install preproc" if [file.name for file in lists] == ["requirements-preproc.txt"] else "install"
    record(step, options, "".join(file.read_text() for file in lists))
    if step == "install preproc":
        (site / "nvtabular").mkdir(exist_ok=True)
        sys.exit(os.environ.get("FAKE_PREPROC_FAILS"))
    sys.exit(os.environ.get("FAKE_INSTALL_FAILS"))
elif "uninstall" in arguments and arguments[-2] == "-r":
    record("uninstall preproc", pathlib.Path(arguments[-1]).name)
    shutil.rmtree(site / "nvtabular", ignore_errors=True)
elif "uninstall" in arguments:
    record("uninstall", arguments[-1])
    for old in site.glob("horovod-*"):
        shutil.rmtree(old)
elif arguments == ["-m", "models.custom_ops"]:
    record("kernels", os.getcwd())
    sys.exit(os.environ.get("FAKE_KERNELS_FAIL"))
elif arguments[-1] == "check":
    record("check")
    if "FAKE_DISAGREE" in os.environ:
        print("one 1 needs two 2")
        sys.exit(1)
elif arguments[-1] != "--version":
    raise SystemExit(f"fake python: {arguments}")
"""


class Machine:
    """A checkout on a machine that has nothing but what is put into `bin`."""

    def __init__(self, folder: Path, root: Path, program):
        self.checkout, self.bin, self.cache, self.tmp = (folder / name for name in ("checkout", "bin", "cache", "tmp"))
        self.log, self.program = folder / "log", program
        for path in (self.checkout / "scripts", self.bin, self.tmp):
            path.mkdir(parents=True)
        for name in ("setup.sh", "horovod_wheel.sh"):
            shutil.copy(root / "scripts" / name, self.checkout / "scripts")
        for path in root.glob("requirements*.txt"):
            shutil.copy(path, self.checkout)
        (self.checkout / "models/ops").mkdir(parents=True)
        for name in ("models/custom_ops.py", "models/ops/embedding_ops.cc", "models/ops/team.h"):
            shutil.copy(root / name, self.checkout / name)
        for name in (*BASICS.split(), "tar", "uname"):
            (self.bin / name).symlink_to(shutil.which(name))
        self.python = program(self.bin / "python3.11", FAKE_PYTHON.replace("@BASE@", str(self.bin / "python3.11")))
        self.add("g++", "make")
        self.add("cmake", version="3.25.1")

    def add(self, *names, version=""):
        for name in names:
            self.program(self.bin / name, f"#!/bin/sh\necho {name} version {version}\n")

    def remove(self, *names):
        for name in names:
            (self.bin / name).unlink()

    def command(self, *arguments, **environment):
        """Keyword arguments of subprocess.run for a set-up with these variables and no others."""
        fixed = {"PATH": str(self.bin), "HOME": str(self.tmp.parent), "XDG_CACHE_HOME": str(self.cache)}
        environment = {**fixed, "TMPDIR": str(self.tmp), "FAKE_LOG": str(self.log), **environment}
        return {"args": ["bash", str(self.checkout / "scripts/setup.sh"), *arguments], "env": environment, "text": True}

    def setup(self, *arguments, **environment):
        return subprocess.run(**self.command(*arguments, **environment), capture_output=True, timeout=60)

    def calls(self):
        """What the fake Python was asked since the last call of this."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    def steps(self):
        return [call[0] for call in self.calls()]

    def wheels(self):
        return sorted(path.name for path in self.cache.glob("recsys-harness/wheels/*"))

    def packages(self):
        """What lies in the environment's site-packages."""
        return sorted(path.name for path in (self.checkout / ".venv/lib/python3.11/site-packages").iterdir())

    @property
    def finished(self):
        return (self.checkout / ".venv/.setup-complete").exists()


@pytest.fixture
def machine(tmp_path, root, program):
    return Machine(tmp_path, root, program)


PACKAGES = ["install", "install preproc"]
WHOLE = ["venv", *PACKAGES, "download", "wheel", "install wheel", "kernels", "check"]


def wheel_name(version):
    return f"horovod-{version}-cp311-cp311-linux_{os.uname().machine}.whl"


def assert_one_line(finished, *words):
    assert finished.returncode == 1, finished.stdout
    assert len(finished.stderr.splitlines()) == 1, finished.stderr
    for word in words:
        assert word in finished.stderr


def test_a_whole_set_up(machine):
    finished = machine.setup()
    assert (finished.returncode, finished.stderr) == (0, "")
    calls = machine.calls()
    assert [call[0] for call in calls] == WHOLE
    assert calls[1][1] == ["--no-deps"] and "tensorflow-cpu==" in calls[1][2] and "pytest==" in calls[1][2]
    assert calls[2][1] == ["--no-deps", "--no-build-isolation"] and f"nvtabular=={NVTABULAR}" in calls[2][2]
    assert calls[3] == ["download", "horovod==0.28.1"]
    assert calls[5][1] == str(machine.cache / "recsys-harness/wheels" / wheel_name(GLOO))
    assert machine.wheels() == [wheel_name(GLOO)] and machine.finished
    assert list(machine.tmp.iterdir()) == []
    assert GLOO in finished.stdout.splitlines()[-1] and f"NVTabular {NVTABULAR}" in finished.stdout.splitlines()[-1]


def test_kernels_that_cannot_be_built_are_done_without(machine):
    finished = machine.setup(FAKE_KERNELS_FAIL="models.custom_ops: no compiler")
    assert (finished.returncode, finished.stderr) == (0, "") and machine.finished
    (line,) = [line for line in finished.stdout.splitlines() if "no compiler" in line]
    assert line == "[setup] going on with TensorFlow's kernels for embedding tables: models.custom_ops: no compiler"
    assert ["kernels", str(machine.checkout)] in machine.calls()


@pytest.mark.parametrize("name", ["embedding_ops.cc", "team.h"])
def test_other_kernels_are_built_by_the_next_set_up(machine, name):
    machine.setup()
    machine.calls()
    with open(machine.checkout / "models/ops" / name, "a") as file:
        file.write("// changed\n")
    assert machine.setup().returncode == 0
    assert machine.steps() == [*PACKAGES, "kernels", "check"]


def test_what_the_build_sees(machine):
    leftovers = {"HOROVOD_WITH_PYTORCH": "1", "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": "/cuda"}
    make = {"MAKEFLAGS": "w -- HOROVOD=1", "MAKELEVEL": "1", "CXXFLAGS": "-O1"}
    assert machine.setup(**leftovers, **make).returncode == 0
    (environment, source), *_ = [call[1:] for call in machine.calls() if call[0] == "wheel"]
    names = {name for name in environment if name.startswith("HOROVOD_")}
    assert names == {f"HOROVOD_{name}" for name in ("CMAKE", "CUDA_HOME", "WITHOUT_MPI")} | {
        f"HOROVOD_{name}" for name in ("WITH_TENSORFLOW", "WITHOUT_PYTORCH", "WITHOUT_MXNET", "WITH_GLOO")
    }
    assert re.fullmatch(r"-j[1-9]\d*", environment["MAKEFLAGS"]) and "MAKELEVEL" not in environment
    assert environment["CXXFLAGS"] == "-O1 -include cstdint"
    assert environment["PATH"].startswith(f"{machine.checkout}/.venv/bin:")
    assert source == "before\n#if 0\nbody\n#endif // guard\n"


def test_the_second_run_does_nothing(machine):
    machine.setup()
    machine.calls()
    machine.remove("g++", "make", "cmake", "python3.11")
    finished = machine.setup()
    assert (finished.returncode, finished.stderr) == (0, "")
    versions = f"TensorFlow {TENSORFLOW}, Horovod {GLOO}, NVTabular {NVTABULAR}"
    assert finished.stdout == f"[setup] .venv is up to date: {versions}\n"
    assert machine.steps() == ["runs?"]
    assert machine.setup("--keep").stdout == ""


def test_a_kept_wheel_needs_no_compiler(machine):
    machine.setup()
    machine.calls()
    shutil.rmtree(machine.checkout / ".venv")
    machine.remove(*TOOLS)
    assert machine.setup().returncode == 0
    assert machine.steps() == ["venv", *PACKAGES, "install wheel", "kernels", "check"]


def test_a_kept_wheel_that_does_not_load_is_built_anew(machine):
    machine.setup()
    (machine.cache / "recsys-harness/wheels" / wheel_name(GLOO)).write_text("broken")
    shutil.rmtree(machine.checkout / ".venv")
    machine.calls()
    finished = machine.setup()
    assert finished.returncode == 0 and "building anew" in finished.stdout
    assert machine.steps() == [
        *("venv", *PACKAGES, "install wheel"),
        *("download", "wheel", "install wheel", "kernels", "check"),
    ]


def test_a_wheel_of_another_tensorflow_is_not_taken(machine):
    machine.setup()
    machine.calls()
    requirements = machine.checkout / "requirements.txt"
    requirements.write_text(requirements.read_text().replace(f"tensorflow-cpu=={TENSORFLOW}", "tensorflow-cpu==2.22.1"))
    assert machine.setup().returncode == 0
    assert machine.steps() == WHOLE[1:]
    assert machine.wheels() == [wheel_name(GLOO), wheel_name("0.28.1+tf2.22.1.gloo")]


@pytest.mark.parametrize(
    ("options", "variant"),
    [
        ({}, "gloo"),
        ({"MPI": "1"}, "gloo.mpi"),
        ({"GPU": "1"}, "gloo.nccl"),
        ({"MPI": "1", "GPU": "1"}, "gloo.mpi.nccl"),
        ({"MPI": "0", "GPU": "0", "HOROVOD": "1"}, "gloo"),
    ],
)
def test_the_wheels_key(machine, options, variant):
    finished = machine.setup("--print-wheel", **options)
    name = wheel_name(f"0.28.1+tf{TENSORFLOW}.{variant}")
    assert finished.stdout == f"{machine.cache}/recsys-harness/wheels/{name}\n"
    assert machine.steps() == [] and not machine.cache.exists()


def test_the_cache_is_in_the_home_folder_without_xdg(machine):
    finished = machine.setup("--print-wheel", XDG_CACHE_HOME="")
    assert finished.stdout.startswith(f"{machine.tmp.parent}/.cache/recsys-harness/wheels/horovod-")


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (["cmake"], ["cmake 3.13 or newer", "apt install cmake)"]),
        (["g++"], ["C++ compiler", "apt install g++)"]),
        (["make"], ["make", "apt install make)"]),
        (["cmake", "g++"], ["cmake", "C++ compiler", "apt install g++ cmake)"]),
    ],
)
def test_a_missing_tool_is_one_line_before_anything_is_done(machine, gone, words):
    machine.remove(*gone)
    assert_one_line(machine.setup(), *words, "HOROVOD=0")
    assert machine.steps() == [] and not (machine.checkout / ".venv").exists()


@pytest.mark.parametrize("version", ["3.12.9", "2.8.12", ""])
def test_an_old_or_broken_cmake_is_missing(machine, version):
    machine.add("cmake", version=version)
    assert_one_line(machine.setup(), "cmake 3.13 or newer")


@pytest.mark.parametrize("version", ["3.13.0", "4.1.2"])
def test_cmake_from_3_13_on_will_do(machine, version):
    machine.add("cmake", version=version)
    assert machine.setup().returncode == 0


def test_mpi_needs_its_compiler(machine):
    assert_one_line(machine.setup(MPI="1"), "mpicxx", "libopenmpi-dev")
    machine.add("mpicxx")
    assert machine.setup(MPI="1").returncode == 0
    (environment, _), *_ = [call[1:] for call in machine.calls() if call[0] == "wheel"]
    assert environment["HOROVOD_WITH_MPI"] == "1" and "HOROVOD_WITHOUT_MPI" not in environment


def test_gpu_needs_cuda_and_nccl(machine, tmp_path):
    home = {"HOROVOD_NCCL_HOME": str(tmp_path / "nccl"), "HOROVOD_CUDA_HOME": str(tmp_path / "cuda")}
    if not Path("/usr/local/include/nccl.h").exists():
        assert_one_line(machine.setup(GPU="1", **home), "nvcc", "nccl.h")
    (tmp_path / "nccl/include").mkdir(parents=True)
    (tmp_path / "nccl/include/nccl.h").touch()
    machine.add("nvcc")
    finished = machine.setup(GPU="1", **home)
    assert finished.returncode == 0 and "not tried" in finished.stdout
    calls = machine.calls()
    install = next(call for call in calls if call[0] == "install")
    assert install[1] == [] and f"tensorflow[and-cuda]=={TENSORFLOW}" in install[2]
    assert "tensorflow-cpu" not in install[2]
    assert [call[1] for call in calls if call[0] == "install preproc"] == [["--no-deps", "--no-build-isolation"]]
    environment = next(call for call in calls if call[0] == "wheel")[1]
    assert (environment["HOROVOD_GPU"], environment["HOROVOD_GPU_OPERATIONS"]) == ("CUDA", "NCCL")
    # The two TensorFlow packages overwrite each other's files.
    machine.setup()
    assert machine.steps() == WHOLE


def test_horovod_0_needs_no_compiler(machine):
    machine.remove(*TOOLS)
    finished = machine.setup(HOROVOD="0")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert machine.steps() == ["venv", *PACKAGES, "kernels", "check"]
    assert "HOROVOD=0" in finished.stdout.splitlines()[-1]


def test_horovod_comes_and_goes_without_a_new_environment(machine):
    machine.setup(HOROVOD="0")
    machine.calls()
    assert machine.setup().returncode == 0
    assert machine.steps() == WHOLE[1:]
    assert machine.setup(HOROVOD="0").returncode == 0
    assert machine.steps() == [*PACKAGES, "uninstall", "kernels", "check"]
    assert machine.packages() == ["nvtabular"]
    machine.add("mpicxx")
    machine.setup(MPI="1")
    assert machine.steps() == WHOLE[1:]
    machine.setup(MPI="0")
    assert machine.steps() == [*PACKAGES, "install wheel", "kernels", "check"]
    assert len(machine.wheels()) == 2


def test_keep_leaves_a_finished_environment_its_options(machine):
    machine.setup(HOROVOD="0")
    machine.calls()
    finished = machine.setup("--keep")
    assert machine.steps() == ["runs?"] and "HOROVOD=0" in finished.stdout
    machine.setup("--keep", HOROVOD="1")
    assert "wheel" in machine.steps()


def test_preproc_0_leaves_nvtabular_out_and_keep_keeps_that(machine):
    finished = machine.setup(PREPROC="0")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert machine.steps() == [step for step in WHOLE if step != "install preproc"]
    assert "NVTabular 23" not in finished.stdout and "PREPROC=0" in finished.stdout.splitlines()[-1]
    assert "nvtabular" not in machine.packages()
    finished = machine.setup("--keep")
    assert machine.steps() == ["runs?"] and "PREPROC=0" in finished.stdout
    machine.setup("--keep", HOROVOD="0")
    assert "install preproc" not in machine.steps()


def test_nvtabular_comes_and_goes_without_a_new_environment(machine):
    machine.setup(HOROVOD="0", PREPROC="0")
    machine.calls()
    assert machine.setup(HOROVOD="0").returncode == 0
    assert machine.steps() == [*PACKAGES, "uninstall", "kernels", "check"] and machine.packages() == ["nvtabular"]
    assert machine.setup(HOROVOD="0", PREPROC="0").returncode == 0
    calls = machine.calls()
    assert [call[0] for call in calls] == ["uninstall preproc", "install", "uninstall", "kernels", "check"]
    assert calls[0][1] == "requirements-preproc.txt" and machine.packages() == []


def test_another_nvtabular_is_another_environment(machine):
    machine.setup(HOROVOD="0")
    machine.calls()
    requirements = machine.checkout / "requirements-preproc.txt"
    requirements.write_text(requirements.read_text().replace(f"nvtabular=={NVTABULAR}", "nvtabular==23.8.1"))
    finished = machine.setup("--keep")
    assert "install preproc" in machine.steps() and "NVTabular 23.8.1" in finished.stdout


def test_packages_of_preprocessing_that_do_not_install_are_an_error(machine):
    finished = machine.setup(FAKE_PREPROC_FAILS="no such release")
    assert finished.returncode == 1 and not machine.finished
    assert "no such release" in finished.stderr and "PREPROC=0" in finished.stderr.splitlines()[-1]


WRONG = [{"HOROVOD": "no"}, {"PREPROC": "none"}, {"MPI": "2"}, {"GPU": "yes"}, {"HOROVOD": "0", "MPI": "1"}]


@pytest.mark.parametrize("options", WRONG)
def test_a_wrong_option_is_one_line(machine, options):
    assert_one_line(machine.setup(**options), *(f"{name}={value}" for name, value in list(options.items())[-1:]))
    assert_one_line(machine.setup("--fast"), "'--fast'")


def test_names_in_path_that_are_no_python_3_11_are_passed_over(machine, tmp_path):
    shims = tmp_path / "shims"
    for name in ("python3.11", "python3"):
        machine.program(shims / name, "#!/bin/sh\necho 'no version set' >&2\nexit 127\n")
    (machine.bin / "python3.11").rename(machine.bin / "python")
    base = str(machine.bin / "python")
    finished = machine.setup(PATH=f"{shims}:{machine.bin}", FAKE_BASE=base)
    assert finished.returncode == 0, finished.stderr
    assert f"making .venv with {base}" in finished.stdout


def test_the_interpreter_beneath_an_environment_is_found(machine, tmp_path):
    venv.create(tmp_path / "environment", with_pip=False)
    script = machine.checkout / "scripts/setup.sh"
    script.write_text(script.read_text().replace('\nmain "$@"\n', '\nbase_of "$PYTHON"\n'))
    finished = machine.setup(PYTHON=str(tmp_path / "environment/bin/python"))
    base, complete = finished.stdout.splitlines()
    assert complete == "True" and not Path(base).is_relative_to(tmp_path)
    assert Path(base).resolve() == Path(sys._base_executable).resolve()


def test_the_environment_is_not_made_from_itself(machine):
    machine.setup()
    (machine.checkout / ".venv/.setup-complete").unlink()
    shutil.copy(machine.checkout / ".venv/bin/python", machine.checkout / ".venv/bin/python3.11")
    finished = machine.setup(PATH=f"{machine.checkout}/.venv/bin:{machine.bin}")
    assert f"making .venv with {machine.python}" in finished.stdout


def test_missing_python_is_one_line(machine):
    machine.remove("python3.11")
    assert_one_line(machine.setup(), "Python 3.11 is missing", "apt install python3.11", "PYTHON=")


def test_python_without_venv_is_one_line(machine):
    assert_one_line(machine.setup(FAKE_COMPLETE="False"), "python3.11-venv")


def test_the_named_python_is_taken(machine):
    machine.remove("python3.11")
    other = machine.program(machine.tmp.parent / "my python", FAKE_PYTHON)
    assert machine.setup(PYTHON=str(other), FAKE_BASE=str(other)).returncode == 0
    machine.calls()
    machine.setup(PYTHON=str(other), FAKE_BASE=str(other))
    assert machine.steps() == ["runs?"]
    another = machine.program(machine.tmp.parent / "another", FAKE_PYTHON)
    machine.setup(PYTHON=str(another), FAKE_BASE=str(another))
    assert "venv" in machine.steps()
    assert_one_line(machine.setup(PYTHON="/no/python"), "PYTHON=/no/python")


def test_an_interrupted_set_up_is_done_anew(machine):
    finished = machine.setup(FAKE_INSTALL_FAILS="no such release")
    assert finished.returncode == 1 and "no such release" in finished.stderr
    assert not machine.finished and list(machine.tmp.iterdir()) == []
    machine.calls()
    machine.setup()
    assert machine.steps() == WHOLE and machine.finished


def test_an_interrupted_change_is_not_taken_for_finished(machine):
    machine.setup(HOROVOD="0")
    assert machine.setup(FAKE_INSTALL_FAILS="no such release").returncode == 1
    machine.calls()
    machine.setup(HOROVOD="0")
    assert machine.steps() == ["venv", *PACKAGES, "kernels", "check"]


def test_a_moved_checkout_is_set_up_anew(machine):
    machine.setup()
    machine.calls()
    machine.checkout = machine.checkout.rename(machine.checkout.with_name("moved"))
    machine.setup()
    assert machine.steps() == ["venv", *PACKAGES, "install wheel", "kernels", "check"]


def test_packages_that_disagree_are_an_error(machine):
    assert_one_line(machine.setup(FAKE_DISAGREE="1"), "one 1 needs two 2")
    assert not machine.finished


def test_other_sources_than_expected_are_an_error(machine):
    finished = machine.setup(FAKE_GUARD="#if TENSORFLOW_VERSION >= 3000000000")
    assert_one_line(finished, "xla_mpi_ops.cc", "0 lines")
    assert machine.wheels() == [] and not machine.finished and list(machine.tmp.iterdir()) == []
    assert "wheel" not in machine.steps()


def test_a_failed_build_shows_the_end_of_its_log_and_keeps_it(machine):
    finished = machine.setup(FAKE_BUILD_FAILS="1")
    kept = machine.cache / "recsys-harness/horovod-build.log"
    assert finished.returncode == 1
    assert "the compiler gave up" in kept.read_text()
    assert finished.stderr.splitlines()[-2] == "error: the compiler gave up"
    assert str(kept) in finished.stderr.splitlines()[-1]
    assert machine.wheels() == [] and not machine.finished and list(machine.tmp.iterdir()) == []


def test_a_terminated_build_leaves_nothing_behind(machine, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)  # so, opening does not wait for a writer
    options = machine.command(FAKE_HANG=str(pipe))
    with subprocess.Popen(**options, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert select.select([reader], [], [], 30)[0], process.communicate()
        builder = os.pidfd_open(int(os.read(reader, 100)))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    os.close(reader)
    assert process.returncode == 143
    assert select.select([builder], [], [], 30)[0], "the build goes on"
    os.close(builder)
    assert list(machine.tmp.iterdir()) == [] and machine.wheels() == [] and not machine.finished


def pins(path):
    """Canonical name -> version of a requirements file in which every line must be `name==version`."""
    lines = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    found = [re.fullmatch(r"([A-Za-z0-9_.-]+)==([0-9][A-Za-z0-9.]*)", line) for line in lines if line]
    assert all(found), path
    names = [canonicalize_name(match[1]) for match in found]
    assert len(names) == len(set(names)), path
    return dict(zip(names, (match[2] for match in found), strict=True))


def test_requirement_files_hold_pins_and_nothing_else(root):
    files = sorted(root.glob("requirements*.txt"))
    assert len(files) >= 4
    for path in files:
        assert pins(path)
        assert "://" not in path.read_text()


@pytest.fixture
def lists(root):
    """The pins of each file that `make setup` installs."""
    names = ("requirements.txt", "requirements-dev.txt", "requirements-preproc.txt")
    return [pins(root / name) for name in names]


def test_each_package_is_pinned_once(lists):
    assert len({name for pinned in lists for name in pinned}) == sum(map(len, lists))


def test_requirements_are_complete_and_are_what_is_installed(lists):
    if not list(importlib.metadata.distributions(name="tensorflow-cpu")):
        pytest.skip("set up with GPU=1: the CUDA build of TensorFlow stands in for tensorflow-cpu")
    training, tests, preprocessing = lists
    together = [training, {**training, **tests}]
    if list(importlib.metadata.distributions(name="nvtabular")):  # not with PREPROC=0
        together.append({**training, **preprocessing})
    for pinned in together:
        for name, version in pinned.items():
            package = importlib.metadata.distribution(name)
            assert package.version == version, name
            for text in package.requires or []:
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                    assert canonicalize_name(needed.name) in pinned, f"{name} needs {needed}"
                    assert needed.specifier.contains(pinned[canonicalize_name(needed.name)]), f"{name} needs {needed}"


def test_everything_of_the_lists_is_needed(lists):
    """Each package is one that the file names by itself or that another pinned one requires."""
    if not list(importlib.metadata.distributions(name="nvtabular")):
        pytest.skip("NVTabular is not installed (PREPROC=0)")
    _, _, preprocessing = lists
    requirements = [
        Requirement(text) for name in preprocessing for text in importlib.metadata.distribution(name).requires or []
    ]
    needed = {
        canonicalize_name(requirement.name)
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    }
    assert set(preprocessing) - needed == {"nvtabular"}
