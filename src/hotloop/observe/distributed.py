"""DistributedDataParallel -> facts: its settings, and what torch's own reducer measured of its iterations."""

from __future__ import annotations

import time
import weakref
from typing import Any

from .guard import guarded
from .places import Place
from .session import Session

EVERY_ROWS = 3
"""On the CPU the reducer's times are read in every so many'th row (about 40 us each)."""
SETTINGS_ROWS = (2, 20)
"""Rows after which the settings are (re)told: buckets are rebuilt after the first backward."""


class DdpWatch:
    """Called after every row. Settings once, times sampled; on the training thread, where the reducer rests."""

    def __init__(self, ddp: Any, where: Place | None) -> None:
        self._ddp = weakref.ref(ddp)
        self._where = where
        self._calls = 0
        self._scan_ns = 0
        self._scan_count = 0
        self._last_iteration = -1
        self._on_cpu = all(p.device.type == "cpu" for p in ddp.parameters())
        if self._on_cpu:
            # On CUDA torch keeps its own sampling: reading its events there may synchronise.
            ddp._set_ddp_runtime_logging_sample_rate(1)
        self._logger = ddp.logger
        self._time_scan(ddp)

    def _time_scan(self, ddp: Any) -> None:
        """Preparing the reducer walks the autograd graph when unused parameters are looked for."""
        if not ddp.find_unused_parameters:
            return
        reducer_class = type(ddp.reducer)
        original = reducer_class.prepare_for_backward
        if getattr(original, "hotloop_watch", None) is not None:
            original.hotloop_watch.append(self)
            return
        watches = [self]

        def prepare_for_backward(reducer: Any, *args: Any) -> Any:
            start_ns = time.perf_counter_ns()
            try:
                return original(reducer, *args)
            finally:
                for watch in watches:
                    watch._scan_ns += time.perf_counter_ns() - start_ns
                    watch._scan_count += 1

        prepare_for_backward.hotloop_watch = watches  # type: ignore[attr-defined]
        reducer_class.prepare_for_backward = prepare_for_backward

    @guarded
    def __call__(self, session: Session, row: list[int]) -> None:
        ddp = self._ddp()
        if ddp is None:
            return
        self._calls += 1
        if ddp.logger is not self._logger:  # a technique gave DDP a new reducer
            self._logger = ddp.logger
            if self._on_cpu:
                ddp._set_ddp_runtime_logging_sample_rate(1)
        if self._calls in SETTINGS_ROWS or self._calls % 500 == 0:
            session.record(self._settings(ddp))
        if self._on_cpu and self._calls % EVERY_ROWS == 0:
            data = ddp._get_ddp_logging_data()
            iteration = int(data.get("iteration", self._calls))
            if iteration == self._last_iteration:
                return
            self._last_iteration = iteration
            session.record(
                {
                    "kind": "ddp_stats",
                    "row": row[0],
                    "forward_ns": data.get("forward_compute_time"),
                    "backward_compute_ns": data.get("backward_compute_time"),
                    "comm_ns": data.get("backward_comm_time"),
                    "overlap_ns": data.get("backward_compute_comm_overlap_time"),
                }
            )

    def _settings(self, ddp: Any) -> dict[str, Any]:
        data = ddp._get_ddp_logging_data()
        sizes = str(data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or "")
        parameters = [p for p in ddp.parameters() if p.requires_grad]
        return {
            "kind": "ddp",
            "where": self._where,
            "find_unused_parameters": bool(ddp.find_unused_parameters),
            "static_graph": bool(ddp.static_graph),
            "gradient_as_bucket_view": bool(ddp.gradient_as_bucket_view),
            "bucket_cap_bytes": int(ddp.bucket_bytes_cap),
            "bucket_sizes": [int(s) for s in sizes.replace(" ", "").split(",") if s.isdigit()],
            "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
            "parameter_tensors": len(parameters),
            "unused_tensors": self._unused(ddp, data),
            "backend": data.get("backend_name"),
            "comm_hook": data.get("comm_hook") or None,
            "scan_ns_total": self._scan_ns if self._scan_count else None,
            "scan_count": self._scan_count,
        }

    def _unused(self, ddp: Any, data: dict[str, Any]) -> int | None:
        """Parameters without a gradient after a step; unknown while gradients are set to none by then."""
        size = data.get("unused_parameter_size")
        return int(size) if isinstance(size, int) else None
