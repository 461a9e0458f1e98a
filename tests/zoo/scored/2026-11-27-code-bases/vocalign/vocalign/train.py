import time

import torch

from . import hparams
from .corpus import Corpus
from .model import AlignTTS


class Session:
    def __init__(self, hp):
        torch.manual_seed(hp.seed)
        self.hp = hp
        self.corpus = Corpus(hp)
        self.model = AlignTTS(hp)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=hp.lr, fused=True)

    def train_step(self):
        prior, recon, dur = self.model(*self.corpus.draw(self.hp.batch))
        loss = prior + recon + 0.1 * dur
        self.optim.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.hp.clip)
        self.optim.step()
        return prior, recon, dur

    def run(self):
        start = time.perf_counter()
        for n in range(1, self.hp.steps + 1):
            losses = self.train_step()
            if n % self.hp.log_every == 0:
                p, r, d = (v.item() for v in losses)
                ms = (time.perf_counter() - start) / n * 1e3
                print(f"{n:4d} prior {p:.3f} recon {r:.3f} dur {d:.3f}  {ms:.1f} ms", flush=True)


if __name__ == "__main__":
    Session(hparams.load()).run()
