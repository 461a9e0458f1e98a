import json
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F

from .mining import MINERS


class TripletMixin:
    def triplet_loss(self, emb, labels):
        dist = torch.cdist(emb, emb, compute_mode="donot_use_mm_for_euclid_dist")
        a, p, n = MINERS[self.args.miner](dist.detach(), labels, self.args.margin)
        return F.relu(dist[a, p] - dist[a, n] + self.args.margin).mean()


class HistogramMixin:
    """Weight and gradient histograms, one JSON line per record."""

    def open_histograms(self):
        folder = self.args.log_dir or tempfile.mkdtemp(prefix="sensemb-")
        self.hist_file = open(os.path.join(folder, "histograms.jsonl"), "w")

    def record_histograms(self):
        if self.iteration % self.args.hist_every:
            return
        row = {"iteration": self.iteration}
        for name, p in self.net.named_parameters():
            for kind, t in (("w", p.detach()), ("g", p.grad)):
                if t is not None:
                    values = t.numpy()
                    counts, edges = np.histogram(values, bins=32)
                    row[f"{kind}/{name}"] = [counts.tolist(), float(edges[0]), float(edges[-1]),
                                             float(np.median(values))]
        self.hist_file.write(json.dumps(row) + "\n")


class ClockMixin:
    def start_clock(self):
        self.t0 = time.perf_counter()

    def elapsed(self):
        return time.perf_counter() - self.t0
