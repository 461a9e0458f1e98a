import argparse
import json


def conf():
    ap = argparse.ArgumentParser("dtlab")
    ap.add_argument("--file", default="dt.json")
    ap.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    ns = ap.parse_args()
    with open(ns.file) as fh:
        values = json.load(fh)
    for kv in ns.set:
        k, v = kv.split("=", 1)
        values[k] = type(values[k])(v)
    return argparse.Namespace(**values)
