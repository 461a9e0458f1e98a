"""FILE WAIT ACTIVE SCRIPT ARGS...: the script, with torch.profiler recording ACTIVE of its steps after WAIT -> FILE."""

from __future__ import annotations

import runpy
import sys
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

WARMUP_COUNT = 3


def main() -> None:
    target, wait, active, script, *arguments = sys.argv[1:]
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        record_shapes=True,
        schedule=torch.profiler.schedule(wait=int(wait), warmup=WARMUP_COUNT, active=int(active), repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(target),
    )

    def end_step(*_: Any) -> None:
        profiler.step()

    sys.argv = [script, *arguments]
    profiler.start()
    register_optimizer_step_post_hook(end_step)
    runpy.run_path(script, run_name="__main__")
    profiler.stop()


if __name__ == "__main__":
    main()
