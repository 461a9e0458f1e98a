import numpy as np
import torch


def make_corpus(n, vocab, seed):
    """A token stream with local repetition, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    stream = (rng.zipf(1.3, n) % vocab).astype(np.int64)
    jump = rng.random(n) < 0.5
    stream[16:] = np.where(jump[16:], stream[:-16], stream[16:])
    return torch.from_numpy(stream)


class TokenStream:
    def __init__(self, tokens, block, batch, rank, seed):
        self.tokens, self.block, self.batch = tokens, block, batch
        self.gen = torch.Generator().manual_seed(seed + rank)
        self.offsets = torch.arange(block + 1)

    def get_batch(self):
        start = torch.randint(len(self.tokens) - self.block - 1, (self.batch, 1), generator=self.gen)
        chunk = self.tokens[start + self.offsets]
        return chunk[:, :-1].contiguous(), chunk[:, 1:].contiguous()
