import hashlib
import json
import os

PIECE = 1 << 18
TWICE = ("table.weight",)


def _stream(out, view, digest):
    for i in range(0, len(view), PIECE):
        part = view[i:i + PIECE]
        digest.update(part)
        out.write(part)
        out.flush()
        os.fsync(out.fileno())


def write_snapshot(state, folder):
    """One file per tensor and a manifest; each piece is on disk before the next is written.
    The big tables get a mirror, as the disks here are not redundant."""
    os.makedirs(folder, exist_ok=True)
    manifest = {}
    for name, tensor in state.items():
        view = memoryview(tensor.contiguous().numpy().reshape(-1).view("uint8"))
        for copy in ("a", "b") if name in TWICE else ("a",):
            digest = hashlib.sha256()
            target = os.path.join(folder, f"{name}.{copy}.bin")
            with open(target + ".part", "wb") as out:
                _stream(out, view, digest)
            os.replace(target + ".part", target)
            manifest[f"{name}.{copy}"] = digest.hexdigest()
    with open(os.path.join(folder, "manifest.json"), "w") as fh:
        json.dump(manifest, fh)
