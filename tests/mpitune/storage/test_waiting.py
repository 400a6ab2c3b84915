"""Who waits for the system says so."""

import time
from typing import Any

from mpitune.storage import waiting
from tests.helpers import wait_until


def test_a_folder_that_does_not_answer_is_named_while_it_hangs_and_after(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(waiting, "time", type("Quick", (), {"sleep": lambda s: time.sleep(s / 100)}))
    monkeypatch.setattr(waiting, "_watch", None)
    with waiting.waiting("folder r has not answered"):
        assert wait_until(lambda: len(caplog.messages) == 2)
    assert caplog.messages[:2] == [f"folder r has not answered for {seconds} s" for seconds in (10, 40)]
    assert caplog.messages[-1].startswith("folder r has not answered: it has taken ")
