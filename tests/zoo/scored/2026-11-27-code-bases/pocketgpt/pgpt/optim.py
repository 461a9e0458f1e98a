import math

import torch


def configure_optimizer(model, cfg):
    params = [p for p in model.parameters() if p.requires_grad]
    groups = [
        dict(params=[p for p in params if p.dim() >= 2], weight_decay=cfg.weight_decay),
        dict(params=[p for p in params if p.dim() < 2], weight_decay=0.0),
    ]
    return torch.optim.AdamW(groups, lr=cfg.learning_rate, betas=(0.9, 0.95), fused=True)


def lr_at(step, cfg):
    if step < cfg.warmup:
        return cfg.learning_rate * (step + 1) / cfg.warmup
    t = (step - cfg.warmup) / max(1, cfg.max_steps - cfg.warmup)
    return cfg.min_lr + 0.5 * (1 + math.cos(math.pi * t)) * (cfg.learning_rate - cfg.min_lr)
