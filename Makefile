# Everything CI does: `make check` and `make test`. Each target sets up what it needs on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Asked for in any other way, torch brings gigabytes of CUDA libraries.
TORCH := torch==2.13.0
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: setup demo tutorial check size test test-slow environments browser golden docs new-rule new-technique changelog site site-check wheel zoo told-won \
  under-load fresh treated tune-zoo tune-zoo-subset what-if overhead harm numerics techniques \
  compression-quality plan-accuracy image-proof slurm-proof preemption frameworks pythons gpu clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml $(VENV)/.installed
	$(PIP) install --no-build-isolation --no-deps -e .
	touch $@

# Anew with each change of the list: what the list no longer names must be missing here as on a fresh machine.
$(VENV)/.installed: requirements-dev.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install $(TORCH)
	$(PIP) install -r requirements-dev.txt
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
	$(BIN)/python scripts/words.py
	$(BIN)/python scripts/size.py --check

# Statements and files by package, and the longest functions.
size: setup
	$(BIN)/python scripts/size.py

test: setup environments
	$(BIN)/python scripts/run_tests.py

# What tests/slow.txt leaves out of `make test`.
test-slow: setup environments
	$(BIN)/python scripts/run_tests.py -m slow -n 2 --dist loadfile

# What the tests need next to .venv.
environments: $(VENV)-bare/.ready $(VENV)-frameworks/.ready browser

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

# The wheel and the source archive in dist/, checked; then the wheel is installed into an empty environment and used.
# A release gives TAG, which must name the version, and REPOSITORY, the URL that the package index shows.
WHEEL_FILES := pyproject.toml README.md CHANGELOG.md LICENSE SECURITY.md src
wheel: setup
	test -z "$(TAG)" || test "hotloop $(TAG)" = "$$($(BIN)/hotloop --version | sed 's/ / v/')"
	rm -rf dist build/wheel && mkdir -p build/wheel && cp -r $(WHEEL_FILES) build/wheel
	test -z "$(REPOSITORY)" || printf '\n[project.urls]\nRepository = "%s"\nIssues = "%s/issues"\nChangelog = "%s"\n' \
	  "$(REPOSITORY)" "$(REPOSITORY)" "$(REPOSITORY)/blob/main/CHANGELOG.md" >> build/wheel/pyproject.toml
	cd build/wheel && $(CURDIR)/$(BIN)/python -m hatchling build -d $(CURDIR)/dist
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv --clear $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip --disable-pip-version-check -q install dist/*.whl
	$(VENV)-wheel/bin/hotloop --version
	$(VENV)-wheel/bin/hotloop lint examples

# Slow proofs: resumable (rows under .passes/ while a pass runs), one table a pass in benchmarks/results/. Then
# `scripts/evidence.py --write` draws the pages.
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

what-if: setup
	$(BIN)/python benchmarks/what_if_pairs.py

# What the hooks add to a step, in blocks with and without them: ten minutes on two quiet cores.
overhead: setup
	$(BIN)/python benchmarks/hooks.py

# docs/tutorials, each command as written, from the wheel alone: four minutes.
tutorial: wheel
	$(VENV)-wheel/bin/python -m pip --disable-pip-version-check -q install $(TORCH)
	$(BIN)/python scripts/tutorial.py $(VENV)-wheel

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


# What gradients in fewer bits and local updates do to a small language model's loss: 24 runs of about a minute; resumable.
compression-quality: setup
	$(BIN)/python benchmarks/compression_quality.py

# Constants of planned times fitted on few published rows, and every published row beside its prediction: a minute, no GPU.
plan-accuracy: setup
	$(BIN)/python benchmarks/plan_accuracy.py

# What hotloop image forecasts beside what six Dockerfiles' builds take, really built: root, Debian, buildah; 20 minutes.
image-proof: setup
	$(BIN)/python benchmarks/image_builds.py

# The sbatch script of `hotloop launch` on two real slurmd: trains, is preempted in every way, resumes bit by bit: 20 minutes;
# resumable. Needs root and slurm-wlm.
slurm-proof: setup
	$(BIN)/python benchmarks/slurm_proof.py

# Trainings that are killed at random moments and resumed, step by step beside whole ones: docs/trainer.md.
preemption: setup
	$(BIN)/python benchmarks/preemption.py


# Accelerate, Transformers and Lightning, for tests/end_to_end/test_frameworks.py and tests/integrations, which also report
# there: msgspec and isal. torch is that of the bare environment: one copy serves both.
frameworks: $(VENV)-frameworks/.ready

$(VENV)-frameworks/.ready: $(VENV)-bare/.ready Makefile
	test -x $(VENV)-frameworks/bin/python || $(PYTHON) -m venv $(VENV)-frameworks
	$(VENV)-bare/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(VENV)-frameworks/bin/python \
	  -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/bare.pth"
	$(VENV)-frameworks/bin/python -m pip --disable-pip-version-check -q install $(TORCH) accelerate transformers lightning mcp msgspec isal
	touch $@

# The tests of the hooks and of what reads them in every Python on the PATH from 3.11 on.
pythons: setup
	$(BIN)/python scripts/smoke_pythons.py

gpu:
	bash scripts/gpu.sh

clean:
	rm -rf $(VENV) $(VENV)-* build dist site
