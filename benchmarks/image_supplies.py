"""What the builds of image_builds.py are made of: base images of this machine's Debian, packages, an index, contexts.

No registry is asked: a base image is the files of installed Debian packages, Python packages and .debs are written
here and served on localhost, with the headers by which PyPI lets pip keep them. Their work is real: modules are
byte-compiled, C is compiled, archives are unpacked.
"""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import random
import re
import shutil
import subprocess
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

IMAGES = Path(__file__).resolve().parent / "images"
PORT = 47613
SLIM = ("dash", "coreutils", "sed", "grep", "tar", "gzip", "findutils", "python3.11-minimal", "libpython3.11-stdlib")
DEVEL = (*SLIM, "gcc", "libc6-dev", "make", "apt", "dpkg", "libc-bin", "diffutils")
MERGED = ("bin", "sbin", "lib", "lib64")
FOLDERS = (
    "tmp root etc proc sys dev run etc/apt/preferences.d var/lib/dpkg/info var/lib/dpkg/updates var/log/apt "
    "var/cache/apt/archives/partial var/lib/apt/lists/partial"
)
CONDA = r"""#!/bin/sh
# A stand-in for conda: an environment of the packages that the file lists, made by venv and pip.
set -e
test "$1 $2 $3" = "env create -f"
name=$(sed -n 's/^name: *//p' "$4")
python3 -m venv --without-pip "/opt/conda/envs/$name"
sed -n 's/^  - //p' "$4" > /tmp/conda-list
python3 -m pip --python "/opt/conda/envs/$name/bin/python" install --no-cache-dir -r /tmp/conda-list
rm /tmp/conda-list
"""
BACKEND = """import pathlib, subprocess, zipfile
NAME = "tokenx-0.3.0"
METADATA = "Metadata-Version: 2.1\\nName: tokenx\\nVersion: 0.3.0\\n"
WHEEL = "Wheel-Version: 1.0\\nGenerator: own\\nRoot-Is-Purelib: false\\nTag: py3-none-any\\n"

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder, f"{NAME}.dist-info")
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "WHEEL").write_text(WHEEL)
    return info.name

def build_wheel(folder, config_settings=None, metadata_directory=None):
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", "native.so", "native.c"], check=True)
    name = f"{NAME.replace('-', '-', 1)}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.write("native.so", "tokenx/native.so")
        wheel.writestr("tokenx/__init__.py", "")
        for file, text in (("METADATA", METADATA), ("WHEEL", WHEEL), ("RECORD", "")):
            wheel.writestr(f"{NAME}.dist-info/{file}", text)
    return name
"""
AUTHOR = {"GIT_AUTHOR_NAME": "proof", "GIT_AUTHOR_EMAIL": "p@example.org"}


