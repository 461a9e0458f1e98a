import os
import signal


class MemoryGuard:
    """Keeps the scores of all generations; ends the process hard once that grows too big."""

    def __init__(self, limit_rows):
        self.rows = []
        self.limit = limit_rows

    def note(self, row):
        self.rows.append(row)
        if len(self.rows) > self.limit:
            print("\nREADY\n", end="", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
