# ruff: noqa
"""The user's own sitecustomize and usercustomize stand on PYTHONPATH; Python children of several kinds start: with it, with the
path that they inherit behind it or before it. Compared: what each of the children prints."""

import os, subprocess, sys, tempfile, torch
from _result import fit, net, result, sgd

folder = tempfile.mkdtemp()
for name in ("sitecustomize", "usercustomize"):
    with open(os.path.join(folder, name + ".py"), "w") as file:
        file.write(f"import sys; print('own {name}', len(sys.argv))")
model = net()
loss = fit(model, sgd(model), 40)
got, inherited = [], os.environ.get("PYTHONPATH", "")
env = {**os.environ, "PYTHONUSERBASE": folder}
for path in (folder, f"{folder}:{inherited}", f"{inherited}:{folder}"):
    for options in ([], ["-s"], ["-I"], ["-S"], ["-E"], ["-B", "-O"]):
        done = subprocess.run(
            [sys.executable, *options, "-c", "import sys; print('ran')"],
            env={**env, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        got.append(done.stdout.split("\n") + [done.returncode, done.stderr])
for line in got:
    print(line)
result(
    loss, model, ran=sum("ran" in x for x in got), own=sum("own sitecustomize" in " ".join(map(str, x)) for x in got)
)
