import torch


class MarkovCorpus:
    """Tokens of a sparse first-order chain; every rank reads at its own places."""

    def __init__(self, cfg, rank):
        g = torch.Generator().manual_seed(cfg.seed)
        nxt = torch.randint(0, cfg.vocab, (cfg.vocab, 4), generator=g)
        streams = [torch.randint(0, cfg.vocab, (256,), generator=g)]
        for _ in range(1200):
            pick = torch.randint(0, 4, (256,), generator=g)
            streams.append(nxt[streams[-1], pick])
        self.tokens = torch.stack(streams, 1)
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(cfg.seed * 1000 + rank)

    def micro_batch(self):
        c = self.cfg
        row = torch.randint(0, self.tokens.shape[0], (c.micro_batch, 1), generator=self.gen)
        at = torch.randint(0, self.tokens.shape[1] - c.block - 1, (c.micro_batch, 1), generator=self.gen)
        chunk = self.tokens[row, at + torch.arange(c.block + 1)]
        return chunk[:, :-1], chunk[:, 1:]
