"""A study for TensorBoard: event files with the HParams plugin's table, and curves of trials that say their steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from mpitune.export.extras import needs
from mpitune.export.trials import ExportedStudy, ExportedTrial
from mpitune.optimize.search_study import FAILED


def to_tensorboard(study: ExportedStudy, into: Path) -> None:
    """Write the folder `into`, a new one, with one for each trial: `tensorboard --logdir FOLDER` shows it."""
    with needs("tensorboard"):
        from tensorboard.plugins.hparams import summary_v2 as hparams
    names = list(dict.fromkeys(name for trial in study.trials for name in trial.params))
    metrics = list(dict.fromkeys(name for trial in study.trials for name in trial.values))
    about = hparams.hparams_config_pb([hparams.HParam(name) for name in names], [hparams.Metric(n) for n in metrics])
    with _Events(into) as events:
        events.add(about)
    for trial in study.trials:
        _write(trial, into / quote(trial.key, safe=""), hparams)


def _write(trial: ExportedTrial, folder: Path, hparams: Any) -> None:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.api_pb2 import Status
    from tensorboard.plugins.hparams.metadata import SESSION_END_INFO_TAG
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    status = Status.Value("STATUS_FAILURE" if trial.state == FAILED else "STATUS_SUCCESS")
    end = HParamsPluginData(session_end_info=SessionEndInfo(status=status, end_time_secs=trial.ended or 0.0))
    with _Events(folder) as events:
        events.add(hparams.hparams_pb(dict(trial.params), trial_id=trial.key, start_time_secs=trial.begun or 0.0))
        for step, values in sorted(trial.steps.items()):
            events.add(Summary(value=[Summary.Value(tag=n, simple_value=v) for n, v in values.items()]), step)
        last = max(trial.steps, default=0)
        events.add(Summary(value=[Summary.Value(tag=n, simple_value=v) for n, v in trial.values.items()]), last)
        events.add(hparams._summary_pb(SESSION_END_INFO_TAG, end))


class _Events:
    """A file of events in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder))

    def add(self, summary: Any, step: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(summary=summary, step=step))

    def __enter__(self) -> _Events:
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.close()
