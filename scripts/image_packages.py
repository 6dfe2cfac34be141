"""What the Dockerfile asks of its base image's Python, before and after it installs requirements-ngc.txt.

    python scripts/image_packages.py record FILE                writes name==version of every installed package
    python scripts/image_packages.py missing REQUIREMENTS       prints the lines whose package is not installed at all
    python scripts/image_packages.py compare FILE               fails if a package of FILE has changed or is gone, or if
                                                                TensorFlow or Horovod does not import

Needs the standard library alone, whatever the image has.
"""

import importlib
import importlib.metadata
import re
import sys
from pathlib import Path


def canonical(name: str) -> str:
    """A package name in the one spelling that all its spellings share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Canonical name -> version of every installed package."""
    return {
        canonical(package.metadata["Name"]): package.version
        for package in importlib.metadata.distributions()
        if package.metadata["Name"]
    }


def missing_lines(requirements: str, present: dict[str, str]) -> list[str]:
    """The lines `name==version` of a requirements file whose package is not in `present`, comments cut off."""
    lines = [line.split("#")[0].strip() for line in requirements.splitlines()]
    return [line for line in lines if line and canonical(line.split("==")[0]) not in present]


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """One sentence for each package of `before` that has another version in `after` or none."""
    return [
        f"{name} was {version} and is now {after.get(name, 'gone')}"
        for name, version in sorted(before.items())
        if after.get(name) != version
    ]


def import_failures(modules: tuple[str, ...]) -> list[str]:
    """One sentence for each module that does not import.

    A missing libcuda.so is no failure: the driver is not there while an image is built, it comes with `--gpus`.
    """
    failures = []
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            if "libcuda.so" in str(error):
                print(f"{module} waits for the driver ({error}): it can be imported with --gpus only")
            else:
                failures.append(f"{module} does not import: {error}")
    return failures


def main(arguments: list[str]) -> int:
    """Runs one of the three commands; the exit code."""
    if len(arguments) != 2 or arguments[0] not in ("record", "missing", "compare"):
        print("usage: image_packages.py record FILE | missing REQUIREMENTS | compare FILE", file=sys.stderr)
        return 2
    command, path = arguments[0], Path(arguments[1])
    if command == "record":
        path.write_text("".join(f"{name}=={version}\n" for name, version in sorted(installed().items())))
        return 0
    if command == "missing":
        print("\n".join(missing_lines(path.read_text(), installed())))
        return 0
    before = dict(line.split("==", 1) for line in path.read_text().splitlines())
    problems = changes(before, installed()) + [
        f"the image has no {name} of its own" for name in ("tensorflow", "horovod") if name not in before
    ]
    problems += import_failures(("tensorflow", "horovod.tensorflow"))
    for problem in problems:
        print(f"image_packages.py: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
