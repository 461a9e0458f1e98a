#!/usr/bin/env bash
# Tests on a CUDA device, with the Python, torch and pytest that are there: hotloop need not be installed.
# Without arguments benchmarks/gpu_techniques.py measures techniques first, and scripts/gpu_plan.py compares stored memory
# predictions. All are ended after a time (220, 120 and 250 s, together ten minutes); what was measured by then is kept.
# Writes gpu.json and gpu_techniques.json to $OUT, or to benchmarks/results. Without a device every test is skipped and
# nothing is written.
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
    timeout 220 "$python" benchmarks/gpu_techniques.py
    measured=$?
    timeout 120 "$python" scripts/gpu_plan.py
fi
# SIGINT lets pytest write what it has.
timeout -s INT -k 20 "${TESTS_S:-250}" "$python" -m pytest -q -p no:cacheprovider -m gpu tests/gpu "$@"
tested=$?
[ "${measured:-0}" -eq 124 ] && echo "scripts/gpu.sh: gpu_techniques.py was ended after 220 s; what it had is kept" >&2
[ "$tested" -eq 124 ] && echo "scripts/gpu.sh: the tests were ended; give them longer with TESTS_S=470" >&2
[ "$tested" -ne 0 ] && exit "$tested"
exit "${measured:-0}"
