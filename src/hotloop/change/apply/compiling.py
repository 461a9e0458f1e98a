"""Whether torch can compile here, and compiling that never ends a training that ran without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def find_missing_compiler(device: str) -> str | None:
    """What inductor needs for a device type but lacks on this machine; None when nothing is known to be missing."""
    if device == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except Exception as error:
            return (
                "inductor cannot find a C++ compiler: "
                f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
            )
    elif device == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            return "inductor needs triton on this GPU, but triton is not installed or does not support the GPU"
    return None


def allow_failures(fullgraph: bool) -> Callable[[], None]:
    """Code that cannot be compiled runs as before, instead of raising in a training that ran without us."""
    import torch._dynamo

    config: Any = torch._dynamo.config
    return set_option(config, "suppress_errors", config.suppress_errors or not fullgraph)


def allow_kept_graphs() -> Callable[[], None]:
    """``backward(retain_graph=True)`` works as it does without compiling.

    Otherwise compiled backwards overwrite what the forward saved, and torch refuses to run one with retain_graph.
    """
    import torch._functorch.config

    return set_option(torch._functorch.config, "donated_buffer", False)


def set_option(config: Any, name: str, value: Any) -> Callable[[], None]:
    """Set an option of torch's; returns what takes it back."""
    before = getattr(config, name)
    setattr(config, name, value)
    return lambda: setattr(config, name, before)
