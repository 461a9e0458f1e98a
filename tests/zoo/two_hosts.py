"""Two ranks of one script, each in a network namespace of its own: arguments are the namespaces, then the script's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from shaped_link import rank_environment


def main() -> int:
    spaces, command = sys.argv[1:3], sys.argv[3:]
    ranks = []
    for rank, space in enumerate(spaces):
        env = {**os.environ, **rank_environment(rank)}
        ranks.append(subprocess.Popen(["ip", "netns", "exec", space, sys.executable, *command], env=env))

    def stop(signum: int, _frame: object) -> None:
        for one in ranks:
            one.send_signal(signum)

    signal.signal(signal.SIGTERM, stop)
    codes = [one.wait() for one in ranks]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
