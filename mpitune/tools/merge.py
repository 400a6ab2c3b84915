"""Join the journals of one study: `python -m mpitune merge RESULTS... --into RESULTS`.

For studies that were run in shards (`--shard K/N`), or on machines that see each other's files only later. The same
command without --shard, on the joined folder, then evaluates what is missing, which includes all that a search asks
once it knows its first results, and reports. The sources are only read. Merging again does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from mpitune.errors import Exit, UsageError
from mpitune.settings import program, setting
from mpitune.storage.history import History, read_study, require_same_study
from mpitune.storage.journal import Journal


@dataclass(frozen=True)
class MergeOptions:
    """The command line."""

    folders: tuple[Path, ...] = setting(help="results folders to join")
    into: Path | None = setting(None, "results folder for the joined study; it may exist", metavar="RESULTS")


def merge(folders: Sequence[Path], into: Path) -> History:
    """Add to the study in `into` every result of `folders` that it lacks, or has as a failure only.

    Raises:
        UsageError: a folder holds no study, or one of other settings, and nothing was written; or `into` cannot be
            written, or holds a study of other settings.
    """
    histories = [read_study(folder) for folder in folders]
    header = histories[0].header
    for folder, history in zip(folders, histories, strict=True):
        fix = "join studies of the same settings"
        require_same_study(folder, history.header["settings"], header["settings"], fix=fix, first=folders[0])
    with closing(Journal(into, {name: value for name, value in header.items() if name != "format"})) as journal:
        known = journal.history.results
        for history in histories:
            fresh = [
                (history.trials[key], result)
                for key, result in history.results.items()
                if key not in known or (known[key].failed and not result.failed)
            ]
            if fresh:
                for run in history.runs:
                    journal.note(run=run)
                journal.append(fresh)
                known.update((result.key, result) for _, result in fresh)
        return journal.history


def main(arguments: Sequence[str] | None = None) -> Exit:
    """The command line. Returns the exit status."""
    return program(
        MergeOptions, _join, arguments, prog="python -m mpitune merge", description="Join the journals of one study."
    )


def _join(options: MergeOptions) -> Exit:
    if options.into is None:
        raise UsageError("--into is missing: name the results folder for the joined study")
    history = merge(options.folders, options.into)
    print(f"{options.into}: {len(history.results)} trials; to finish and report, run the search with this folder")
    return Exit.DONE
