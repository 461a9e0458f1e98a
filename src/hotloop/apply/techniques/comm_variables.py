"""comm-variables: variables of NCCL and gloo that the strategy names, set before the training starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.strategy import Strategy
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique

VARIABLES: Mapping[str, str] = {
    "debug": "NCCL_DEBUG",
    "ib_disable": "NCCL_IB_DISABLE",
    "socket_ifname": "NCCL_SOCKET_IFNAME",
    "gloo_socket_ifname": "GLOO_SOCKET_IFNAME",
    "p2p_level": "NCCL_P2P_LEVEL",
    "net_gdr_level": "NCCL_NET_GDR_LEVEL",
}
INTERFACES = re.compile(r"\^?=?[A-Za-z0-9_.:@-]+(,[A-Za-z0-9_.:@-]+)*")


class CommVariables(Technique):
    """
    ## What it does
    Sets these variables, but only those that the strategy names. None has a default: NCCL's own choice is right unless
    a measurement shows otherwise. A variable that is set in the environment stays.

    - `debug` (NCCL_DEBUG): logs topology and errors. It always acts, and costs little below TRACE.
    - `ib_disable` (NCCL_IB_DISABLE): true sends traffic between hosts over TCP despite InfiniBand or RoCE. It acts only
      between hosts with such a device, where it is usually many times slower.
    - `socket_ifname` (NCCL_SOCKET_IFNAME): the interfaces for NCCL's bootstrap, and for its data without InfiniBand:
      prefixes, `=` for exact names, `^` for all but these. It acts in jobs over several hosts.
    - `gloo_socket_ifname` (GLOO_SOCKET_IFNAME): the same for gloo, exact names only.
    - `p2p_level` (NCCL_P2P_LEVEL): the largest distance at which GPUs of one host copy directly. LOC turns it off.
    - `net_gdr_level` (NCCL_NET_GDR_LEVEL): the largest distance at which a network card reads GPU memory directly. It
      acts only between hosts with InfiniBand or RoCE and GPUDirect.

    ## When it helps
    A host with several interfaces whose first one is slow, or unreachable from the others; a machine whose direct
    copies between GPUs are broken. Measure the real job before and after. `hotloop doctor` shows which of them are set,
    and harmful, now. None was measured here.

    ## When it does not
    On a CPU with gloo, only `gloo_socket_ifname` acts. On one host, `ib_disable`, `net_gdr_level` and usually
    `socket_ifname` do nothing. Values copied from another cluster slow a training down more often than they speed it
    up.

    ## Numerics
    Reordered: another path may change the order of additions. `debug` changes nothing.
    """

    id = "comm-variables"
    summary = "set environment variables of NCCL and gloo"
    effort = "easy"
    numerics = Numerics.REORDERED
    safety = Safety.SHOW
    stage = Stage.RUNTIME
    settings = (
        Setting(name="debug", kind=str, default=None, choices=("VERSION", "WARN", "INFO", "TRACE"), help="NCCL_DEBUG"),
        Setting(name="ib_disable", kind=bool, default=None, help="NCCL_IB_DISABLE"),
        Setting(name="socket_ifname", kind=str, default=None, help="NCCL_SOCKET_IFNAME"),
        Setting(name="gloo_socket_ifname", kind=str, default=None, help="GLOO_SOCKET_IFNAME"),
        Setting(
            name="p2p_level",
            kind=str,
            default=None,
            choices=("LOC", "NVL", "PIX", "PXB", "PHB", "SYS"),
            help="NCCL_P2P_LEVEL",
        ),
        Setting(
            name="net_gdr_level",
            kind=str,
            default=None,
            choices=("LOC", "PIX", "PXB", "PHB", "SYS"),
            help="NCCL_NET_GDR_LEVEL",
        ),
    )

    def check(self, settings: Mapping[str, Value], strategy: Strategy) -> str | None:
        if all(settings[name] is None for name in VARIABLES):
            return f"debug: name at least one variable ({', '.join(VARIABLES)}); none has a default"
        for name in ("socket_ifname", "gloo_socket_ifname"):
            value = settings[name]
            if value is not None and INTERFACES.fullmatch(str(value)) is None:
                return f"{name} is {value!r}; write interfaces such as 'eth0' or 'eth0,eth1'"
        own = settings["gloo_socket_ifname"]
        if own is not None and str(own)[:1] in "^=":
            return f"gloo_socket_ifname is {own!r}: gloo supports exact names only, without ^ and ="
        return None

    def set_environment(
        self, settings: Mapping[str, Value], environment: Mapping[str, str]
    ) -> tuple[Mapping[str, str], Effect]:
        wanted = _wanted(settings)
        kept = {name: environment[name] for name in wanted if name in environment}
        new = {name: value for name, value in wanted.items() if name not in kept}
        kept_text = "; ".join(f"{name}={{{name}}} was already set and is kept" for name in kept)
        if not new:
            return {}, NotApplicable(why=kept_text.format_map(kept))
        text = " ".join(f"{name}={{{name}}}" for name in new) + (f" ({kept_text})" if kept_text else "")
        return new, Applied(text=text, values={**kept, **new})

    def start(self, settings: Mapping[str, Value], context: Context) -> Effect:
        import os

        import torch.distributed

        if context.from_outside:
            return None  # set before this process was started
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return NotApplicable(why="the process group already exists and read its variables when it was created")
        new, effect = self.set_environment(settings, os.environ)
        if not isinstance(effect, Applied):
            return effect
        os.environ.update(new)

        def undo() -> None:
            for name in new:
                os.environ.pop(name, None)

        return replace(effect, undo=undo)


def _wanted(settings: Mapping[str, Value]) -> dict[str, str]:
    named = {VARIABLES[name]: settings[name] for name in VARIABLES if settings[name] is not None}
    return {name: str(int(value)) if isinstance(value, bool) else str(value) for name, value in named.items()}
