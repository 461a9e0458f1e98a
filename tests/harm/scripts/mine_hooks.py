# ruff: noqa
"""Landmines that can only be called as hooks: forward, backward, of tensors, of optimizers, of state dicts, of saved
tensors. Compared: landmine calls."""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from _mines import NAMED, mine_type, mines
from _result import fit, net, one_step, result, sgd

ran = 0


def call(self, *args, **kwargs):
    global ran
    ran += 1


Hook = mine_type(
    "hook",
    without=("__getattribute__",),
    named=(
        *NAMED,
        "__name__",
    ),
    __call__=call,
)
model = net()
opt = sgd(model)
for part in model.modules():
    part.register_forward_hook(Hook())
    part.register_forward_pre_hook(Hook())
model.register_full_backward_hook(Hook())
next(model.parameters()).register_hook(Hook())
next(model.parameters()).register_post_accumulate_grad_hook(Hook())
opt.register_step_pre_hook(Hook())
opt.register_step_post_hook(Hook())
opt.register_state_dict_pre_hook(Hook())
torch.nn.modules.module.register_module_forward_hook(Hook())
register_optimizer_step_post_hook(Hook())
loss = fit(model, opt)
opt.state_dict()
result(loss, model, ran=ran, **mines())
