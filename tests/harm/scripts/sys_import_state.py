# ruff: noqa
"""What the script sees of the import system: sys.path, meta_path, path_hooks, builtins, its own __main__, a module of its own
called hotloop_hooks, replay or agent, and a reload of one of its modules. Compared: which names of its own it gets."""

import builtins, importlib, os, sys, tempfile, torch
from _result import fit, net, result, sgd

folder = tempfile.mkdtemp()
names = ["agent", "hooks", "replay", "observe", "attach", "ring", "guard", "process", "bootstrap", "events", "core"]
for name in names:
    with open(os.path.join(folder, name + ".py"), "w") as file:
        file.write(f"mine = '{name}'")
sys.path.insert(0, folder)
model = net()
opt = sgd(model)
loss = fit(model, opt, 30)
mine = [importlib.import_module(n).mine == n for n in names]
mine.append(importlib.reload(sys.modules["agent"]).mine == "agent")
blocked = sys.meta_path[:]
sys.meta_path.insert(
    0,
    type(
        "Block",
        (),
        {
            "find_spec": staticmethod(
                lambda n, p=None, t=None: (
                    (_ for _ in ()).throw(ImportError(n)) if n.startswith(("hotloop", "torch._")) else None
                )
            )
        },
    ),
)
loss = fit(model, opt, 300)
sys.meta_path[:] = blocked
main = sys.modules["__main__"].__file__ == __file__
added = [n for n in vars(builtins) if "hotloop" in n]
result(loss, model, mine=all(mine), main=main, builtins=added, argv=len(sys.argv), flags=tuple(sys.flags)[:6])
