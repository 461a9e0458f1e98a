"""Offline index builder: owns the cache file as long as it lives."""
import fcntl
import os
import pathlib
import random
import sys
import time


def main():
    path = sys.argv[1]
    parent = os.getppid()
    with open(path, "rb+") as fh:
        fcntl.flock(fh, fcntl.LOCK_EX)
        pathlib.Path(f"{path}.{os.getpid()}").touch()
        tree = list(range(4096))
        for _ in range(540):
            if os.getppid() != parent:
                break
            random.shuffle(tree)
            time.sleep(1.0)


if __name__ == "__main__":
    main()
