"""Two real slurmd, a slurmctld and a munged of their own, on this machine, as children that end with the context.

Needs root. Everything lies in one folder: keys, sockets, state and logs. The nodes are n1 and n2; each has one core as
far as Slurm knows. The partition `spot` may be preempted by `urgent`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol")


def lacks_slurm() -> bool:
    return os.geteuid() != 0 or any(shutil.which(name) is None for name in PROGRAMS)


class SlurmCluster:
    """``run`` starts a client program of Slurm against this cluster."""

    def __init__(self, folder: Path, *, user_signal: bool = True, grace_s: int = 20) -> None:
        self.folder = folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", "spool/n1", "spool/n2", "log", "run"):
            (folder / name).mkdir(parents=True)
        folder.chmod(0o755)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        ports = find_ports(3)
        self._write_configuration(ports, user_signal=user_signal, grace_s=grace_s)
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def _write_configuration(self, ports: Sequence[int], *, user_signal: bool, grace_s: int) -> None:
        host, folder = socket.gethostname().split(".")[0], self.folder
        lines = [
            "ClusterName=proof",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            "CredType=cred/munge",
            # A job that was requeued waits until its old credentials have expired: 120 s by default.
            f"AuthInfo=socket={folder}/run/munge.sock,cred_expire=5",
            f"SlurmctldPidFile={folder}/run/slurmctld.pid",
            f"SlurmdPidFile={folder}/run/slurmd.%n.pid",
            f"SlurmctldLogFile={folder}/log/slurmctld.log",
            f"SlurmdLogFile={folder}/log/slurmd.%n.log",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool/%n",
            "MpiDefault=none",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "ReturnToService=2",
            "SlurmdParameters=config_overrides",
            f"SlurmctldParameters={'preempt_send_user_signal' if user_signal else 'no_quick_restart'}",
            "SchedulerType=sched/backfill",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
            "SlurmdTimeout=10",
            "KillWait=10",
            "InactiveLimit=0",
            "MinJobAge=300",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            f"NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=2000 State=UNKNOWN",
            f"NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=2000 State=UNKNOWN",
            "PartitionName=spot Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE "
            f"GraceTime={grace_s}",
            "PartitionName=urgent Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF",
        ]
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def start(self) -> None:
        folder = self.folder
        names = {"key-file": "munge.key", "socket": "run/munge.sock", "pid-file": "run/munged.pid"}
        names |= {"log-file": "log/munged.log", "seed-file": "run/munge.seed"}
        self._start("munged", "--foreground", "--force", *(f"--{key}={folder / name}" for key, name in names.items()))
        self._wait("the munge socket", lambda: (folder / "run/munge.sock").exists())
        self._start("slurmctld", "-D", "-i", "-f", f"{folder}/slurm.conf")
        for node in ("n1", "n2"):
            self.start_node(node)
        self._wait("two idle nodes", lambda: self.run("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * 4)

    def start_node(self, node: str) -> None:
        self._start("slurmd", "-D", "-N", node, "-f", f"{self.folder}/slurm.conf", name=f"slurmd.{node}")

    def _start(self, *command: str, name: str | None = None) -> None:
        name = name or command[0]
        with open(self.folder / "log" / f"{name}.out", "ab") as log:
            self._daemons[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environment, start_new_session=True
            )

    def _wait(self, what: str, is_so: object, timeout_s: float = 60) -> None:
        end = time.monotonic() + timeout_s
        while not is_so():  # type: ignore[operator]
            for name, daemon in self._daemons.items():
                if daemon.poll() is not None:
                    raise RuntimeError(f"{name} ended with {daemon.returncode}: {self.read_logs()}")
            if time.monotonic() > end:
                raise TimeoutError(f"no {what} after {timeout_s} s: {self.read_logs()}")
            time.sleep(0.2)

    def read_logs(self) -> str:
        return "\n".join(one.read_text(errors="replace")[-1500:] for one in sorted((self.folder / "log").iterdir()))

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """Its standard output. Raises RuntimeError where it fails."""
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment, cwd=cwd, timeout=60, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def submit(self, script: Path, *options: str) -> int:
        return int(self.run("sbatch", "--parsable", *options, str(script), cwd=script.parent).strip())

    def show(self, job: int) -> dict[str, str]:
        """Fields of scontrol: JobState, Restarts, Reason and so on."""
        words = self.run("scontrol", "--oneliner", "show", "job", str(job)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, job: int, states: Sequence[str], timeout_s: float = 240) -> dict[str, str]:
        end = time.monotonic() + timeout_s
        while True:
            found = self.show(job)
            if found["JobState"] in states:
                return found
            if time.monotonic() > end:
                raise TimeoutError(f"job {job} is {found['JobState']} ({found['Reason']}) after {timeout_s} s")
            time.sleep(0.2)

    def kill_node(self, node: str) -> None:
        """SIGKILL to a slurmd and to everything that it started, as if its machine were lost."""
        daemon = self._daemons.pop(f"slurmd.{node}")
        pids = [daemon.pid, *find_descendants(daemon.pid), *self._find_steps(node)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        daemon.wait()

    def _find_steps(self, node: str) -> list[int]:
        """slurmstepd of a node leave their slurmd's tree; they and their tasks are known by this cluster's folder."""
        found = []
        for pid in (int(one) for one in os.listdir("/proc") if one.isdecimal()):
            with contextlib.suppress(OSError):
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                mine = (f"SLURM_CONF={self.folder}/slurm.conf", f"SLURMD_NODENAME={node}")
                if all(one.encode() in environment for one in mine):
                    found.append(pid)
        return [one for pid in found for one in (pid, *find_descendants(pid), parent_of(pid)) if one > 1]

    def stop(self) -> None:
        """Cancel what runs, then end the daemons that this object started."""
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            self.run("scancel", "--user=root")
            end = time.monotonic() + 30
            while self.run("squeue", "-h", "-o", "%i") and time.monotonic() < end:
                time.sleep(0.3)
        for daemon in self._daemons.values():
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(timeout=15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@contextlib.contextmanager
def slurm_cluster(folder: Path, *, user_signal: bool = True, grace_s: int = 20) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(folder, user_signal=user_signal, grace_s=grace_s)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def find_ports(count: int) -> list[int]:
    """Ports that are free now."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            found.append(one.getsockname()[1])
        return found


def find_descendants(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += [int(child), *find_descendants(int(child))]
    return found


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
