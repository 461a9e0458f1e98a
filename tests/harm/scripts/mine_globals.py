# ruff: noqa
"""Landmines among the globals, the locals of all frames, the builtins and the modules (sys.modules) of the script.
Compared: landmine calls."""

import builtins, sys, torch
from _mines import NAMED, mine, mine_type, mines
from _result import net, one_step, result, sgd

model_like, loader, optimizer, trainer, args, config = (mine(f"global{i}") for i in range(6))
builtins.secret_of_the_script = mine("builtin")
sys.modules["a_module_of_the_script"] = mine("in sys.modules", without=("__getattribute__",))
sys.modules["transformers"] = mine_type("lazy", named=NAMED, without=("__getattribute__",))()


def main():
    model = net()
    opt = sgd(model)
    dataset, scheduler, scaler, progress = (mine(f"local{i}") for i in range(4))
    for step in range(40):
        batch, epoch = mine("batch"), mine("epoch")
        loss = one_step(model, opt, torch.randn(8, 16))
    return loss, model


loss, model = main()
result(loss, model, **mines())
