"""Accelerate: ``Accelerator(log_with=HotloopTracker(), kwargs_handlers=[HotloopProfileKwargs()])``, or one of them."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from accelerate.logging import get_logger
from accelerate.state import PartialState
from accelerate.tracking import GeneralTracker
from accelerate.utils import ProfileKwargs, gather_object

from hotloop.monitor import Watch, profile

from .recording import FrameworkRecording, log_findings

if TYPE_CHECKING:
    from hotloop.core.report import Report

LOG = get_logger(__name__).logger
PLAN = {"wait", "warmup", "active", "repeat", "skip_first"}


class HotloopTracker(GeneralTracker):  # type: ignore[misc]
    """Records the process in which it is built. `Accelerator.end_training` logs the findings on the main process.

    Build it in every process, for `log_with`: Accelerate starts trackers on the main process alone. Numbers that
    `Accelerator.log` gets are kept with the recording.

    Args:
        run_name (`str`, *optional*):
            The project's name, which Accelerate's own trackers also keep.
        report_to (`str` or `list[str]`, *optional*, defaults to `"log"`):
            Where the findings go: `"log"` (Accelerate's logger; serious findings are warnings, the others have level
            info), `"none"`, or the path of a file that ends in `.html`, `.json`, `.md` or `.txt`.
        options:
            `deep`, `trace` (`"wait:warmup:active[:repeat]"`, in steps), `trace_ranks` and `nvtx`, as for
            [`hotloop.watch`].

    Raises `hotloop.HotloopError` for a setting that makes no sense; nothing that happens later raises.
    """

    name = "hotloop"
    requires_logging_directory = False

    def __init__(self, run_name: str | None = None, report_to: str | Sequence[str] = "log", **options: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self._recording = FrameworkRecording(LOG, report_to, **options)
        self._recording.begin()

    @property
    def tracker(self) -> Watch | None:
        """The recording of this process; None if it could not begin."""
        return self._recording.watch

    @property
    def report(self) -> Report | None:
        """The report of this process's training so far: on the main process after `end_training`, else None."""
        return self._recording.report

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Keep the numbers among `values` with the recording, at the step that is being recorded."""
        self._recording.record_metrics(values)

    def finish(self) -> None:
        """Report, on the main process; `Accelerator.end_training` calls it."""
        if PartialState().is_main_process:
            self._recording.end()


class HotloopProfileKwargs(ProfileKwargs):  # type: ignore[misc]
    """A `ProfileKwargs` whose traces hotloop writes and judges. The arguments are those of `ProfileKwargs`.

    With `output_trace_dir`, every process writes one trace for each recorded cycle, and not only for the last one. At
    the end of `with accelerator.profile()`, the main process logs what the newest traces of all processes show.
    Without it, nothing is written or judged. With `schedule_option`, call `step()` at the end of every step.
    """

    report: Report | None = None
    """What the traces show: on the main process after the profiled block, else None."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Accelerator looks handlers up by their exact class."""
        return ProfileKwargs

    def to_dict(self) -> dict[str, Any]:
        """The arguments, without `report`."""
        return {name: value for name, value in ProfileKwargs.to_dict(self).items() if name != "report"}

    def build(self) -> AcceleratedProfile:
        """The profiler of a block. Raises `ValueError` for an unknown activity."""
        return AcceleratedProfile(self)


class AcceleratedProfile(profile):
    """``hotloop.profile`` with what Accelerate and its users call on torch's profiler."""

    def __init__(self, handler: HotloopProfileKwargs) -> None:
        import torch.profiler

        plan: dict[str, Any] = {"repeat": 0, **(handler.schedule_option or {"repeat": 1})}
        if not set(plan) <= PLAN:
            plan = {"schedule": torch.profiler.schedule(**handler.schedule_option)}
        activities = handler.activities and [handler._get_profiler_activity(one) for one in handler.activities]
        super().__init__(
            activities=activities,
            on_trace_ready=handler.on_trace_ready,
            record_shapes=handler.record_shapes,
            profile_memory=handler.profile_memory,
            with_stack=handler.with_stack,
            with_flops=handler.with_flops,
            with_modules=handler.with_modules,
            folder=handler.output_trace_dir,
            **plan,
        )
        self._handler = handler

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "torch_profiler"), name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if kind is None and self._handler.output_trace_dir is not None:
            files = gather_object(list(self.trace_files[-1:]))  # waits for all processes, as Accelerate does next
            if PartialState().is_main_process:
                self._judge(files)

    def export_chrome_trace(self, path: str) -> None:
        """Write the newest recording to `path`, also where torch, which writes a recording once, has written it."""
        if not self.trace_files:
            self.torch_profiler.export_chrome_trace(path)
            return
        with (
            open(self.trace_files[-1], "rb") as source,
            (gzip.open if path.endswith(".gz") else open)(path, "wb") as target,
        ):
            shutil.copyfileobj(source, target)

    def _judge(self, files: Sequence[str]) -> None:
        try:
            from hotloop.pipeline.traces import report_traces

            self._handler.report = report = report_traces(files)
            log_findings(LOG, report)
        except Exception as error:
            LOG.warning("hotloop cannot judge the traces: %s; to try again: hotloop trace %s", error, " ".join(files))
