# Everything CI does: `make check` and `make test`. Each target sets up what it needs on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Asked for in any other way, torch brings gigabytes of CUDA libraries.
TORCH := torch==2.13.0
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: setup demo check evidence-check test browser golden docs new-rule new-technique changelog site site-check zoo fresh told-won under-load treated tune-zoo tune-zoo-subset zoo-report what-if perfetto overhead harm tune-aa patches preemption trainer frameworks pythons numerics \
  techniques image-proof slurm-proof record-proof tokenize-bench compression-quality plan-accuracy plan-estimators gpu clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml requirements-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install $(TORCH)
	$(PIP) install -r requirements-dev.txt
	$(PIP) install --no-build-isolation --no-deps -e .
	touch $@

$(VENV)-bare/.ready:
	test -x $(VENV)-bare/bin/python || $(PYTHON) -m venv $(VENV)-bare
	$(VENV)-bare/bin/python -m pip --disable-pip-version-check -q install $(TORCH)
	touch $@

demo: setup
	$(BIN)/python scripts/demo.py

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/generate_docs.py --check
	$(BIN)/python scripts/evidence.py

# Every figure of every page, computed again from the raw tables: seconds.
evidence-check: setup
	$(BIN)/python scripts/evidence.py

test: setup $(VENV)-bare/.ready $(VENV)-frameworks/.ready browser
	$(BIN)/python scripts/run_tests.py

# Tests open the HTML report in Debian's chromium. Where it cannot be had they skip (tests/expected_skips.toml).
browser:
	test -x /usr/bin/chromium || test "$$(id -u)" != 0 || ! command -v apt-get > /dev/null \
	  || { timeout 300 apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y -qq \
	    --no-install-recommends chromium > /dev/null; } || echo "chromium was not installed: its tests will skip" >&2

golden: setup
	HOTLOOP_UPDATE_GOLDEN=1 $(BIN)/python -m pytest -q tests/report tests/golden

docs: setup
	$(BIN)/python scripts/generate_docs.py

# A new rule or technique: one file in src/, one in tests/. What is to be filled in is marked (CONTRIBUTING.md).
new-rule: setup
	$(BIN)/python scripts/new_extension.py rule "$(ID)"

new-technique: setup
	$(BIN)/python scripts/new_extension.py technique "$(ID)"

# CHANGELOG.md from the fragments in changes/; with RELEASE=YYYY-MM-DD they are dated and deleted.
changelog: setup
	$(BIN)/python scripts/changelog.py $(if $(RELEASE),--release $(RELEASE))

# The documentation as a site in site/, which opens from the disk. Its environment is its own: .venv-site.
site: $(VENV)-site/.ready
	$(VENV)-site/bin/zensical build --clean --strict

# The same, opened in headless Chromium.
site-check: setup site browser
	$(BIN)/python scripts/run_tests.py tests/house/test_site.py

$(VENV)-site/.ready: requirements-site.txt
	test -x $(VENV)-site/bin/python || $(PYTHON) -m venv $(VENV)-site
	$(VENV)-site/bin/python -m pip --disable-pip-version-check -q install -r requirements-site.txt
	touch $@

# Slow proofs: resumable (rows under .passes/ while a pass runs), one table a pass in benchmarks/results/, pages in docs/.
zoo: setup
	$(BIN)/python tests/zoo/harness.py --split all
	$(BIN)/python tests/zoo/harness.py --summarize

# What forecasts told and what the fixes won, two scripts a mechanism, on a quiet machine: docs/told_won.md.
told-won: setup
	$(BIN)/python benchmarks/told_won.py $(if $(LIMIT),--limit $(LIMIT))

# What busy cores do to forecasts and to what fixes win, on a machine that is quiet but for the load: docs/under_load.md.
under-load: setup $(VENV)-frameworks/.ready
	$(BIN)/python benchmarks/under_load.py $(if $(LIMIT),--limit $(LIMIT))

# Scripts that nobody has seen, once each: `make fresh SET=folder SCRIPTS_PYTHON=.venv-frameworks/bin/python`, docs/fresh.md.
fresh: setup
	$(BIN)/python tests/zoo/fresh.py $(SET) $(if $(SCRIPTS_PYTHON),--python $(SCRIPTS_PYTHON)) $(if $(LIMIT),--limit $(LIMIT))

treated: setup
	$(BIN)/python tests/zoo/treat.py
	$(BIN)/python tests/zoo/treat.py --summarize

# `hotloop tune` on planted faults, their twins and healthy trainings: 5 minutes each at most, about 6 hours in all.
tune-zoo: setup
	$(BIN)/python tests/zoo/tune_zoo.py
	$(BIN)/python tests/zoo/tune_zoo.py --summarize

# A stated part of it: one faulty script for each rule that a technique treats, 3 twins and 3 healthy trainings.
tune-zoo-subset: setup
	$(BIN)/python tests/zoo/tune_zoo.py --subset
	$(BIN)/python tests/zoo/tune_zoo.py --summarize

