# ruff: noqa
"""A trained picture goes through a model, then is replaced by torch.utils.swap_tensors, which refuses tensors to which
anybody refers weakly; so do the model's own parameters, inputs and batches. Compared: exit code."""

import torch
from torch.utils.data import DataLoader
from _result import net, one_step, result, sgd

model, picture = net(), torch.nn.Parameter(torch.rand(8, 16))
opt = torch.optim.SGD([picture, *model.parameters()], lr=1e-2)
for _ in range(20):
    loss = one_step(model, opt, picture)
for x in DataLoader(torch.randn(80, 16), batch_size=8):
    loss = one_step(model, opt, x)
value = loss.item()
del loss, opt
picture.grad = None
model.zero_grad()
torch.utils.swap_tensors(picture, torch.nn.Parameter(torch.zeros(8, 16)))
torch.utils.swap_tensors(x, torch.ones(8, 16))
torch.__future__.set_swap_module_params_on_conversion(True)
model.to(torch.float64)
result(value, model, x=float(x.sum()))
