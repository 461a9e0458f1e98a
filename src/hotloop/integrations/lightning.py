"""Lightning: ``Trainer(callbacks=[HotloopMonitor()])`` or ``Trainer(profiler=HotloopProfiler())``."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import lightning.pytorch as pl
    from lightning.pytorch.profilers import Profiler
except ModuleNotFoundError:
    import pytorch_lightning as pl
    from pytorch_lightning.profilers import Profiler

from .recording import FrameworkRecording, check_file

if TYPE_CHECKING:
    from hotloop.core.report import Report

LOG = logging.getLogger(f"{pl.__name__}.hotloop")
"""Below Lightning's logger, so that its level and handlers apply."""


def _begin(recording: FrameworkRecording, trainer: Any) -> None:
    """Every rank records into the folder of rank 0, also where Lightning started the other ranks."""
    if trainer.is_global_zero:
        recording.begin()
    folder = trainer.strategy.broadcast(recording.watch and recording.watch.folder)
    if folder is not None and not trainer.is_global_zero:
        recording.begin(folder)


class HotloopMonitor(pl.Callback):  # type: ignore[misc]
    """Records what ``Trainer.fit`` does on every rank, and logs the findings on rank 0.

    ``validate``, ``test`` and ``predict`` alone are not recorded; the validation inside ``fit`` is.

    Args:
        dirpath: Folder for ``filename``. Default: ``trainer.default_root_dir``.
        filename: If given, rank 0 also writes the report there; ends in ``.html``, ``.json``, ``.md`` or ``.txt``.
        options: ``deep``, ``trace`` (``"wait:warmup:active[:repeat]"``, in steps), ``trace_ranks`` and ``nvtx``, as
            for :func:`hotloop.watch`.

    Raises:
        hotloop.HotloopError: If a setting makes no sense. Nothing that happens later raises.
    """

    def __init__(self, dirpath: str | Path | None = None, filename: str | None = None, **options: Any) -> None:
        self._recording = FrameworkRecording(LOG, **options)
        self.dirpath, self.filename = dirpath, filename and check_file(filename)

    @property
    def report(self) -> Report | None:
        """The report of this process's training so far: on rank 0 after ``fit``, else None."""
        return self._recording.report

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin with ``fit``, before the optimizers are configured."""
        if stage == "fit":
            _begin(self._recording, trainer)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Report, on rank 0."""
        if trainer.is_global_zero:
            folder = self.dirpath or trainer.default_root_dir
            self._recording.end(*([os.path.join(folder, self.filename)] if self.filename else []))


class HotloopProfiler(Profiler):  # type: ignore[misc]
    """Records what ``Trainer.fit`` does, like :class:`HotloopMonitor`, and writes the report as a profiler does.

    The actions that Lightning names are not timed: hotloop's own hooks measure the steps.

    Args:
        dirpath: Folder for ``filename``. Default: ``trainer.log_dir``.
        filename: If given, rank 0 writes the report to ``fit-<filename>.txt`` there, else to Lightning's log.
        options: As for :class:`HotloopMonitor`.

    Raises:
        hotloop.HotloopError: If a setting makes no sense. Nothing that happens later raises.
    """

    def __init__(self, dirpath: str | Path | None = None, filename: str | None = None, **options: Any) -> None:
        super().__init__(dirpath=dirpath, filename=filename)
        self._recording = FrameworkRecording(LOG, "none", **options)
        self._is_global_zero = False

    @property
    def report(self) -> Report | None:
        """The report of this process's training so far: on rank 0 after ``fit``, else None."""
        return self._recording.report

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Begin with ``fit``."""
        super().setup(stage, local_rank, log_dir)
        if stage == "fit":
            trainer = self._lightning_module.trainer
            self._is_global_zero = trainer.is_global_zero
            _begin(self._recording, trainer)

    def start(self, action_name: str) -> None:
        """Not timed."""

    def stop(self, action_name: str) -> None:
        """Not timed."""

    def summary(self) -> str:
        """The report of everything recorded so far, as text; empty if there is none."""
        return self._recording.end()

    def describe(self) -> None:
        """Write the report: on rank 0 after ``fit``."""
        if self._is_global_zero and self._stage == "fit":
            super().describe()
