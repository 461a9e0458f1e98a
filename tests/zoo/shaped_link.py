"""Two network namespaces with a link of a chosen rate, and one rank of a training in each.

    python tests/zoo/shaped_link.py --rate 100mbit -- python train.py      rank 0's output; then the bytes on the wire

The rate is shaped by tc's token bucket filter (``none``: not at all); latency is not emulated. It needs root and the
programs ip and tc (Debian: iproute2). Names hold the process id, so that several links can exist at once; a link
goes when its ``with`` block ends, however it ends. What a killed process left is removed by the next one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PREFIX = "hotloop-link-"
RATE = re.compile(r"none|\d+(\.\d+)?(k|m|g)bit")
BURST = "256kb"
NETWORK = "10.45.0"
"""Both namespaces are private to one link, so that addresses and ports are always free."""
PORT = "29511"
INTERFACES = ("hl0", "hl1")
LATENCY = "50ms"
"""How long the filter queues; beyond, packets are dropped and TCP sends them again."""


class NoLinkError(RuntimeError):
    """A link cannot be made here: no rights, or a program is missing."""


def rank_environment(rank: int) -> dict[str, str]:
    """What torch.distributed reads, in the namespace of this rank of two."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": f"{NETWORK}.1",
        "MASTER_PORT": PORT,
        "GLOO_SOCKET_IFNAME": INTERFACES[rank],
    }


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one rank in each namespace."""

    return_codes: tuple[int, int]
    outputs: tuple[str, str]
    """stdout and stderr of each rank."""
    sent_bytes: tuple[int, int]
    """By the counters of each rank's interface, headers included."""


class Link:
    """Two ends of a virtual cable. ``shaped_link`` makes it."""

    def __init__(self, name: str) -> None:
        self.ends = f"{name}-a", f"{name}-b"

    def shape(self, rate: str) -> None:
        """Set the rate of both directions: 100mbit, 1gbit, none."""
        if not RATE.fullmatch(rate):
            raise ValueError(f"rate is {rate!r}: write a number with kbit, mbit or gbit, or none")
        for end, interface in zip(self.ends, INTERFACES, strict=True):
            _call("ip", "netns", "exec", end, "tc", "qdisc", "del", "dev", interface, "root", may_fail=True)
            if rate != "none":
                words = ("rate", rate, "burst", BURST, "latency", LATENCY)
                _call("ip", "netns", "exec", end, "tc", "qdisc", "add", "dev", interface, "root", "tbf", *words)

    def sent_bytes(self) -> tuple[int, int]:
        """Bytes that each end has sent since the link was made."""
        first, second = (
            int(_call("ip", "netns", "exec", end, "cat", f"/sys/class/net/{interface}/statistics/tx_bytes"))
            for end, interface in zip(self.ends, INTERFACES, strict=True)
        )
        return first, second

    def run(self, command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None) -> Run:
        """Run the command as rank 0 and rank 1 of two (RANK, WORLD_SIZE, MASTER_ADDR ...), one in each namespace.

        Raises subprocess.TimeoutExpired where one of them takes longer; both are ended then.
        """
        before = self.sent_bytes()
        with contextlib.ExitStack() as stack:
            ranks = []
            for rank, end in enumerate(self.ends):
                output = stack.enter_context(tempfile.TemporaryFile("w+"))
                process = subprocess.Popen(
                    ["ip", "netns", "exec", end, *command],
                    env={**os.environ, **(environment or {}), **rank_environment(rank)},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                stack.callback(_end, process)
                ranks.append((process, output))
            for process, _ in ranks:
                process.wait(timeout_s)
            after = self.sent_bytes()
            texts = []
            for _, output in ranks:
                output.seek(0)
                texts.append(output.read())
            return Run(
                return_codes=(ranks[0][0].returncode, ranks[1][0].returncode),
                outputs=(texts[0], texts[1]),
                sent_bytes=(after[0] - before[0], after[1] - before[1]),
            )


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def shaped_link(rate: str = "none") -> Iterator[Link]:
    """A link of this rate. Raises NoLinkError where none can be made."""
    why = why_no_link()
    if why is not None:
        raise NoLinkError(why)
    _remove_leftovers()
    name = f"{PREFIX}{os.getpid()}"
    link = Link(name)
    try:
        for end in link.ends:
            _call("ip", "netns", "add", end)
        (end_a, end_b), (one, two) = link.ends, INTERFACES
        _call("ip", "link", "add", one, "netns", end_a, "type", "veth", "peer", "name", two, "netns", end_b)
        for index, (end, interface) in enumerate(zip(link.ends, INTERFACES, strict=True), start=1):
            _call("ip", "-n", end, "addr", "add", f"{NETWORK}.{index}/24", "dev", interface)
            _call("ip", "-n", end, "link", "set", "lo", "up")
            _call("ip", "-n", end, "link", "set", interface, "up")
        link.shape(rate)
        yield link
    finally:
        for end in link.ends:
            _call("ip", "netns", "del", end, may_fail=True)


def why_no_link() -> str | None:
    """What keeps this process from making a link; None where nothing does."""
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"the program {missing[0]} is missing (Debian: apt-get install iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = f"{PREFIX}probe-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"ip netns add: {done.stderr.strip()}"
    _call("ip", "netns", "del", probe)
    return None


def _remove_leftovers() -> None:
    """Namespaces whose process is gone."""
    for line in _call("ip", "netns", "list").splitlines():
        name = line.split()[0] if line.split() else ""
        pid = name.removeprefix(PREFIX).removesuffix("-a").removesuffix("-b")
        if name.startswith(PREFIX) and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            _call("ip", "netns", "del", name, may_fail=True)


def _call(*words: str, may_fail: bool = False) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode and not may_fail:
        raise NoLinkError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", default="none", help="100mbit, 1gbit, none ... (default: none)")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for both ranks (default: 600)")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    options = parser.parse_args(argv)
    try:
        with shaped_link(options.rate) as link:
            run = link.run(options.command, timeout_s=options.timeout)
    except (NoLinkError, ValueError, subprocess.TimeoutExpired) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(run.outputs[0], end="")
    for rank, (code, sent) in enumerate(zip(run.return_codes, run.sent_bytes, strict=True)):
        print(f"rank {rank}: exit code {code}, {sent / 1e6:.3f} MB sent", file=sys.stderr)
    return max(run.return_codes)


if __name__ == "__main__":
    sys.exit(main())
