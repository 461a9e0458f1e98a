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
"""Older versions know them by these names."""
_OF_SRUN = """
accel-bind bcast bcast-exclude compress cpu-bind cpu_bind disable-status epilog exact het-group immediate
kill-on-bad-exit label mpi msg-timeout multi-prog no-allocate overlap preserve-env prolog pty quit-on-interrupt relative
send-libs slurmd-debug task-epilog task-prolog unbuffered
"""
OF_SRUN = frozenset(_OF_SRUN.split())
"""Options that srun has and sbatch refuses."""


def find_long(name: str) -> list[str]:
    """What a long option may mean: the name itself, or the names that it abbreviates, as getopt reads them."""
    return [name] if name in LONG else sorted(one for one in LONG if one.startswith(name))


_OUTPUT_VARIABLES = """
ARRAY_JOB_ID ARRAY_TASK_COUNT ARRAY_TASK_ID ARRAY_TASK_MAX ARRAY_TASK_MIN ARRAY_TASK_STEP CLUSTER_NAME CONF
CONTAINER CPUS_ON_NODE CPUS_PER_GPU CPUS_PER_TASK CPU_BIND CPU_BIND_LIST CPU_BIND_TYPE CPU_BIND_VERBOSE CPU_FREQ_REQ
DEBUG DISTRIBUTION DIST_PLANESIZE EXACT EXCLUSIVE EXPORT_ENV GPUS GPUS_ON_NODE GPUS_PER_NODE GPUS_PER_SOCKET
GPUS_PER_TASK GPU_BIND GPU_FREQ GTIDS HET_SIZE HINT JOBID JOB_ACCOUNT JOB_CPUS_PER_NODE JOB_CPUS_PER_NODE_PACK_GROUP_0
JOB_DEPENDENCY JOB_END_TIME JOB_GID JOB_GPUS JOB_ID JOB_NAME JOB_NODELIST JOB_NUM_NODES JOB_PARTITION JOB_QOS
JOB_RESERVATION JOB_START_TIME JOB_UID JOB_USER KILL_BAD_EXIT LAUNCH_NODE_IPADDR LOCALID MEM_BIND MEM_PER_CPU
MEM_PER_GPU MEM_PER_NODE MPI_TYPE NETWORK NNODES NODEID NODELIST NODE_ALIASES NPROCS NTASKS NTASKS_PER_CORE
NTASKS_PER_GPU NTASKS_PER_NODE NTASKS_PER_SOCKET OVERCOMMIT PRIO_PROCESS PROCID PROFILE PROPAGATE RESTART_COUNT
SCRIPT_CONTEXT SHARDS_ON_NODE SPANK_OPTION SRUN_COMM_HOST SRUN_COMM_PORT STEPID STEP_GPUS STEP_ID STEP_NODELIST
STEP_NUM_NODES STEP_NUM_TASKS STEP_TASKS_PER_NODE STEP_LAUNCHER_PORT SUBMIT_DIR SUBMIT_HOST TASKS_PER_NODE TASK_PID
THREADS_PER_CORE TIMELIMIT TMPDIR TOPOLOGY_ADDR TOPOLOGY_ADDR_PATTERN TRES_PER_TASK UMASK WCKEY WHOLE TIME_FORMAT
"""
OUTPUT_VARIABLES = frozenset(f"SLURM_{name}" for name in _OUTPUT_VARIABLES.split())
"""Variables that Slurm sets in a job or step (sbatch(1), srun(1)); some only if the option of that name is given."""
