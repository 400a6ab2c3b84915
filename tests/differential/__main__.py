"""python -m tests.differential --seed S --searches N: random searches by scikit-learn and by this package, compared.

Each search is made of one integer. A difference that the documentation does not explain is printed in one line, with
the command that repeats it and the lines that make the search; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from threadpoolctl import threadpool_limits

from tests.differential import ways
from tests.differential.case import Case, case_of
from tests.differential.compare import Difference, differences, explained


@dataclass(frozen=True)
class Finding:
    """A search with a difference that has no explanation."""

    case: Case
    way: str
    first: Difference

    def __str__(self) -> str:
        again = f"python -m tests.differential --case {self.case.seed} --ways {self.way}"
        return f"{self.way}: {self.first}\n    again: {again}"


def seed_of(seed: int, number: int) -> int:
    """The seed of a search: that of the run and its number, mixed."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:6], "big")


def compared(case: Case, names: list[str], reasons: Counter[str] | None = None) -> Iterator[Finding]:
    """The search in each of these ways beside scikit-learn's; `reasons` counts the differences with an explanation."""
    right = ways.reference(case)
    for name in names:
        ours = ways.WAYS[name](case)
        first: Difference | None = None
        for found in differences(case, right, ours):
            why = explained(case, found, right, ours)
            if why is None and first is None:
                first = found
            elif why is not None and reasons is not None:
                reasons[why] += 1
        if first is not None:
            yield Finding(case, name, first)


def run(seeds: list[int], names: list[str], say: Callable[[str], None]) -> list[Finding]:
    """All searches of these seeds in all these ways, but for those that scikit-learn itself does not end."""
    reasons: Counter[str] = Counter()
    found: list[Finding] = []
    begin, endless = time.monotonic(), 0
    for case in map(case_of, seeds):
        with threadpool_limits(1):  # on small samples threads of several processes only wait for each other
            if not ways.ends(case):
                endless += 1
                continue
            seen = list(compared(case, names, reasons=reasons))
        for finding in seen:
            found.append(finding)
            say(str(finding))
            say(textwrap.indent(finding.case.text, "    "))
    rate = 60 * len(seeds) / max(time.monotonic() - begin, 1e-9)
    say(f"{len(seeds)} searches ({', '.join(names)}), {len(found)} differ; {rate:.0f} a minute")
    if endless:
        say(f"    {endless} left out: LIBSVM did not end for scikit-learn either")
    for why, times in sorted(reasons.items()):
        say(f"    {times} differences explained by {why}")
    return found


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--seed", type=int, default=0, help="of the run (default 0)")
    parser.add_argument("--searches", type=int, default=200, metavar="N", help="how many (default 200)")
    parser.add_argument("--first", type=int, default=0, metavar="I", help="number of the first of them (default 0)")
    parser.add_argument("--case", type=int, action="append", metavar="C", help="the search of this integer alone")
    parser.add_argument("--ways", default=",".join(ways.WAYS), help=f"of {', '.join(ways.WAYS)} (default all)")
    chosen = parser.parse_args()
    names = chosen.ways.split(",")
    if unknown := [name for name in names if name not in ways.WAYS]:
        parser.error(f"--ways {unknown[0]!r}: give some of {', '.join(ways.WAYS)}")
    seeds = chosen.case or [seed_of(chosen.seed, chosen.first + number) for number in range(chosen.searches)]
    return int(bool(run(seeds, names, say)))


if __name__ == "__main__":
    sys.exit(main())
