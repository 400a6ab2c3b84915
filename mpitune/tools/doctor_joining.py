"""Whether jobs on these hosts could join a study in a folder: what `mpitune.storage.jobs` needs of its file system.

One name is given to one process only, however many ask for it at the same moment; what one host has written others see
within a few seconds.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from mpitune.engine.preflight import Finding
from mpitune.ranks.transport import Transport

WITHIN_S = 10.0  # another host must see what was written; jobs wait for much longer before they take another's work
NAMES = 20


def check_joining(transport: Transport, folder: Path, host: str) -> list[Finding]:
    """All ranks call this; rank 0 gets the findings. Leaves nothing behind."""
    there, problem, is_new = "", "", not folder.exists()
    if transport.rank == 0:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            there = tempfile.mkdtemp(prefix=".joining-", dir=folder)
        except OSError as error:
            problem = f"results folder {folder} cannot be written ({error.strerror}): give another one with --results"
    there = transport.broadcast(there)
    if not there:
        return [Finding(problem, fatal=True)] if problem else []
    place = Path(there)
    own = place / f"of-{transport.rank}"
    won, cause = 0, ""
    try:
        own.write_text(f"{transport.rank}\n")
    except OSError as error:
        cause = f"{host}: {error.strerror}"
    transport.gather(None)
    transport.broadcast(None)  # all begin at about the same time
    try:
        for n in range(NAMES) if not cause else ():
            with suppress(FileExistsError):
                os.link(own, place / f"claim-{n}")
                won += 1
    except OSError as error:
        cause = f"{host}: {error.strerror}"
    every = transport.gather((won, cause))
    transport.broadcast(None)
    begin = time.monotonic()
    wanted = {f"of-{rank}" for rank in range(transport.size)}
    while not cause and wanted and time.monotonic() - begin < WITHIN_S:
        wanted -= {name for name in wanted if _reads(place / name)}
        time.sleep(0.05 if wanted else 0.0)
    blind = transport.gather((host, sorted(wanted)))
    findings = []
    if transport.rank == 0:
        errors = [why for _, why in every if why]
        if errors:
            text = f"jobs cannot join a study there ({errors[0]}): hard links and files that all hosts see are needed"
            findings.append(Finding(f"{text}, give another folder with --results", fatal=True))
        elif sum(n for n, _ in every) != NAMES:
            text = (
                f"{folder} gave {sum(n for n, _ in every)} of {NAMES} names: two jobs would take the same work, give "
            )
            findings.append(Finding(text + "another folder with --results", fatal=True))
        for where, missing in blind:
            if missing and not errors:
                text = f"{where} does not see within {WITHIN_S:g} s what other hosts write to {folder}"
                findings.append(Finding(f"{text}: mount it there, or with a shorter time of its cache", fatal=True))
        shutil.rmtree(place, ignore_errors=True)
        if is_new:
            folder.rmdir()
    return findings


def _reads(path: Path) -> bool:
    try:
        return path.read_text().endswith("\n")
    except OSError:
        return False
