"""Packs raw rows into an index file: python pack_index.py OUT"""
import json
import math
import pathlib
import sys


def confirm(question):
    print(question, end=" ", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower().startswith("y")


def main():
    out = pathlib.Path(sys.argv[1])
    versions = sorted(out.parent.glob("index*.json"))
    if len(versions) >= 2 and not confirm(f"{versions[0].name} exists, replace?"):
        return 1
    rows = json.loads(out.with_suffix(".in").read_text())
    norms = [math.sqrt(sum(v * v for v in row)) for row in rows]
    target = out.with_name(f"index_{len(versions)}.json")
    target.write_text(json.dumps({"rows": rows, "norms": norms}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
