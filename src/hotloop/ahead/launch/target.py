"""How a kind of cluster turns a LaunchRequest into a manifest, and how the manifest is submitted.

NODE_SCRIPT runs once on every node, whatever cluster started it. It has one purpose: a stop signal must reach the
ranks, and only them. torchrun passes SIGTERM to whole process groups and Slurm to every process of a step; both end
DataLoader workers, and the rank fails before it has saved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from hotloop.core.errors import UsageError

from .request import STOPPED_CODE, LaunchRequest
from .yaml_text import Noted, draw_yaml

NODE_SCRIPT = f"""\
# "$@" is the training command. SIGTERM or SIGUSR1 to this shell becomes SIGTERM to the ranks only: DataLoader workers
# that get it end immediately, and their rank fails before it has saved. Ranks are the processes that torchrun gave a
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
# Exit 0 after a stop would count as finished: {STOPPED_CODE} means that training has to continue.
[ -z "$asked" ] || exit {STOPPED_CODE}
exit "$code"
"""
"""POSIX shell; needs cat, tr and grep."""


def assign_script(name: str) -> str:
    """Shell lines that put the script into the variable ``name``."""
    return f"{name}=$(cat <<'END_OF_NODE'\n{NODE_SCRIPT}END_OF_NODE\n)\n"


TRAINING_OPTIONS = frozenset(
    {"plan", "nodes", "gpus_per_node", "cpus", "strategy", "run", "save_s", "interface", "name", "command"}
)
"""Options of every target that starts a training."""
MASTER_PORT = 29500
MOST_NAME = 63
_GPU_NAMES = {
    "a100-40g-sxm": "A100",
    "a100-80g-sxm": "A100-80GB",
    "a100-80g-pcie": "A100-80GB",
    "h100-80g-sxm": "H100",
    "h100-pcie": "H100",
    "h200": "H200",
    "b200": "B200",
    "l4": "L4",
    "l40s": "L40S",
    "v100-32g": "V100-32GB",
    "mi300x": "MI300X",
}
"""Device of `hotloop plan` -> its name in SkyPilot's catalogue."""


class LaunchTarget:
    """One kind of cluster. ``submit`` is the command that takes the manifest's file; None if nothing is started."""

    id: ClassVar[str]
    summary: ClassVar[str]
    suffix: ClassVar[str] = ".yaml"
    takes: ClassVar[frozenset[str]]
    """Command-line options that change the result of ``write``, or the warnings."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Required fields of the request."""
    rents: ClassVar[bool] = False
    """Whether it rents machines by the name of their GPU."""
    submit: ClassVar[tuple[str, ...] | None] = None

    def write(self, request: LaunchRequest) -> str:
        """The manifest as text. Raises UsageError if the request does not fit this kind of cluster."""
        raise NotImplementedError

    def draw(self, request: LaunchRequest) -> str:
        """The result of ``write``, below the notes of the request."""
        text = self.write(request)
        first = text[: text.index("\n") + 1] if text.startswith("#!") else ""
        return "".join((first, *(f"# {note}\n" for note in request.notes), text[len(first) :]))

    def find_warnings(self, request: LaunchRequest) -> tuple[str, ...]:
        """What the user should know before this is started."""
        found = [*request.notes]
        if request.measured.save_s is None:
            found.append(f"the save time is unknown: {request.notice_reason}")
        cloud = request.cloud
        if cloud is not None and request.notice_s > cloud.notice_s:
            found.append(
                f"{cloud.name} gives spot machines {cloud.notice_s} s of notice ({cloud.source}), but training "
                f"needs {request.notice_s} s to save: save often enough that losing the steps since the last save is "
                "acceptable, or save faster"
            )
        return tuple(found)

    def check(self, request: LaunchRequest) -> None:
        """Raises UsageError unless everything that this target needs was given."""
        for name in self.needs:
            if getattr(request, name) is None:
                raise UsageError(f"--target {self.id} needs --{name.replace('_', '-')}; {NEEDED[name]}")
        if self.rents and request.gpus_per_node and request.gpu is None:
            raise UsageError(f"--target {self.id} rents machines by GPU: give --gpu h100-80g-sxm, or --plan PLAN.toml")
        if self.suffix != ".yaml" and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", request.name):
            raise UsageError(
                f"--name {request.name}: use letters, digits, ., _ and -, beginning with a letter or digit"
            )
        if self.suffix == ".yaml" and not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", request.name):
            raise UsageError(f"--name {request.name}: use lower-case letters, digits and -, beginning with a letter")
        if len(request.name) > MOST_NAME - len("-node-0-00000"):
            raise UsageError(f"--name {request.name}: {len(request.name)} characters; give at most 50")


NEEDED = {
    "image": "the container image for training, such as pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime",
    "gpu": "the name of the device, such as h100-80g-sxm",
}


def training_environment(request: LaunchRequest) -> dict[str, Any]:
    """Variables of the training, each with its reason. No other variable of NCCL is set: its defaults fit most links,
    and what a strategy sets travels with the strategy."""
    found: dict[str, Any] = {
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": Noted(
            str(request.notice_s), "torchrun kills ranks that still save 30 s after another rank ended: let them finish"
        )
    }
    if request.gpus_per_node and request.processes > 1:
        found["NCCL_DEBUG"] = Noted("WARN", "NCCL reports why it failed; otherwise it is silent")
    if request.interface is not None:
        if request.gpus_per_node:
            found["NCCL_SOCKET_IFNAME"] = Noted(f"={request.interface}", "the interface that you named, = for exactly")
        found["GLOO_SOCKET_IFNAME"] = Noted(
            request.interface, "the same interface for data that ranks exchange on the CPU"
        )
    return found


def gpu_name(request: LaunchRequest) -> str | None:
    """The device as SkyPilot's catalogue names it."""
    return None if request.gpu is None else _GPU_NAMES.get(request.gpu, request.gpu)


def draw_documents(head: str, *documents: Mapping[str, Any]) -> str:
    """YAML documents under a comment."""
    comment = "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines())
    return comment + "---\n".join(draw_yaml(one) for one in documents)
