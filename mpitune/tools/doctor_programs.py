"""What the programs beside `mpitune` want looked at: they say it themselves."""

from __future__ import annotations

from mpitune.experiment import DoctorChecks
from mpitune.tools.programs import experiments


def programs() -> dict[str, DoctorChecks]:
    """The checks that `python -m mpitune doctor` makes for each program, by its name."""
    return {name: experiment.doctor_checks for name, experiment in experiments().items()}


def kinds_of(every: dict[str, DoctorChecks], device: str) -> dict[str, list[str]]:
    """Libraries for "cpu" or "cuda", each with the programs that cannot run without it; none for an optional one."""
    found: dict[str, list[str]] = {}
    for name, checks in every.items():
        for library in checks.libraries.get(device, ()):
            found.setdefault(library, []).append(name)
        for library in checks.optional.get(device, ()):
            found.setdefault(library, [])
    return found
