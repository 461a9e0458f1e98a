import torch


class GradientWatch:
    """Norm of each block's output gradient, on every n-th step only."""

    def __init__(self, model, every):
        self.model, self.every = model, every
        self.handles, self.norms = [], {}

    def begin(self, step):
        if step % self.every == 0:
            for name, block in self.model.blocks.named_children():
                self.handles.append(block.register_full_backward_hook(self._hook(name)))

    def _hook(self, name):
        def record(module, grad_in, grad_out):
            self.norms[name] = torch.linalg.vector_norm(grad_out[0])

        return record

    def end(self):
        for h in self.handles:
            h.remove()
        self.handles.clear()
