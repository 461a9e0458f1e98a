import argparse
import json
import os


def parser():
    p = argparse.ArgumentParser("fairlane-train")
    p.add_argument("--preset", default="preset_lm.json")
    p.add_argument("--task", default="causal_lm")
    p.add_argument("--arch", default="lm_small")
    p.add_argument("--criterion", default="xent")
    p.add_argument("--tokens-vocab", type=int, default=8000)
    p.add_argument("--sample-len", type=int, default=48)
    p.add_argument("--sentences", type=int, default=8)
    p.add_argument("--update-freq", type=int, default=4)
    p.add_argument("--max-update", type=int, default=90)
    p.add_argument("--optimizer", default="adam")
    p.add_argument("--lr", type=float, default=5e-4)
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--validate-interval-updates", type=int, default=5)
    p.add_argument("--valid-sentences", type=int, default=384)
    p.add_argument("--clip-norm", type=float, default=1.0)
    p.add_argument("--defer-reduce", action="store_true")
    p.add_argument("--log-interval", type=int, default=15)
    p.add_argument("--seed", type=int, default=11)
    return p


def get_args(argv=None):
    p = parser()
    pre, _ = p.parse_known_args(argv)
    with open(pre.preset) as fh:
        p.set_defaults(**json.load(fh))
    mode = os.environ.get("REPAIRED", "")
    if mode in ("1", "all", "first"):
        p.set_defaults(validate_interval_updates=45)
    if mode in ("1", "all", "second"):
        p.set_defaults(defer_reduce=True)
    return p.parse_args(argv)
