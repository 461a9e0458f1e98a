import socket
import struct
import threading
import time

import torch


class FeatureServer(threading.Thread):
    """Stands in for the remote store: pages beyond the hot set are slow."""

    def __init__(self, fields, hot, delay=1.1):
        super().__init__(daemon=True, name="feature-server")
        self.fields, self.hot, self.delay = fields, hot, delay
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]

    def run(self):
        conn, _ = self.sock.accept()
        served = 0
        while True:
            head = conn.recv(4)
            if not head:
                return
            (rows,) = struct.unpack("<I", head)
            if served >= self.hot:
                time.sleep(self.delay)
            conn.sendall(torch.randn(rows, self.fields).numpy().tobytes())
            served += 1


class FeatureClient:
    def __init__(self, port, fields):
        self.fields = fields
        self.sock = socket.create_connection(("127.0.0.1", port))

    def fetch(self, rows):
        self.sock.sendall(struct.pack("<I", rows))
        need = rows * self.fields * 4
        out = bytearray(need)
        view, got = memoryview(out), 0
        while got < need:
            got += self.sock.recv_into(view[got:])
        return out
