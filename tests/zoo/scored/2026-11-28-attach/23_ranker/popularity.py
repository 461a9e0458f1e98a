import threading
import time

_guard = threading.Lock()
_counts = {}


def _refresh(items, started):
    with _guard:
        started.set()
        for chunk in range(4):
            for i in range(chunk, items, 4):
                _counts[i] = _counts.get(i, 0) + i % 7
            time.sleep(0.5)  # statistics arrive in chunks


def refresh_async(items):
    started = threading.Event()
    t = threading.Thread(target=_refresh, args=(items, started), daemon=True)
    t.start()
    started.wait()
    return t


def weight(i):
    with _guard:  # counts may move
        return 1.0 + _counts.get(i, 0)
