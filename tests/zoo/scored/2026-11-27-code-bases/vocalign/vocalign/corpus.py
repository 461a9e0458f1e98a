import numpy as np
import torch


class Corpus:
    """Utterances made from one spectral template per symbol, held for a few frames each."""

    def __init__(self, hp):
        rng = np.random.default_rng(hp.seed)
        template = rng.standard_normal((hp.symbols, hp.mel)).astype(np.float32)
        lo, hi = hp.frames_per_symbol
        self.text_len = rng.integers(hp.text_min, hp.text_max + 1, hp.utterances)
        self.text = np.zeros((hp.utterances, hp.text_max), np.int64)
        self.mel = np.zeros((hp.utterances, hp.text_max * hi, hp.mel), np.float32)
        self.mel_len = np.zeros(hp.utterances, np.int64)
        for i, n in enumerate(self.text_len):
            s = rng.integers(1, hp.symbols, n)
            frames = np.repeat(s, rng.integers(lo, hi + 1, n))
            self.text[i, :n] = s
            self.mel_len[i] = len(frames)
            self.mel[i, : len(frames)] = template[frames] + 0.3 * rng.standard_normal((len(frames), hp.mel))
        for name in ("text", "mel", "text_len", "mel_len"):
            setattr(self, name, torch.from_numpy(np.ascontiguousarray(getattr(self, name))))
        self.gen = torch.Generator().manual_seed(hp.seed)

    def draw(self, batch):
        i = torch.randint(len(self.text), (batch,), generator=self.gen)
        tl, ml = self.text_len[i], self.mel_len[i]
        return self.text[i, : int(tl.max())], tl, self.mel[i, : int(ml.max())], ml
