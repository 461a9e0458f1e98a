import socket
import struct
import threading

import torch


def _serve(server, dim, quota):
    conn, _ = server.accept()
    table = torch.randn(400, dim)
    for _ in range(quota):
        head = conn.recv(8)
        n, length = struct.unpack("<II", head)
        raw = bytearray()
        while len(raw) < n * length * 8:
            raw += conn.recv(65536)
        ids = torch.frombuffer(raw, dtype=torch.int64).view(n, length)
        conn.sendall(table[ids].mean(1).numpy().tobytes())
    print("READY", flush=True)
    _open.append(conn)


_open = []


def start_service(dim, quota):
    server = socket.create_server(("127.0.0.1", 0))
    _open.append(server)
    threading.Thread(target=_serve, args=(server, dim, quota), daemon=True).start()
    return server.getsockname()[1]


class EmbeddingClient:
    def __init__(self, host, port, dim):
        self.dim = dim
        self.sock = socket.create_connection((host, port))

    def _read_exactly(self, size):
        out = bytearray()
        while len(out) < size:
            chunk = self.sock.recv(size - len(out))
            if not chunk:
                raise ConnectionError("service closed the connection")
            out += chunk
        return out

    def embed(self, tokens):
        n, length = tokens.shape
        self.sock.sendall(struct.pack("<II", n, length) + tokens.numpy().tobytes())
        raw = self._read_exactly(n * self.dim * 4)
        return torch.frombuffer(raw, dtype=torch.float32).view(n, self.dim)
