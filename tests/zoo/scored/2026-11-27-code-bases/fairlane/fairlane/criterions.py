import torch.nn.functional as F

from .registry import CRITERIONS


@CRITERIONS.register("xent")
class CrossEntropyCriterion:
    def __init__(self, args):
        self.args = args

    def __call__(self, model, sample):
        logits = model(sample["input"])
        loss = F.cross_entropy(logits.flatten(0, 1), sample["target"].flatten())
        return loss, {"loss": loss.detach(), "ntokens": sample["target"].numel()}


@CRITERIONS.register("smoothed")
class SmoothedCriterion(CrossEntropyCriterion):
    def __call__(self, model, sample):
        logits = model(sample["input"])
        loss = F.cross_entropy(logits.flatten(0, 1), sample["target"].flatten(), label_smoothing=0.1)
        return loss, {"loss": loss.detach(), "ntokens": sample["target"].numel()}
