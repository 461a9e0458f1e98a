import argparse
import json
import os


def parse():
    ap = argparse.ArgumentParser(description="device identity embeddings from accelerometer windows")
    ap.add_argument("--defaults", default="defaults.json")
    for name, typ in (("devices", int), ("windows-per-device", int), ("length", int), ("channels", int),
                      ("classes-per-batch", int), ("per-class", int), ("width", int), ("stages", int),
                      ("embed", int), ("iters", int), ("seed", int)):
        ap.add_argument(f"--{name}", type=typ)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--margin", type=float, default=0.2)
    ap.add_argument("--miner", choices=("semihard", "semihard-mat"), default="semihard")
    ap.add_argument("--hist-every", type=int, default=1)
    ap.add_argument("--log-dir", default=None)
    pre, _ = ap.parse_known_args()
    with open(pre.defaults) as fh:
        ap.set_defaults(**json.load(fh))
    mode = os.environ.get("REPAIRED", "")
    if mode in ("1", "first", "all"):
        ap.set_defaults(miner="semihard-mat")
    if mode in ("1", "second", "all"):
        ap.set_defaults(hist_every=100)
    return ap.parse_args()
