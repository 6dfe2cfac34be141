"""What the records of a study say of the machine that they were made on."""

from collections.abc import Mapping
from typing import Any

from benchmarks.study.report.counted import Study


def environments(study: Study) -> dict[str, Any]:
    """The environments of all records as one, with the devices; a fact that differs has all its values, in a list."""
    found: dict[str, list[Any]] = {}
    for record in study.records:
        facts = dict(record.get("environment") or {})
        commit = facts.get("commit")
        if commit:
            found.setdefault("measured at commit", [])
            facts["measured at commit"] = f"{commit}{' WITH CHANGES' if facts.get('dirty') else ''}"
        facts["device"] = record.get("device")
        for name, value in facts.items():
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    return {name: values[0] if len(values) == 1 else _several(values) for name, values in found.items()}


def on_cpu(study: Study) -> bool:
    """Whether runs were made without an accelerator, by what their records call their device."""
    return any(str(record.get("device") or "").startswith("CPU") for record in study.records)


def _several(values: list[Any]) -> list[str]:
    return [", ".join(f"{k} {v}" for k, v in one.items()) if isinstance(one, Mapping) else str(one) for one in values]
