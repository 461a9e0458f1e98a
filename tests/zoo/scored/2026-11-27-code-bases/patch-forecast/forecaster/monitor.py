import torch
from transformers import TrainerCallback


class ActivationMonitor(TrainerCallback):
    """Keeps a running view of the range and sparsity of every layer's output."""

    def __init__(self, which="all", momentum=0.95):
        self.which = which
        self.momentum = momentum
        self.stats = {}
        self.handles = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if self.which == "none":
            return
        for name, module in model.named_modules():
            if isinstance(module, (torch.nn.Linear, torch.nn.ReLU, torch.nn.LayerNorm)):
                self.handles.append(module.register_forward_hook(self.make_hook(name)))

    def make_hook(self, name):
        def observe(module, inputs, output):
            x = output.detach()
            new = torch.stack([x.abs().amax(), x.std(), (x <= 0).float().mean()])
            old = self.stats.get(name)
            self.stats[name] = new if old is None else torch.lerp(new, old, self.momentum)
        return observe

    def on_train_end(self, args, state, control, **kwargs):
        for h in self.handles:
            h.remove()
        if self.stats:
            name, worst = max(self.stats.items(), key=lambda kv: kv[1][0].item())
            print(f"largest activation {worst[0].item():.2f} in {name}")
