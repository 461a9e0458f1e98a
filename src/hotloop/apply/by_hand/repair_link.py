"""Compare the measured rate with the network's nominal rate (`hotloop bench scaling`; `nccl-tests` on GPUs). Then
look at the interface in use (`NCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME`), the duplex and speed of the port, and other
traffic. Advised by `slow-link`. The numbers stay the same."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="repair-link",
    summary="find out why the network is slower than it should be",
    effort="hard",
    numerics=Numerics.EXACT,
)
