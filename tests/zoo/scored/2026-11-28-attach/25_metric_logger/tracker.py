import collections
import json
import socket
import time


def _unused_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Tracker:
    """Buffers scalars; with `remote` they are pushed to a collector over TCP."""

    def __init__(self, remote, host="127.0.0.1", port=None):
        self.remote = remote
        self.addr = (host, port or _unused_port())
        self.buffer = collections.defaultdict(list)
        self.conn = None

    def add(self, key, value):
        self.buffer[key].append(value)

    def _connect(self, attempts=500, pause=1.0):
        for _ in range(attempts):
            try:
                return socket.create_connection(self.addr, timeout=5)
            except OSError:
                time.sleep(pause)
        return None

    def flush(self):
        payload = json.dumps({k: sum(v) / len(v) for k, v in self.buffer.items()})
        self.buffer.clear()
        if not self.remote:
            print(payload, flush=True)
            return
        if self.conn is None:
            print("READY", flush=True)
            self.conn = self._connect()
        if self.conn is not None:
            self.conn.sendall(payload.encode() + b"\n")

    def close(self):
        if self.conn is not None:
            self.conn.close()
