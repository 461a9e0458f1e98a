# ruff: noqa
"""Other starts of Python as grandchildren: the system's python3 with -S, -I, -E, through sh, xargs and a shebang, a virtual
environment, a zipapp, and one whose PYTHONHOME or PYTHONPATH is odd. Compared: output, errors and exit codes."""

import os, shutil, subprocess, sys, tempfile, torch, zipfile
from _result import fit, net, result, sgd

folder = tempfile.mkdtemp()
other = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
script, app = os.path.join(folder, "tool"), os.path.join(folder, "app.pyz")
with open(script, "w") as file:
    file.write(f"#!{other} -S\nprint('tool')\n")
os.chmod(script, 0o755)
with zipfile.ZipFile(app, "w") as archive:
    archive.writestr("__main__.py", "print('app')")
code = "import sys; print(sys.version_info[:2], sorted(m for m in sys.modules if m.startswith(('hotloop', 'torch', 'json'))), sys.exc_info())"
model = net()
loss = fit(model, sgd(model), 40)
got = []
for command in (
    [other, "-S", "-c", code], [other, "-I", "-c", code], [other, "-E", "-c", code], [other, "-c", code], [script], [other, app],
    ["sh", "-c", f"echo x | xargs {other} -c 'print(1)'"], [sys.executable, "-X", "importtime", "-c", "pass"], [sys.executable, "-v", "-S", "-c", "pass"],
    [sys.executable, "-W", "error", "-c", code], [sys.executable, "-c", f"import subprocess; subprocess.run([{other!r}, '-c', 'print(2)'])"],
):  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    got.append((done.returncode, done.stdout.strip(), 0 if {"-X", "-v"} & set(command) else len(done.stderr)))
for line in got:
    print(line)
result(loss, model, failed=sum(c != 0 for c, *_ in got), ran=len(got))
