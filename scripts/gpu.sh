#!/usr/bin/env bash
# Tests on a CUDA device, with the Python, torch and pytest that are there: hotloop need not be installed.
# Without arguments benchmarks/gpu_techniques.py measures techniques first, in less than four minutes.
# Writes gpu.json and gpu_techniques.json to $OUT, or to benchmarks/results. Without a device every test is skipped and nothing is written.
set -u
cd "$(dirname "$0")/.."

python=${PYTHON:-}
if [ -z "$python" ]; then
    for candidate in python3 .venv/bin/python; do
        if "$candidate" -c 'import torch, pytest' 2>/dev/null; then
            python=$candidate
            break
        fi
    done
fi
if [ -z "$python" ]; then
    echo "scripts/gpu.sh: no python3 here has both torch and pytest; name one with PYTHON=..." >&2
    exit 2
fi

export PYTHONPATH=src PYTHONDONTWRITEBYTECODE=1
if [ $# -eq 0 ]; then
    timeout 240 "$python" benchmarks/gpu_techniques.py
    measured=$?
fi
timeout 470 "$python" -m pytest -q -p no:cacheprovider -m gpu tests/gpu "$@"
tested=$?
[ "$tested" -ne 0 ] && exit "$tested"
exit "${measured:-0}"
