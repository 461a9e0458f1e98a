import math

import torch


def make_optimizer(model, cfg):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=(0.9, 0.95), fused=True)


def make_schedule(optimizer, cfg):
    def factor(i):
        if i < cfg.warmup:
            return (i + 1) / cfg.warmup
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (i - cfg.warmup) / max(1, cfg.steps - cfg.warmup)))
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
