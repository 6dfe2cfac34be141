"""The arrows of the design, read from the source: who may import what, and what stands nowhere."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("data", "models", "trainer", "benchmarks")
MOST_LINES = 400
STANDARD = sys.stdlib_module_names

# Who alone may import a package: files, and folders with all below them.
OWNERS = {
    "horovod": ("trainer/distributed.py",),
    "absl": ("trainer/flags.py",),
    "nvtabular": ("data/outbrain/",),
    "merlin": ("data/outbrain/", "benchmarks/merlin_loader.py"),
    "pynvml": ("trainer/nvml.py",),
    "torch": ("benchmarks/torch_peer.py",),
}
# What a room may import besides the standard library and itself.
ALLOWED = {
    "data": {
        *("numpy", "pandas", "pyarrow", "scipy", "tensorflow", "yaml", "nvtabular", "dask", "distributed", "merlin"),
        *("cupy", "cupyx", "fsspec", "psutil", "tqdm"),
    },
    "models": {"data", "keras", "numpy", "tensorflow"},
}
FORBIDDEN_TRAINER = {"benchmarks", "tests", "main"}


def tracked_files():
    """Files of the tree that git knows or would add; all files where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode == 0 and listed.stdout:
        paths = [ROOT / name for name in listed.stdout.splitlines()]
    else:
        paths = [path for path in ROOT.rglob("*") if not any(part.startswith(".venv") for part in path.parts)]
    return sorted(path for path in paths if path.is_file() and "__pycache__" not in path.parts)


FILES = tracked_files()
SOURCES = [path for path in FILES if path.suffix == ".py" and path.relative_to(ROOT).parts[0] != "tests"]


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def imports(tree):
    """(line, full module name, whether it is imported when the module is) of every import, wherever it stands."""
    found = []

    def visit(node, at_import):
        for child in ast.iter_child_nodes(node):
            lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            if isinstance(child, ast.Import):
                found.extend((child.lineno, alias.name, at_import) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                module = "." * child.level + (child.module or "")
                found.append((child.lineno, module, at_import))
                found.extend((child.lineno, f"{module}.{alias.name}", at_import) for alias in child.names)
            elif isinstance(child, ast.Call) and ast.unparse(child.func).endswith(("import_module", "__import__")):
                argument = child.args[0] if child.args else None
                if isinstance(argument, ast.Constant):
                    found.append((child.lineno, str(argument.value), at_import))
            visit(child, at_import and not lazy and not typing_only)

    visit(tree, True)
    return found


def offences(path, source=None):
    """What a file does against the design, as texts."""
    name = name_of(path)
    room = name.split("/")[0]
    tree = ast.parse(path.read_text() if source is None else source, filename=name)
    found = []
    for line, module, _ in imports(tree):
        package = module.split(".")[0]
        if module.startswith("."):
            found.append(f"{name}:{line}: relative import {module}")
        owners = OWNERS.get(package)
        if owners is not None and not any(
            name == one or (one.endswith("/") and name.startswith(one)) for one in owners
        ):
            found.append(f"{name}:{line}: imports {module}, which only {' and '.join(owners)} may")
        if room in ALLOWED and package not in STANDARD and package not in ALLOWED[room] | {room}:
            found.append(f"{name}:{line}: {room} imports {module}")
        if room == "trainer" and package in FORBIDDEN_TRAINER:
            found.append(f"{name}:{line}: trainer imports {module}")
        if room not in ("trainer", "main.py", "benchmarks") and module.startswith("trainer"):
            found.append(f"{name}:{line}: imports {module}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            found.append(f"{name}:{node.lineno}: assert, which is gone under -O and has no message")
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.path", "flags.FLAGS"):
            found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    return found


def reachable(module, known):
    """Modules of the project that importing `module` imports too."""
    seen, todo = set(), [module]
    while todo:
        current = todo.pop()
        if current in seen or current not in known:
            continue
        seen.add(current)
        todo += [target for _, target, at_import in imports(known[current]) if at_import]
    return seen


@pytest.fixture(scope="module")
def modules():
    """Module name -> syntax tree of every module of the project."""
    return {
        name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): ast.parse(path.read_text())
        for path in SOURCES
    }


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_file_keeps_to_the_design(path):
    assert offences(path) == []


def test_the_rooms_are_there_and_were_looked_at():
    names = {name_of(path) for path in SOURCES}
    assert {"main.py", "data/feature_spec.py", "models/wide_deep.py", "trainer/metrics.py"} <= names
    for owner in ("trainer/distributed.py", "trainer/flags.py"):
        assert owner in names


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("trainer/metrics.py", "import horovod.tensorflow as hvd"),
        ("trainer/train.py", "def f():\n    from absl import flags"),
        ("main.py", "from absl import flags"),
        ("data/input_pipeline.py", "import horovod"),
        ("data/input_pipeline.py", "import trainer.config"),
        ("data/synthetic.py", "from models import registry"),
        ("data/synthetic.py", "import nvtabular"),
        ("data/synthetic.py", "import importlib\nimportlib.import_module('nvtabular')"),
        ("models/layers.py", "from trainer.config import RunConfig"),
        ("models/layers.py", "import pandas"),
        ("trainer/train.py", "import main"),
        ("trainer/train.py", "from . import config"),
        ("trainer/train.py", "assert 1 == 1"),
        ("trainer/train.py", "import sys\nsys.path.insert(0, '..')"),
    ],
)
def test_offences_are_seen(file, source):
    assert offences(ROOT / file, source)


def test_metrics_stand_without_horovod_and_tensorflow(modules):
    found = reachable("trainer.metrics", modules)
    assert "trainer.ranking_metrics" in found
    assert "trainer.distributed" not in found
    packages = {target.split(".")[0] for name in found for _, target, _ in imports(modules[name])}
    assert packages.isdisjoint({"horovod", "tensorflow", "keras"})


@pytest.mark.parametrize("module", ["main", "trainer.flags", "trainer.config", "trainer.runtime", "trainer.launch"])
def test_nothing_before_the_environment_is_set_imports_tensorflow(modules, module):
    found = reachable(module, modules)
    assert module in found and len(found) > 2
    packages = {target.split(".")[0] for name in found for _, target, at_import in imports(modules[name]) if at_import}
    assert packages.isdisjoint({"tensorflow", "keras", "horovod"})


def test_no_file_grows_too_long():
    long = {name_of(path): len(path.read_text().splitlines()) for path in FILES if path.suffix in (".py", ".sh")}
    assert {name: lines for name, lines in long.items() if lines > MOST_LINES and not name.startswith("tests/")} == {}


def test_no_file_of_everything():
    assert [name_of(path) for path in FILES if path.stem in ("utils", "util", "helpers", "misc", "common")] == []


def test_modules_are_called_what_they_are_and_say_what_they_are():
    for path in SOURCES:
        assert ast.get_docstring(ast.parse(path.read_text())), f"{name_of(path)} has no docstring"


def test_no_address_of_a_package_registry():
    pattern = re.compile(
        r"--(extra-)?index-url|index.url\s*=|find-links[ =]\S|pypi\.org|pythonhosted|trusted-host[ =]", re.IGNORECASE
    )
    found = []
    for path in FILES:
        if path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{name_of(path)}: {line.strip()}" for line in text.splitlines() if pattern.search(line)]
    assert found == []
