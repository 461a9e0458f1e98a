"""Prints a score for a weights file; old results are replaced only when complete."""
import os
import pathlib
import sys
import time


def companion(path, epoch):
    return path.with_name(f"weights_{epoch}.ref")


def wait_for_reference(ref):
    parent = os.getppid()
    for _ in range(1000):
        if ref.exists() or os.getppid() != parent:
            return
        time.sleep(0.5)


def main():
    path = pathlib.Path(sys.argv[1])
    epoch, total = path.read_text().split()
    ref = companion(path, epoch)
    if int(epoch) < 4:
        ref.write_text("1.0")
    wait_for_reference(ref)
    scale = float(ref.read_text()) if ref.exists() else 1.0
    print(float(total) / (100.0 * scale))


if __name__ == "__main__":
    main()
