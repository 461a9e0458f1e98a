"""Turn off the setting once the fault is found: `torch.autograd.set_detect_anomaly(False)`, and an environment without
`CUDA_LAUNCH_BLOCKING`, `TORCH_DISTRIBUTED_DEBUG`, `TORCH_LOGS` and `NCCL_DEBUG`. Advised by `debug-settings`. The
numbers stay the same, but for `use_deterministic_algorithms`."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="turn-off-debugging",
    summary="turn off settings for finding faults",
    effort="easy",
    numerics=Numerics.EXACT,
)
