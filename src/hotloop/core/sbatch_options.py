"""The options of sbatch: from its manual page (Slurm 22.05.8), each tried there, and those of later versions."""

from __future__ import annotations

SHORT = {
    "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile", "G": "gpus", "H": "hold",
    "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes", "O": "overcommit", "Q": "quiet", "S": "core-spec",
    "V": "version", "W": "wait", "a": "array", "b": "begin", "c": "cpus-per-task", "d": "dependency", "e": "error",
    "h": "help", "i": "input", "k": "no-kill", "m": "distribution", "n": "ntasks", "o": "output", "p": "partition",
    "q": "qos", "s": "oversubscribe", "t": "time", "v": "verbose", "w": "nodelist", "x": "exclude",
}  # fmt: skip
FLAGS = ("s", "H", "k", "O", "Q", "W", "v", "h", "V")
"""Short options without a value."""
_LATER = """
consolidate-segments container-id external oom-kill-step resv-ports segment spread-segments stepmgr tres-bind
tres-per-task
"""
_LONG = """
acctg-freq batch bb bbf cluster cluster-constraint comment container context contiguous cores-per-socket cpu-freq
cpus-per-gpu deadline delay-boot exclusive export export-file get-user-env gid gpu-bind gpu-freq gpus-per-node
gpus-per-socket gpus-per-task gres gres-flags hint ignore-pbs kill-on-invalid-dep mail-type mail-user mcs-label mem
mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-requeue ntasks-per-core ntasks-per-gpu ntasks-per-node
ntasks-per-socket ntasks-per-tres open-mode parsable power prefer priority profile propagate reboot requeue reservation
signal sockets-per-node spread-job switches tasks-per-node test-only thread-spec threads-per-core time-min tmp uid usage
use-min-nodes wait-all-nodes wckey wrap
"""
LONG = frozenset((*SHORT.values(), *_LONG.split(), *_LATER.split()))
RENAMED = {"workdir": "chdir", "share": "oversubscribe"}
"""Older versions know them under these names."""
_OF_SRUN = """
accel-bind bcast bcast-exclude compress cpu-bind cpu_bind disable-status epilog exact het-group immediate
kill-on-bad-exit label mpi msg-timeout multi-prog no-allocate overlap preserve-env prolog pty quit-on-interrupt relative
send-libs slurmd-debug task-epilog task-prolog unbuffered
"""
OF_SRUN = frozenset(_OF_SRUN.split())
"""Options that srun has and sbatch refuses."""


def find_long(name: str) -> list[str]:
    """What a long option may mean: the name itself, or those that it abbreviates, as getopt reads them."""
    return [name] if name in LONG else sorted(one for one in LONG if one.startswith(name))
