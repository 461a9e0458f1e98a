# ruff: noqa
"""inference_mode, no_grad, set_grad_enabled and autocast nested in odd ways between steps and inside forward; inference
tensors as batches. Compared: grad modes that the script sees, loss bits."""

import torch
from torch.utils.data import DataLoader
from _result import net, one_step, result, sgd

seen = []


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, x):
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")))
        with torch.no_grad():
            self.layers(x)
        return self.layers(x)


model = Net()
opt = sgd(model)
with torch.inference_mode():
    frozen = torch.randn(80, 16)
    for x in DataLoader(frozen, batch_size=8):
        model(x)
for x in DataLoader(list(frozen.clone()), batch_size=8):
    loss = one_step(model, opt, x)
    with torch.inference_mode(), torch.inference_mode(False), torch.enable_grad():
        loss = one_step(model, opt, x.clone())
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(x).float().square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
torch.set_grad_enabled(False)
model(x)
torch.set_grad_enabled(True)
result(loss, model, kinds=len(set(seen)), calls=len(seen))