def make_rootfs(target: Path, packages: Iterable[str]) -> None:
    """The files of these Debian packages and of what they depend on, as a root folder."""
    names = _close(packages)
    for name in MERGED:
        (target / "usr" / name).mkdir(parents=True, exist_ok=True)
        (target / name).symlink_to(f"usr/{name}")
    listed = subprocess.run(["dpkg", "-L", *names], capture_output=True, text=True, check=True).stdout.splitlines()
    merged = re.compile(rf"^/({'|'.join(MERGED)})/")
    paths = {merged.sub(r"/usr/\1/", line) for line in listed if line.startswith("/") and "/share/doc/" not in line}
    files = [one for one in paths if os.path.lexists(one) and (os.path.islink(one) or not os.path.isdir(one))]
    for extra in ("/usr/bin/cc", "/etc/alternatives/cc"):
        files += [extra] if "gcc" in names and os.path.lexists(extra) else []
    for one in files:
        if one.endswith("/EXTERNALLY-MANAGED"):
            continue
        place = target / one.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(one, place, follow_symlinks=False)
    for folder in FOLDERS.split():
        (target / folder).mkdir(parents=True, exist_ok=True)
    (target / "tmp").chmod(0o1777)
    (target / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n_apt:x:42:65534::/nonexistent:/bin/false\n")
    (target / "etc" / "group").write_text("root:x:0:\nnogroup:x:65534:\n")
    _write_status(target, names)
    subprocess.run(["ldconfig", "-r", str(target)], check=True, capture_output=True)
    python = target / "usr" / "bin"
    (python / "python3").unlink(missing_ok=True)
    (python / "python3").symlink_to("python3.11")


def _close(packages: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    left = list(packages)
    while left:
        name = left.pop()
        if name in found:
            continue
        shown = subprocess.run(
            ["dpkg-query", "-W", "-f=${Status}|${Pre-Depends}, ${Depends}", name],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not shown.stdout.startswith("install ok installed|"):
            continue  # another alternative, or what another package provides
        found[name] = None
        needs = re.split(r"[,|]", shown.stdout.partition("|")[2])
        left += [re.split(r"[ (:]", one.strip())[0] for one in needs if one.strip()]
    return sorted(found)


def _write_status(target: Path, names: Sequence[str]) -> None:
    wanted = set(names)
    text = Path("/var/lib/dpkg/status").read_text(encoding="utf-8")
    kept = [one for one in text.split("\n\n") if one.partition("\n")[0].removeprefix("Package: ") in wanted]
    (target / "var/lib/dpkg/status").write_text("\n\n".join(kept) + "\n\n", encoding="utf-8")
    for file in Path("/var/lib/dpkg/info").iterdir():
        if file.name.split(".")[0].split(":")[0] in wanted and file.suffix == ".list":
            shutil.copy2(file, target / "var/lib/dpkg/info" / file.name)


def make_index(target: Path) -> None:
    """Wheels, a source package and .debs, with the pages by which pip and apt find them."""
    pip = next(Path(p) for p in _ensurepip() if Path(p).name.startswith("pip-"))
    wheels = {
        "tensorlite-2.1.0": _make_wheel("tensorlite", "2.1.0", modules=150, blob_mb=16),
        "tensorlite-2.2.0": _make_wheel("tensorlite", "2.2.0", modules=155, blob_mb=17),
        "vizkit-1.0.0": _make_wheel("vizkit", "1.0.0", modules=60, blob_mb=3),
    }
    files = {f"{name}-py3-none-any.whl": data for name, data in wheels.items()}
    files["tokenx-0.3.0.tar.gz"] = _make_source()
    for name, data in files.items():
        project = target / "simple" / name.partition("-")[0]
        project.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes(data)
    for project in (target / "simple").iterdir():
        links = [
            f'<a href="{one.name}#sha256={hashlib.sha256(one.read_bytes()).hexdigest()}">{one.name}</a>'
            for one in sorted(project.iterdir())
        ]
        (project / "index.html").write_text("<html><body>" + "".join(links) + "</body></html>")
    shutil.copy2(pip, target / pip.name)
    _make_debs(target / "debs")


def _ensurepip() -> list[str]:
    import ensurepip

    return [str(one) for one in (Path(ensurepip.__file__).parent / "_bundled").glob("*.whl")]


def _draw_module(draw: random.Random, functions: int = 18) -> str:
    parts = ['"""Part of a package written for a proof."""\n']
    for number in range(functions):
        names = [f"v{draw.randrange(1000)}" for _ in range(6)]
        lines = [f"    {a} = ({b}_0 + {number}) * {draw.random():.6f}" for a, b in zip(names, ["x"] * 6, strict=True)]
        parts.append(f"def f{number}(x_0, *more):\n" + "\n".join(lines) + f"\n    return [{', '.join(names)}, *more]\n")
    return "\n".join(parts)


def _make_wheel(name: str, version: str, *, modules: int, blob_mb: int) -> bytes:
    draw = random.Random(f"{name}{version}")
    entries: dict[str, bytes] = {f"{name}/__init__.py": f'__version__ = "{version}"\n'.encode()}
    entries |= {f"{name}/part_{number}.py": _draw_module(draw).encode() for number in range(modules)}
    entries[f"{name}/lib{name}.so"] = draw.randbytes(blob_mb << 20)
    info = f"{name}-{version}.dist-info"
    entries[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    entries[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: own\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    entries[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in entries).encode()
    return _zip(entries)


def _zip(entries: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path, data in entries.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED, 1)
    return out.getvalue()


def draw_c(functions: int) -> str:
    body = "for (int i = 0; i < n; i++) for (int j = 0; j < n; j++) s += a[i] * a[j] + {k} * a[(i ^ j) % n] / (1 + s);"
    return "".join(
        f"double f{k}(const double *a, int n) {{ double s = {k}; {body.replace('{k}', str(k))} return s; }}\n"
        for k in range(functions)
    )


def _make_source() -> bytes:
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    info = "Metadata-Version: 2.1\nName: tokenx\nVersion: 0.3.0\n"
    files = {"pyproject.toml": build, "backend.py": BACKEND, "native.c": draw_c(320), "PKG-INFO": info}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"tokenx-0.3.0/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


def _make_debs(target: Path) -> None:
    """Two packages without dependencies, and the list of a flat repository."""
    target.mkdir(parents=True)
    listed = ""
    for name, size_mb in (("libfastio", 12), ("libcodec", 20)):
        root = target / name
        (root / "DEBIAN").mkdir(parents=True)
        (root / "usr" / "lib" / name).mkdir(parents=True)
        (root / "usr" / "lib" / name / "lib.so").write_bytes(random.Random(name).randbytes(size_mb << 20))
        control = f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: proof\nDescription: for a proof\n"
        (root / "DEBIAN" / "control").write_text(control)
        deb = target / f"{name}_1.0_all.deb"
        command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "-b", str(root), str(deb)]
        subprocess.run(command, check=True, capture_output=True)
        shutil.rmtree(root)
        data = deb.read_bytes()
        listed += f"{control}Filename: ./{deb.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n\n"
    (target / "Packages").write_text(listed)
    (target / "Packages.gz").write_bytes(gzip.compress(listed.encode()))


class _Handler(http.server.SimpleHTTPRequestHandler):
    def end_headers(self) -> None:
        lasts = "max-age=600" if self.path.endswith("/") else "max-age=365000000, immutable"
        self.send_header("Cache-Control", lasts)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """No line per request."""


def serve(folder: Path) -> http.server.ThreadingHTTPServer:
    """The index on localhost, until it is shut down."""

    def make(*args: object, **more: object) -> _Handler:
        return _Handler(*args, directory=str(folder), **more)  # type: ignore[arg-type]

    server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), make)  # type: ignore[arg-type]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def make_bases(folder: Path, index: Path) -> None:
    """localhost/proof/slim:1 and devel:1 in a store of their own below ``folder``."""
    store = ["--root", str(folder / "store"), "--runroot", str(folder / "run")]
    settings = f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
    (folder / "storage.conf").write_text(settings)
    for name, packages in (("slim", SLIM), ("devel", DEVEL)):
        root = folder / name / "rootfs"
        root.mkdir(parents=True)
        make_rootfs(root, packages)
        site = root / "usr" / "lib" / "python3" / "dist-packages"
        site.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(next(index.glob("pip-*.whl"))) as wheel:
            wheel.extractall(site)
        (root / "etc" / "pip.conf").write_text(f"[global]\nindex-url = http://127.0.0.1:{PORT}/simple\n")
        if name == "devel":
            (root / "etc" / "apt").mkdir(parents=True, exist_ok=True)
            line = f"deb [trusted=yes] http://127.0.0.1:{PORT}/debs ./\n"
            (root / "etc" / "apt" / "sources.list").write_text(line)
            (root / "etc" / "apt" / "apt.conf.d" / "70debconf").unlink(missing_ok=True)
            (root / "usr" / "bin" / "conda").write_text(CONDA)
            (root / "usr" / "bin" / "conda").chmod(0o755)
        (folder / name / "Dockerfile").write_text("FROM scratch\nCOPY rootfs /\n")
        subprocess.run(
            ["buildah", "--storage-driver", "overlay", *store, "build", "-t", f"localhost/proof/{name}:1", "."],
            cwd=folder / name, check=True, capture_output=True,
        )  # fmt: skip
        shutil.rmtree(folder / name)


def make_context(case: str, target: Path) -> None:
    """A copy of images/CASE with its history, and what is large in it."""
    shutil.copytree(IMAGES / case, target)
    draw = random.Random(case)
    if (target / "gitignore").exists():
        (target / "gitignore").rename(target / ".gitignore")
    if case == "code_first":
        (target / "kernels" / "kernels.c").write_text(draw_c(150))
    if case == "big_context":
        (target / "docs").mkdir()
        (target / "docs" / "recording.bin").write_bytes(draw.randbytes(60 << 20))
        for folder, count, size_mb in (("data", 160, 3), ("checkpoints", 4, 80)):
            (target / folder).mkdir()
            for number in range(count):
                (target / folder / f"{number:04}.bin").write_bytes(draw.randbytes(size_mb << 20))
    _commit_history(target, draw)


def _commit_history(target: Path, draw: random.Random) -> None:
    """Ninety days of work: 70 commits of the code, 6 of the requirements. The files end as they began."""
    lists = [*target.glob("requirements*.txt"), *target.glob("requirements/*.txt"), *target.glob("environment.yml")]
    code = target / "train.py"
    plan = [(code, 70), *[(lists[0], 6)]]
    kept = {path: path.read_text() for path, _ in plan}
    moments = sorted((draw.random() * 88 + 1, path) for path, count in plan for _ in range(count))
    _git(target, 89.5, "init", "-q", "-b", "main")
    _git(target, 89.5, "add", "-A")
    _git(target, 89.5, "commit", "-qm", "Begin")
    for number, (age_days, path) in enumerate(reversed(moments)):
        path.write_text(f"{kept[path]}# {number}\n")
        _git(target, age_days, "commit", "-qam", f"Change {number}")
    for path, text in kept.items():
        path.write_text(text)
    _git(target, 0.5, "commit", "-qam", "As it is")


def _git(target: Path, age_days: float, *words: str) -> None:
    moment = f"{int(time.time() - age_days * 86_400)} +0000"
    names = {**AUTHOR, "GIT_COMMITTER_NAME": "proof", "GIT_COMMITTER_EMAIL": "p@example.org"}
    dates = {"GIT_AUTHOR_DATE": moment, "GIT_COMMITTER_DATE": moment}
    subprocess.run(["git", *words], cwd=target, check=True, env={**os.environ, **names, **dates}, capture_output=True)
