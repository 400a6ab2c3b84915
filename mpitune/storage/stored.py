"""What a journal knows, as mappings over its lines: a trial or result is made when it is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence

from mpitune.storage.lines import TrialLines
from mpitune.trial import Parameter, Result, Trial


class StoredTrials(Mapping[str, Trial]):
    """The trials of lines, made when they are looked at."""

    def __init__(self, lines: TrialLines):
        self.lines = lines

    def __getitem__(self, key: str) -> Trial:
        return self.lines.trial(key)

    def __contains__(self, key: object) -> bool:
        return key in self.lines.texts

    def __iter__(self) -> Iterator[str]:
        return iter(self.lines.texts)

    def __len__(self) -> int:
        return len(self.lines.texts)


class StoredResults(MutableMapping[str, Result]):
    """The results of lines, made when they are looked at, and others that are added; a copy shares the lines."""

    def __init__(self, lines: TrialLines, changed: Mapping[str, Result | None] | None = None):
        self.lines = lines
        self._changed: dict[str, Result | None] = dict(changed or {})  # None: no longer there

    def __copy__(self) -> StoredResults:
        return StoredResults(self.lines, self._changed)

    def __getitem__(self, key: str) -> Result:
        if key not in self._changed:
            return self.lines.result(key)
        result = self._changed[key]
        if result is None:
            raise KeyError(key)
        return result

    def __contains__(self, key: object) -> bool:
        return self._changed[key] is not None if key in self._changed else key in self.lines.texts

    def __setitem__(self, key: str, result: Result) -> None:
        self._changed[key] = result

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._changed[key] = None

    def __iter__(self) -> Iterator[str]:
        texts = self.lines.texts
        yield from (key for key in texts if self._changed.get(key, True) is not None)
        yield from (key for key, result in self._changed.items() if result is not None and key not in texts)

    @property
    def unchanged(self) -> bool:
        """Whether its keys are those of the lines."""
        return not self._changed

    def __len__(self) -> int:
        texts = self.lines.texts
        return len(texts) + sum((result is not None) - (key in texts) for key, result in self._changed.items())


def have_same_keys(trials: Mapping[str, Trial], results: Mapping[str, Result]) -> bool:
    """Whether it is known, without a look at each, that every trial has a result and every result a trial."""
    if not isinstance(trials, StoredTrials) or not isinstance(results, StoredResults):
        return False
    return trials.lines is results.lines and results.unchanged


def known_params(trials: Mapping[str, Trial], keys: Sequence[str]) -> Iterator[Mapping[str, Parameter] | None]:
    """The parameters of the trial of each of these keys, None where there is none."""
    if isinstance(trials, StoredTrials):
        return trials.lines.params(keys)
    return (trials[key].params if key in trials else None for key in keys)
