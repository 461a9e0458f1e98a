"""transformers' Trainer: ``Trainer(..., callbacks=[HotloopCallback()])``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.utils import logging

from .recording import FrameworkRecording

if TYPE_CHECKING:
    from hotloop.core.report import Report


class HotloopCallback(TrainerCallback):  # type: ignore[misc]
    """Records what ``Trainer.train`` does on every process, and logs the findings on the main process.

    Args:
        report_to (`str` or `list[str]`, *optional*, defaults to `"log"`):
            Where the findings go: `"log"` (transformers' logger; serious findings are warnings, the others have level
            info), `"none"`, or the path of a file that ends in `.html`, `.json`, `.md` or `.txt`.
        options:
            `deep`, `trace` (`"wait:warmup:active[:repeat]"`, in steps), `trace_ranks` and `nvtx`, as for
            [`hotloop.watch`].

    Raises `hotloop.HotloopError` for a setting that makes no sense; nothing that happens later raises.
    """

    def __init__(self, report_to: str | Sequence[str] = "log", **options: Any) -> None:
        self._recording = FrameworkRecording(
            logging.get_logger("transformers.integrations.hotloop"), report_to, **options
        )

    @property
    def report(self) -> Report | None:
        """The report of this process's training so far: on the main process after training, else None."""
        return self._recording.report

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin before the loader and the optimizer are built."""
        self._recording.begin()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin, if `Trainer.add_callback` added this callback later."""
        self._recording.begin()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Keep the logged numbers with the recording."""
        if state.is_world_process_zero:
            self._recording.record_metrics(logs or {})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report, on the main process."""
        if state.is_world_process_zero:
            self._recording.end()
