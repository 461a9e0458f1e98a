import math

import torch


def build_optimizer(args, params):
    if args.optimizer == "adam":
        return torch.optim.AdamW(params, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    if args.optimizer == "sgd":
        return torch.optim.SGD(params, lr=args.lr, momentum=0.9, fused=True)
    raise ValueError(args.optimizer)


def inverse_sqrt(optimizer, warmup):
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min((n + 1) / warmup, math.sqrt(warmup / (n + 1))))
