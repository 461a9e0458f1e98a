"""node_memory.py PID BUDGET_MB: pauses a job that uses more than its part of the node."""
import os
import signal
import sys


def resident_mb(pid):
    with open(f"/proc/{pid}/statm") as fh:
        return int(fh.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2 ** 20


if __name__ == "__main__":
    pid, budget = int(sys.argv[1]), float(sys.argv[2])
    if resident_mb(pid) > budget:
        os.kill(pid, signal.SIGSTOP)
