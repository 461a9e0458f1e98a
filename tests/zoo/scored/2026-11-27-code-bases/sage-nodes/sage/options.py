"""Run options. ``get`` gives a preset, changed by key=value arguments."""
import os

PRESETS = {
    "small": dict(seed=11, nodes=40000, degree=14, features=32, classes=12, hidden=64, fanouts=(10, 10),
                  batch=1024, steps=280, lr=3e-3, ahead=2, log_every=40, sampler="adjacency"),
}


class Options(dict):
    __getattr__ = dict.__getitem__


def get(name="small", overrides=()):
    opts = Options(PRESETS[name])
    if os.environ.get("REPAIRED"):
        opts["sampler"] = "csr"
    for item in overrides:
        key, value = item.split("=", 1)
        opts[key] = type(opts[key])(value)
    return opts
