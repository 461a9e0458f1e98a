import time

import torch.nn.functional as F
from transformers import Trainer, TrainerCallback


class ForecastTrainer(Trainer):
    """Weighs the near part of the horizon more."""

    def __init__(self, *args, near_weight=0.5, **kw):
        super().__init__(*args, **kw)
        self.near_weight = near_weight

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs["labels"]
        out = model(past=inputs["past"])
        cut = labels.shape[1] // 4
        loss = F.mse_loss(out.logits, labels) + self.near_weight * F.mse_loss(out.logits[:, :cut], labels[:, :cut])
        return (loss, out) if return_outputs else loss


class StepClock(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        self.t0 = time.perf_counter()

    def on_train_end(self, args, state, control, **kwargs):
        dt = time.perf_counter() - self.t0
        print(f"{state.global_step} steps, {dt:.1f} s, {1000 * dt / state.global_step:.1f} ms/step")
