"""The first words of a job. They never change, so that ranks of any two versions understand that they differ.

    every rank -> rank 0      {"words": 1, "host": "node7", "code": "1f8f61b0"}
    rank 0 -> every rank      {"words": 1, "refused": ""}          or why the job cannot run

They are texts of JSON, which every version can read.
"""

from __future__ import annotations

import json

from mpitune.errors import UsageError, or_typed
from mpitune.ranks.transport import Transport

WORDS = 1


def greet(transport: Transport, host: str, code: str, *, allow_mixed_versions: bool) -> None:
    """Begin a job; every rank calls it first. `code` differs where the source code does.

    Raises:
        UsageError: on all ranks, where their code differs.
    """
    if transport.size == 1:
        return
    heard = [json.loads(words) for words in transport.gather(json.dumps({"words": WORDS, "host": host, "code": code}))]
    refused = ""
    other = next((words for words in heard if words["code"] != code), None)
    if other and not allow_mixed_versions:
        refused = f"hosts have different versions: code {code} on {host}, {other['code']} on {other['host']}: "
        refused += f"install the same on all{or_typed('allow_mixed_versions')}"
    answer = json.loads(transport.broadcast(json.dumps({"words": WORDS, "refused": refused})))
    if answer["refused"]:
        raise UsageError(answer["refused"])
