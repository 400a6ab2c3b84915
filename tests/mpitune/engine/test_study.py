"""The bookkeeping of searches and rounds."""

import pytest

from mpitune.engine.study import Study
from mpitune.errors import UsageError
from mpitune.trial import Result, Rounds, Trial, Window


def square(trial: Trial) -> Result:
    return Result(trial.key, {"square": float(trial.params["x"]) ** 2})


def two_rounds(name: str, seen: list[list[str]]) -> Rounds:
    """Three trials, then the best of them once more. Returns its name."""
    results = yield [(Trial(f"{name}0", {"x": 0}), Trial(f"{name}1", {"x": 1})), (Trial(f"{name}2", {"x": 2}),)]
    seen.append([result.key for result in results])
    best = max(results, key=lambda result: result.values["square"])
    results = yield [(Trial(f"{name}-best", {"x": best.values["square"]}),)]
    seen.append([result.key for result in results])
    return name


def test_results_come_in_the_order_asked_and_rounds_do_not_wait_for_other_searches() -> None:
    seen: dict[str, list[list[str]]] = {"a": [], "b": []}
    study = Study([two_rounds(name, seen[name]) for name in seen], {}, {})
    batches = study.start()
    assert [len(batch) for batch in batches] == [2, 1, 2, 1]
    of_a = [trial for batch in batches[:2] for trial in batch]
    of_b = [trial for batch in batches[2:] for trial in batch]
    assert (study.n_asked, study.n_open, study.n_done) == (6, 6, 0)
    for trial in reversed(of_a[1:]):
        assert study.record(square(trial)) == []
    assert (study.n_asked, study.n_open, study.n_done) == (6, 4, 2)
    (refit,) = study.record(square(of_a[0]))
    assert refit[0].key == "a-best" and refit[0].params == {"x": 4.0}
    assert seen["a"] == [["a0", "a1", "a2"]] and seen["b"] == []
    study.record(square(refit[0]))
    assert study.conclusions() == ["a", None] and not study.finished
    for trial in of_b:
        more = study.record(square(trial))
    study.record(square(more[0][0]))
    assert study.finished and study.n_done == study.n_asked == 8 and study.n_open == 0
    assert study.conclusions() == ["a", "b"]
    keys = [outcome.trial.key for outcome in study.outcomes()]
    assert keys == ["a0", "a1", "a2", "a-best", "b0", "b1", "b2", "b-best"]


def test_what_is_known_is_not_asked_again() -> None:
    full = Study([two_rounds("a", [])], {}, {})
    todo = full.start()
    while todo:
        todo = [new for batch in todo for trial in batch for new in full.record(square(trial))]
    trials = {outcome.trial.key: outcome.trial for outcome in full.outcomes()}
    for missing in trials:
        known = {key: result for key, result in full.results.items() if key != missing}
        study = Study([two_rounds("a", [])], trials, known)
        ((trial,),) = study.start()
        assert trial.key == missing and not study.finished
        known_so_far = 3 if missing == "a-best" else 2  # the second round is not asked before the first is complete
        assert (study.n_open, study.n_done) == (1, known_so_far)
        study.record(square(trial))
        assert study.finished and study.outcomes() == full.outcomes()
    study = Study([two_rounds("a", [])], trials, full.results)
    assert study.start() == [] and study.finished


def test_changed_parameters_a_key_of_two_trials_and_a_round_without_trials_are_refused() -> None:
    study = Study([two_rounds("a", [])], {"a1": Trial("a1", {"x": 7})}, {"a1": Result("a1", {"square": 49.0})})
    with pytest.raises(UsageError, match="a1 with x = 7"):
        study.start()
    with pytest.raises(ValueError, match="key a0"):
        Study([two_rounds("a", []), two_rounds("a", [])], {}, {}).start()
    for batches, said in (([(Trial("twice", {}), Trial("twice", {}))], "key twice"), ([], "a round without trials")):
        with pytest.raises(ValueError, match=said):
            Study([iter([batches])], {}, {}).start()


def sliding(n: int, width: int, seen: list[list[str]]) -> Rounds:
    """n trials in order, of which so many are open at a time. The last is awaited before the one before it."""
    trials = [Trial(f"t{i}", {"x": i}) for i in range(n)]
    order = [*trials[: n - 2], trials[n - 1], trials[n - 2]]
    asked = 0
    for told, awaited in enumerate(order):
        new = [(trial,) for trial in trials[asked : told + width]]
        asked += len(new)
        results = yield Window(new, (awaited,))
        seen.append([result.key for result in results])


def test_a_window_is_sent_what_it_awaits_and_new_work_begins_first() -> None:
    seen: list[list[str]] = []
    study = Study([sliding(6, 3, seen)], {}, {})
    t = [Trial(f"t{i}", {"x": i}) for i in range(6)]
    assert study.start() == [(t[0],), (t[1],), (t[2],)]
    assert study.record(square(t[2])) == study.record(square(t[1])) == [] and not seen and not study.is_behind
    assert (study.n_asked, study.n_open, study.n_done) == (3, 1, 2)
    assert study.record(square(t[0])) == [(t[3],)] and seen == [["t0"]] and study.is_behind
    assert study.catch_up() == [(t[4],)] and seen == [["t0"], ["t1"]]
    assert study.catch_up() == [(t[5],)] and seen[2:] == [["t2"]] and not study.is_behind
    assert study.n_open == 3
    for trial in (t[4], t[3], t[5]):
        assert study.record(square(trial)) == []
    assert seen[3:] == [["t3"], ["t5"], ["t4"]] and study.finished and study.n_open == 0
    for missing in range(6):  # a study that goes on hears of what is known in the same order
        again, trials = [], {trial.key: trial for trial in t}
        study = Study([sliding(6, 3, again)], trials, {trial.key: square(trial) for trial in t if trial != t[missing]})
        assert study.start() == [(t[missing],)] and not study.is_behind
        assert study.record(square(t[missing])) == [] or study.is_behind
        assert study.finished and again == seen and study.n_open == 0


def test_what_followed_from_forgotten_results_is_run_again() -> None:
    """A failed trial succeeds on its retry and becomes the best: the refit of the other one is no longer asked."""
    trials = {f"a{i}": Trial(f"a{i}", {"x": i}) for i in range(3)} | {"a-best": Trial("a-best", {"x": 1.0})}
    results = {key: square(trial) for key, trial in trials.items() if key != "a2"}
    study = Study([two_rounds("a", [])], trials, results, renew=True)
    ((again,),) = study.start()
    assert again.key == "a2"
    ((refit,),) = study.record(square(again))
    assert refit.key == "a-best" and refit.params == {"x": 4.0}
    study.record(square(refit))
    assert study.finished and study.results["a-best"].values == {"square": 16.0}
