import os
import signal


class Governor:
    """Suspends this process at the agreed round; the scheduler continues it."""

    def __init__(self, at=None):
        self.at = at

    def due(self, r):
        return self.at is not None and r == self.at

    def checkpoint(self, r):
        if self.due(r):
            print("READY", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
