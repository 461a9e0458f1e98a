"""hotloop: find what a training loop waits for, fix it, and prove it. Names load on first use; no torch here."""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes a third of the time in which Python starts
if TYPE_CHECKING:
    from typing import Any

    from hotloop.ahead.data.datasets import TokenDataset as TokenDataset
    from hotloop.ahead.plan.memory import zero_memory as zero_memory
    from hotloop.change.apply.api import apply_strategy as apply_strategy
    from hotloop.change.apply.compression.methods import CompressedDDP as CompressedDDP
    from hotloop.core.errors import HotloopError as HotloopError
    from hotloop.core.findings import Finding as Finding
    from hotloop.core.findings import Skipped as Skipped
    from hotloop.core.report import Report as Report
    from hotloop.core.strategy import load_strategy as load_strategy
    from hotloop.monitor import Monitor as Monitor
    from hotloop.monitor import profile as profile
    from hotloop.monitor import watch as watch
    from hotloop.pipeline.runs import read_report as read_report
    from hotloop.train.benchmark import benchmark_training as benchmark_training
    from hotloop.train.checkpoint import CheckpointError as CheckpointError
    from hotloop.train.checkpoint import latest_checkpoint as latest_checkpoint
    from hotloop.train.checkpoint import load_checkpoint as load_checkpoint
    from hotloop.train.loader import DevicePrefetcher as DevicePrefetcher
    from hotloop.train.loader import LengthGroupedSampler as LengthGroupedSampler
    from hotloop.train.loader import cache_samples as cache_samples
    from hotloop.train.loader import group_by_length as group_by_length
    from hotloop.train.marker import read_marker as read_marker
    from hotloop.train.packing import PackedBatch as PackedBatch
    from hotloop.train.packing import pack_sequences as pack_sequences
    from hotloop.train.trainer import Checkpoints as Checkpoints
    from hotloop.train.trainer import Preempted as Preempted
    from hotloop.train.trainer import Trainer as Trainer

__version__ = "0.1.0"

_HOME = {
    "LengthGroupedSampler": "hotloop.train.loader",
    "DevicePrefetcher": "hotloop.train.loader",
    "CheckpointError": "hotloop.train.checkpoint",
    "CompressedDDP": "hotloop.change.apply.compression.methods",
    "Checkpoints": "hotloop.train.trainer",
    "Finding": "hotloop.core.findings",
    "HotloopError": "hotloop.core.errors",
    "Monitor": "hotloop.monitor",
    "Preempted": "hotloop.train.trainer",
    "Report": "hotloop.core.report",
    "Skipped": "hotloop.core.findings",
    "benchmark_training": "hotloop.train.benchmark",
    "apply_strategy": "hotloop.change.apply.api",
    "load_strategy": "hotloop.core.strategy",
    "cache_samples": "hotloop.train.loader",
    "group_by_length": "hotloop.train.loader",
    "PackedBatch": "hotloop.train.packing",
    "pack_sequences": "hotloop.train.packing",
    "TokenDataset": "hotloop.ahead.data.datasets",
    "Trainer": "hotloop.train.trainer",
    "latest_checkpoint": "hotloop.train.checkpoint",
    "load_checkpoint": "hotloop.train.checkpoint",
    "profile": "hotloop.monitor",
    "read_marker": "hotloop.train.marker",
    "read_report": "hotloop.pipeline.runs",
    "watch": "hotloop.monitor",
    "zero_memory": "hotloop.ahead.plan.memory",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'hotloop' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
