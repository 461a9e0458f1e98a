import time

import torch
from torch.utils.data import Dataset


class ArchiveCorpus(Dataset):
    """Documents that live in an archive; the first few are held in memory."""

    vocab = 96

    def __init__(self, n_docs, cached, seq_len, latency=0.18):
        self.n_docs = n_docs
        self.cached = cached
        self.seq_len = seq_len
        self.latency = latency

    def __len__(self):
        return self.n_docs

    def _fetch(self, idx):
        if idx >= self.cached:
            time.sleep(self.latency)
        g = torch.Generator().manual_seed(idx)
        return torch.randint(0, self.vocab, (self.seq_len + 1,), generator=g)

    def __getitem__(self, idx):
        doc = self._fetch(idx)
        return doc[:-1], doc[1:]
