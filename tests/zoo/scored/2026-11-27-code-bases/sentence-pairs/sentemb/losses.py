import torch
import torch.nn.functional as F


def symmetric_info_nce(a, b, temperature):
    logits = a @ b.t() / temperature
    target = torch.arange(len(a))
    return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)), logits
