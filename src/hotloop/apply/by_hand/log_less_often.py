"""log-less-often: write logs and metrics every N steps."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class LogLessOften(Act):
    """
    Write logs every N steps, keep the values as detached tensors until then, and let files be flushed by their buffer.
    Advised by `logging-overhead`. The numbers stay the same.
    """

    id = "log-less-often"
    summary = "write logs and metrics every N steps"
    effort = "easy"
    numerics = Numerics.EXACT


ACT = LogLessOften()
