import torch
from transformers import Trainer

from .losses import symmetric_info_nce


class PairTrainer(Trainer):
    def __init__(self, *args, temperature=0.05, **kw):
        super().__init__(*args, **kw)
        self.temperature = temperature

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        both = model(torch.cat([inputs["anchor"], inputs["positive"]]))
        a, b = both.chunk(2)
        loss, logits = symmetric_info_nce(a, b, self.temperature)
        return (loss, {"logits": logits}) if return_outputs else loss

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        with torch.no_grad():
            loss, out = self.compute_loss(model, self._prepare_inputs(inputs), return_outputs=True)
        return loss.detach(), None, None