zoo-report: setup
	$(BIN)/python tests/zoo/harness.py --summarize

what-if: setup
	$(BIN)/python benchmarks/what_if_pairs.py

# What Perfetto itself reads of exported excerpts, in headless Chromium: a minute (benchmarks/results/perfetto.json).
perfetto: setup browser
	$(BIN)/python benchmarks/perfetto.py

# What the hooks add to a step, in blocks with and without them: ten minutes on two quiet cores.
overhead: setup
	$(BIN)/python benchmarks/hooks.py

# Sound trainings that were written to attack hotloop, alone and under it, in turn: an hour; resumable.
harm: setup
	$(BIN)/python tests/harm/machine_faults.py
	$(BIN)/python tests/harm/battery.py --json .passes/harm.jsonl

# What every technique does to the numbers, over 300 steps, several seeds, 1 and 2 ranks; resumable, docs/numerics.md.
numerics: setup
	$(BIN)/python benchmarks/numerics.py

# What techniques win here, for docs/claims.md: about ten minutes on two quiet cores.
techniques: setup
	$(BIN)/python benchmarks/techniques.py

# hotloop tokenize: bare tokenizer, 1 and 2 processes in turn; 20 kills; 1 GB. Resumable. With PEERS=python also datasets
# and datatrove, which that interpreter must have.
tokenize-bench: setup
	$(BIN)/python benchmarks/tokenizing.py speed
	$(BIN)/python benchmarks/tokenizing.py kill
	$(BIN)/python benchmarks/tokenizing.py memory
	test -z "$(PEERS)" || $(BIN)/python benchmarks/tokenizing.py peers --python $(PEERS) --rounds 3

# What gradients in fewer bits and local updates do to a small language model's loss: 24 runs of about a minute; resumable.
compression-quality: setup
	$(BIN)/python benchmarks/compression_quality.py
	$(BIN)/python benchmarks/compression_quality.py --publish
	$(BIN)/python benchmarks/compression_quality.py --summarize

# Constants of planned times fitted on few published rows, and every published row beside its prediction: a minute, no GPU.
plan-accuracy: setup
	$(BIN)/python benchmarks/plan_accuracy.py --write

# ZeRO's table beside DeepSpeed's and Accelerate's estimators, and what DeepSpeed holds on two CPU ranks: a minute.
plan-estimators: setup frameworks
	$(BIN)/python benchmarks/plan_estimators.py

# How often tune is wrong on a real step: A/A comparisons and a known 5 %, one procedure, about a minute each; resumable.
tune-aa: setup
	$(BIN)/python benchmarks/tune_aa.py live --count 40
	$(BIN)/python benchmarks/tune_aa.py known --count 20
	$(BIN)/python benchmarks/tune_aa.py resample
	$(BIN)/python benchmarks/tune_aa.py publish

# Whether the patched sources of five scripts win what their strategies won: about ten minutes; resumable.
patches: setup
	$(BIN)/python benchmarks/patches.py run --pairs 4

# What hotloop image forecasts beside what six Dockerfiles' builds take, really built: root, Debian, buildah; 20 minutes.
image-proof: setup
	$(BIN)/python benchmarks/image_builds.py
	$(BIN)/python benchmarks/image_builds.py --publish
	$(BIN)/python scripts/evidence.py --write

# `hotloop run --record` on two nodes, with kills, to endpoints that fail; and what it costs a training: 8 minutes.
record-proof: setup
	$(BIN)/python benchmarks/remote_recording.py nodes
	$(BIN)/python benchmarks/remote_recording.py endpoints
	$(BIN)/python benchmarks/remote_recording.py pairs

# The sbatch script of `hotloop launch` on two real slurmd: trains, is preempted in every way, resumes bit by bit: 20 minutes;
# resumable. Needs root and slurm-wlm.
slurm-proof: setup
	$(BIN)/python benchmarks/slurm_proof.py

preemption: setup
	$(BIN)/python benchmarks/preemption.py

trainer: setup
	$(BIN)/python benchmarks/trainer.py

# Accelerate, Transformers and Lightning, for tests/end_to_end/test_frameworks.py; DeepSpeed besides, for
# tests/apply/formats/test_real_libraries.py. torch is that of the bare environment: one copy serves both.
frameworks: $(VENV)-frameworks/.ready

$(VENV)-frameworks/.ready: $(VENV)-bare/.ready
	test -x $(VENV)-frameworks/bin/python || $(PYTHON) -m venv $(VENV)-frameworks
	$(VENV)-bare/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(VENV)-frameworks/bin/python \
	  -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/bare.pth"
	$(VENV)-frameworks/bin/python -m pip --disable-pip-version-check -q install $(TORCH) accelerate transformers lightning \
	  deepspeed==0.19.8 pyyaml
	touch $@

# Tests without torch in the oldest and the newest Python on the PATH (benchmarks/results/pythons.json).
pythons: setup
	$(BIN)/python scripts/smoke_pythons.py

gpu:
	bash scripts/gpu.sh

clean:
	rm -rf $(VENV) $(VENV)-* build dist site
