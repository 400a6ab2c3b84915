"""What a journal knows, as mappings over packed records: a trial or result is made when it is looked at."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mpitune.storage.records import UNPACKABLE, Packed, pack, unpacked
from mpitune.trial import Parameter, Result, Trial


class StoredTrials(Mapping[str, Trial]):
    """The trials of packed records, made when they are looked at."""

    def __init__(self, records: Mapping[str, Packed]):
        self._records = records

    def __getitem__(self, key: str) -> Trial:
        return unpacked(self._records[key]).trial

    def __contains__(self, key: object) -> bool:
        return key in self._records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def others(self, asked: Iterable[Trial]) -> Iterator[Trial]:
        """Those of the asked trials that are not known to be the same; few that are the same may be among them."""
        record_of = self._records.get
        for trial in asked:
            record = record_of(trial.key)
            try:  # a packed list of few parts begins with one byte, then with the parameters
                if isinstance(record, bytes) and record.startswith(pack(trial.params), 1):
                    continue
            except UNPACKABLE:
                pass
            yield trial


class StoredResults(UserDict[str, Result]):
    """The results of packed records, made when they are looked at, and others that are set.

    A copy shares the records until one of both is changed, as there may be a million.
    """

    data: dict[str, Packed | Result]  # type: ignore[assignment]

    def __init__(self, folder: Path, records: dict[str, Any]):
        self.data, self._folder, self._shared = records, folder, True

    def __copy__(self) -> StoredResults:
        self._shared = True
        return type(self)(self._folder, self.data)

    def __getitem__(self, key: str) -> Result:
        record = self.data[key]
        return record if isinstance(record, Result) else unpacked(record).result(self._folder)

    def __setitem__(self, key: str, result: Result) -> None:
        self._own_records()[key] = result

    def __delitem__(self, key: str) -> None:
        del self._own_records()[key]

    def _own_records(self) -> dict[str, Packed | Result]:
        if self._shared:
            self.data, self._shared = dict(self.data), False
        return self.data


def not_known(
    known: Mapping[str, Trial], asked: Iterable[Trial]
) -> Iterator[tuple[Trial, Mapping[str, Parameter] | None]]:
    """The asked trials that are not known, with None, and those known with other parameters, with these."""
    for trial in known.others(asked) if isinstance(known, StoredTrials) else asked:
        params = known[trial.key].params if trial.key in known else None
        if params is None or dict(params) != dict(trial.params):
            yield trial, params
