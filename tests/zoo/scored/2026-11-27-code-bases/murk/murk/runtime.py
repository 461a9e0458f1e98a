import random

import numpy as np
import torch


def prepare(cfg):
    """Seeds and global switches, once per process."""
    random.seed(cfg.seed)
    np.random.seed(cfg.seed)
    torch.manual_seed(cfg.seed)
    torch.set_default_dtype(torch.float32)
    torch.autograd.set_detect_anomaly(cfg.strict_grad)
