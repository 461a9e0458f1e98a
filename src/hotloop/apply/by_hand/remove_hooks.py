"""Remove the hook (`handle.remove()`), register it only while you debug, or let it return early in all but every N-th
step. Advised by `module-hooks`. The numbers stay the same unless the hook changes what it is given."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__,
    id="remove-hooks",
    summary="remove hooks of modules, or run them rarely",
    effort="easy",
    numerics=Numerics.EXACT,
)
