"""The first words of a job. They never change, so that ranks of any two versions understand that they differ.

    every rank -> rank 0      {"words": 1, "host": "node7", "code": "1f8f61b0"}
    rank 0 -> every rank      {"words": 1, "refused": ""}          or why the job cannot run

A version from before these words begins with others. Then MPI itself ends the job, as that reaches every version.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from mpitune.errors import Exit, UsageError, or_typed
from mpitune.ranks.transport import Transport

WORDS = 1
FIX = "install the same on all"


def greet(transport: Transport, host: str, code: str, *, allow_mixed_versions: bool) -> None:
    """Begin a job; every rank calls it first. `code` differs where the source code does.

    Raises:
        UsageError: on all ranks, where their code differs.
    """
    if transport.size == 1:
        return
    heard = [_parsed(words) for words in transport.gather(json.dumps({"words": WORDS, "host": host, "code": code}))]
    refused = ""
    if transport.rank == 0:
        codes = [words.get("code") for words in heard]
        if None in codes:
            refused = f"rank {codes.index(None)} runs another version of this program than {host}: {FIX}"
        elif len(set(codes)) > 1 and not allow_mixed_versions:
            other = next(words for words in heard if words["code"] != code)
            refused = f"hosts have different versions: code {code} on {host}, {other['code']} on {other['host']}: "
            refused += f"{FIX}{or_typed('allow_mixed_versions')}"
        if None in codes:
            _end(transport, refused)
    answer = _parsed(transport.broadcast(json.dumps({"words": WORDS, "refused": refused})))
    if "refused" not in answer:
        _end(transport, f"rank 0 runs another version of this program than {host}: {FIX}")
    if answer["refused"]:
        raise UsageError(answer["refused"])


def _parsed(words: Any) -> dict[str, Any]:
    """The words that were said; empty if they are none of these."""
    try:
        said = json.loads(words)
    except (TypeError, ValueError):
        return {}
    return said if isinstance(said, dict) and said.get("words") == WORDS else {}


def _end(transport: Transport, why: str) -> None:
    """End all ranks, of which some would not understand a word."""
    print(why, file=sys.stderr)
    transport.abort(Exit.USAGE)
