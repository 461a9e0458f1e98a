import os
import tempfile
import time
from collections import deque

import torch


class Callback:
    def on_fit_start(self, engine): ...
    def on_step_end(self, engine): ...
    def on_fit_end(self, engine): ...


class Scores(Callback):
    """Training scores over the last `window` batches (all of them when None)."""

    def __init__(self, window):
        self.forecast, self.truth = deque(maxlen=window), deque(maxlen=window)
        self.latest = None

    def on_step_end(self, engine):
        self.forecast.append(engine.prediction)
        self.truth.append(engine.target)
        error = torch.cat(tuple(self.forecast)) - torch.cat(tuple(self.truth))
        median, tail = torch.quantile(error.abs().flatten(), torch.tensor([0.5, 0.95])).unbind()
        self.latest = torch.stack([median, tail, error.square().mean().sqrt()])


class Saver(Callback):
    """Keeps the last few training states on disk, for a restart after a crash."""

    def __init__(self, every, folder, keep):
        self.every, self.keep = every, keep
        self.folder = folder
        self.paths = []

    def on_fit_start(self, engine):
        if self.folder is None:
            self.holder = tempfile.TemporaryDirectory()
            self.folder = self.holder.name

    def on_step_end(self, engine):
        if engine.step % self.every:
            return
        path = os.path.join(self.folder, f"state-{engine.step:06d}.pt")
        with open(path, "wb") as f:
            torch.save(engine.state(), f)
            f.flush()
            os.fsync(f.fileno())
        self.paths.append(path)
        while len(self.paths) > self.keep:
            os.remove(self.paths.pop(0))


class Report(Callback):
    def __init__(self, every):
        self.every = every

    def on_fit_start(self, engine):
        self.start = time.perf_counter()

    def on_step_end(self, engine):
        if engine.step % self.every == 0:
            median, tail, rmse = engine.scores.latest.tolist()
            ms = (time.perf_counter() - self.start) / engine.step * 1e3
            print(f"{engine.step:5d} median {median:.3f} p95 {tail:.3f} rmse {rmse:.3f} | {ms:.1f} ms/step", flush=True)
