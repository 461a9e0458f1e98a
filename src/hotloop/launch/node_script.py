"""The shell script that runs once on every node, whatever cluster started it.

It exists for one purpose: a stop signal has to reach the ranks, and only them. torchrun passes SIGTERM to whole process
groups and Slurm to every process of a step; both end DataLoader workers, and the rank fails before it has saved.
"""

from __future__ import annotations

from .request import STOPPED_CODE

NODE_SCRIPT = f"""\
# "$@" is the training command. SIGTERM or SIGUSR1 to this shell becomes SIGTERM to the ranks alone: DataLoader workers
# that get it end at once, and their rank fails before it has saved. Ranks are the processes that torchrun gave a
# LOCAL_RANK.
ranks() {{
  for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
    if tr '\\0' '\\n' 2>/dev/null < /proc/"$child"/environ | grep -q '^LOCAL_RANK='; then
      echo "$child"
    else
      ranks "$child"
    fi
  done
}}
stop() {{
  asked=1
  found=$(ranks "$agent")
  kill -TERM ${{found:-$agent}} 2>/dev/null
}}
asked= agent=
trap stop TERM USR1
(trap '' USR1; exec "$@") &
agent=$!
[ -z "$asked" ] || stop
until wait "$agent"; code=$?; ! kill -0 "$agent" 2>/dev/null; do :; done
# Exit 0 after a stop would count as finished: {STOPPED_CODE} says that the training has to continue.
[ -z "$asked" ] || exit {STOPPED_CODE}
exit "$code"
"""
"""POSIX shell; needs cat, tr and grep."""


def assign_script(name: str) -> str:
    """Shell lines that put the script into the variable ``name``."""
    return f"{name}=$(cat <<'END_OF_NODE'\n{NODE_SCRIPT}END_OF_NODE\n)\n"
