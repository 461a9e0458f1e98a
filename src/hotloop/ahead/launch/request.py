"""The values of a launch, and the formula for how long before the end to warn it."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from hotloop.core.errors import UsageError
from hotloop.core.save_notice import MARGIN_FACTOR, MARGIN_S, find_notice_s

from .training_command import TrainingCommand

UNKNOWN_NOTICE_S = 300
"""The notice if the time of a save was not measured."""
STOPPED_CODE = 75
"""Exit code of a node whose training was asked to stop (EX_TEMPFAIL), as in hotloop's Trainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """A provider of spot machines. ``notice_s``: between its notice and the end of the machine."""

    id: str
    name: str
    notice_s: int
    source: str
    labels: dict[str, str]
    """Labels of its spot nodes in Kubernetes."""
    taints: tuple[tuple[str, str, str], ...]
    """Key, value and effect of the taint that keeps other pods off its spot nodes."""


CLOUDS = {
    one.id: one
    for one in (
        Cloud(
            id="aws",
            name="AWS",
            notice_s=120,
            source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html",
            labels={"karpenter.sh/capacity-type": "spot"},
            taints=(),
        ),
        Cloud(
            id="gcp",
            name="Google Cloud",
            notice_s=30,
            source="https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms",
            labels={"cloud.google.com/gke-spot": "true"},
            taints=(("cloud.google.com/gke-spot", "true", "NoSchedule"),),
        ),
        Cloud(
            id="azure",
            name="Azure",
            notice_s=30,
            source="https://learn.microsoft.com/en-us/azure/virtual-machines/spot-vms",
            labels={"kubernetes.azure.com/scalesetpriority": "spot"},
            taints=(("kubernetes.azure.com/scalesetpriority", "spot", "NoSchedule"),),
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Values from a recorded run that apply to the next; None if not measured."""

    save_s: float | None = None
    """The longest time for which a save stopped the loop."""
    step_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Storage that outlives a pod: a claim (or a volume's name) and its mount path."""

    claim: str
    path: str


_KUBERNETES_NAME = (r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", "lower-case letters, digits, . and -")
_SHAPES = {
    "shm": (r"[1-9][0-9]*(Mi|Gi|M|G)", "a size such as 16Gi"),
    "interface": (r"[A-Za-z0-9_.-]{1,15}", "the name of one interface, such as eth1"),
    "rdma": (r"(?!nvidia\.com/gpu$)[a-z0-9.-]+/[A-Za-z0-9._-]+", "the name of a network device, such as rdma/ib"),
    "queue": _KUBERNETES_NAME,
    "runtime": _KUBERNETES_NAME,
}
"""Field -> the pattern that its text must match, and what the user should give."""


def check_text(option: str, text: str) -> None:
    """Raises UsageError for text that could break out of its line in a script or manifest, and for empty text."""
    if not text.strip() or not text.isprintable():
        raise UsageError(f"{option} {text!r}: give text on one line, without control characters")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One training on ``nodes`` identical nodes. Without GPUs (``gpus_per_node`` 0) it trains on the CPU.

    Raises UsageError if a text has a line break or another control character, or does not match its field's pattern.
    The command's words may have any characters: they are quoted.
    """

    name: str
    command: TrainingCommand
    nodes: int
    gpus_per_node: int
    processes_per_node: int
    measured: MeasuredRun
    gpu: str | None = None
    """A device of `hotloop plan`, or the cluster's own name for it."""
    is_whole_node: bool = False
    """It uses all GPUs of its nodes, as far as the plan knows them."""
    cpus: int | None = None
    """CPU cores of one node."""
    cloud: Cloud | None = None
    """The provider of its spot machines."""
    time: str | None = None
    image: str | None = None
    volume: Volume | None = None
    shm: str | None = None
    """Size of /dev/shm, such as 16Gi."""
    interface: str | None = None
    """Network interface between nodes."""
    rdma: str | None = None
    """Kubernetes' name of the network device, such as rdma/ib."""
    queue: str | None = None
    runtime: str = "torch-distributed"
    slurm_options: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes for the user and for readers of the manifest: one line each."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, option = getattr(self, field.name), f"--{field.name.removesuffix('s').replace('_', '-')}"
            if isinstance(value, Volume):
                value = (value.claim, value.path)
            for text in (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ():
                check_text(option, text)
                shape, wanted = _SHAPES.get(field.name, ("", ""))
                if shape and not re.fullmatch(shape, text):
                    raise UsageError(f"{option} {text}: give {wanted}")

    @property
    def processes(self) -> int:
        return self.nodes * self.processes_per_node

    @property
    def notice_s(self) -> int:
        """Whole seconds before the end at which the training is asked to stop."""
        if self.measured.save_s is None:
            return UNKNOWN_NOTICE_S
        return find_notice_s(self.measured.save_s, self.measured.step_s or 0.0)

    @property
    def notice_reason(self) -> str:
        save_s, step_s = self.measured.save_s, self.measured.step_s
        if save_s is None:
            return f"{UNKNOWN_NOTICE_S} s because no save was measured: give --run RUN or --save-s SECONDS"
        both = f"a save of {_draw_s(save_s)}"
        if step_s is not None:
            both = f"({both} + a step of {_draw_s(step_s)})"
        return f"{self.notice_s} s = {MARGIN_FACTOR:g} x {both} + {MARGIN_S:g} s for ranks to agree on the signal"


def _draw_s(seconds: float) -> str:
    """Three digits, and never an exponent.

    >>> [_draw_s(seconds) for seconds in (0.00001, 0.3, 1.25, 99.96, 3000.0)]
    ['0.00001 s', '0.3 s', '1.25 s', '100 s', '3000 s']
    """
    if seconds >= 99.95:
        return f"{seconds:.0f} s"
    return f"{seconds:.3g} s" if seconds >= 1e-4 or not seconds else f"{seconds:.9f}".rstrip("0") + " s"
