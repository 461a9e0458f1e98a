import time

import torch

from .registry import HOOKS


class Hook:
    def before_run(self, runner): ...
    def before_iter(self, runner): ...
    def after_iter(self, runner): ...
    def after_run(self, runner): ...


@HOOKS.register
class StepLR(Hook):
    def __init__(self, milestones, gamma):
        self.milestones, self.gamma = set(milestones), gamma

    def before_iter(self, runner):
        if runner.iter in self.milestones:
            for group in runner.optimizer.param_groups:
                group["lr"] *= self.gamma


@HOOKS.register
class ActivationMonitor(Hook):
    """Follows scale and sparsity of every layer's output, to spot dead or exploding layers."""

    def __init__(self, interval, momentum=0.9):
        self.interval, self.momentum = interval, momentum
        self.active = False
        self.table = {}

    def before_run(self, runner):
        for name, module in runner.model.named_modules():
            if not any(module.children()):
                module.register_forward_hook(self._make(name))

    def _make(self, name):
        def record(module, args, output):
            if not self.active or not module.training:
                return
            self._update(name, output.detach())

        return record

    def _update(self, name, out):
        stats = torch.stack([
            out.mean(), out.std(), out.abs().amax(), (out.abs() < 1e-6).float().mean(),
        ])
        old = self.table.get(name)
        self.table[name] = stats if old is None else old.lerp(stats, 1 - self.momentum)

    def before_iter(self, runner):
        self.active = runner.iter % self.interval == 0

    def after_run(self, runner):
        worst = max(self.table, key=lambda k: float(self.table[k][3]))
        print(f"sparsest layer: {worst} ({float(self.table[worst][3]):.2f} zeros)")


@HOOKS.register
class TextLogger(Hook):
    def __init__(self, interval):
        self.interval = interval

    def before_run(self, runner):
        self.start = time.perf_counter()

    def after_iter(self, runner):
        done = runner.iter + 1
        if done % self.interval == 0:
            per = (time.perf_counter() - self.start) / done
            print(f"iter {done:4d}  loss {runner.outputs['loss'].item():.4f}  {per * 1e3:.1f} ms/iter", flush=True)


@HOOKS.register
class FinalEval(Hook):
    @torch.no_grad()
    def after_run(self, runner):
        runner.model.eval()
        images, labels = runner.dataset.images[:256], runner.dataset.labels[:256]
        acc = (runner.model(images).argmax(1) == labels).float().mean().item()
        print(f"accuracy on 256 images: {acc:.3f}")
