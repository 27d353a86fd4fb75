# `make help` lists what one can ask for. Only Python 3.11 or newer, make and gcc must be there before.

PYTHON ?= python3
VENV   ?= .venv
# Where plain pip would bring torch for a GPU and the CPU build is wanted, name it: make setup TORCH="..."
TORCH  ?= torch==2.13.0
SEED   ?= 1
EVENTS ?= 20
HISTORIES ?= 50
KILLS ?= 200
# Another scenario, or --keep, for the pilot.
PILOT  ?=
# More flags for the comparison, e.g. make bench BENCH="--quick".
BENCH  ?=

# Tests start many processes: without bytecode each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# `make test DRAW=COMMIT` runs what the hash of the commit draws of the tests that take long, with its seeds.
DRAW   ?=
# `make test-changed` compares with this revision: what `main` has, or the last commit where no other is known.
SINCE  ?= $(shell git merge-base HEAD origin/main 2>/dev/null || echo HEAD)

# Three test processes more than cores, because many tests wait.
PYTEST = $(BIN)/python -m pytest --numprocesses $$(expr $$(getconf _NPROCESSORS_ONLN) + 3) --dist worksteal

BIN   := $(VENV)/bin
STAMP := $(VENV)/.setup-done

.DEFAULT_GOAL := help
.PHONY: help setup pins lowest docs docs-cli picture screenshots demo pilot test test-changed test-fast test-long bytecode times check style types \
  format bench gpu chaos survive crash crash-slurm clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 21

setup: $(STAMP) ## a virtual environment in .venv with everything installed

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than 3.11; name a newer one: make setup PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,examples,dev,docs]'
	@touch $@

pins: ## the newest versions that pyproject.toml admits, into constraints.txt; then run make check test
	rm -rf build/constraints
	$(PYTHON) -m venv build/constraints
	build/constraints/bin/python -m pip install --quiet $(TORCH)
	build/constraints/bin/python -m pip install --quiet --editable '.[torch,examples,dev,docs]'
	{ sed -n '/^#/p' constraints.txt; \
	  build/constraints/bin/python -m pip freeze --exclude-editable --exclude torch | sed -E "/^(nvidia|triton|cuda)/d; /==/!d"; \
	} > build/constraints.txt
	mv build/constraints.txt constraints.txt
	rm -rf build/constraints

lowest: ## install the oldest versions that pyproject.toml admits in build/lowest, and run the unit tests there
	$(PYTHON) tools/write_lowest.py
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip install --quiet $(TORCH)
	build/lowest/bin/python -m pip install --quiet --constraint constraints-lowest.txt \
	  --editable '.[torch,s3,text,streams,client,controller,postgres,examples]' \
	  cryptography hypothesis pathspec pytest pytest-timeout pytest-xdist
	build/lowest/bin/python -m pytest tests/*/unit tests/house -m "not processes" --numprocesses auto

docs: setup ## the documentation site, into build/site; a warning is an error
	rm -rf build/site
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs build/site

docs-cli: setup ## the tables of options in docs/cli.md, from the commands
	$(BIN)/python -m pytest tests/cli/unit/test_cli_page.py --rewrite

picture: setup ## the picture of README.md, from a real run with kills (five minutes)
	$(BIN)/python tools/draw_picture.py

screenshots: setup ## the pictures of docs/dashboard.md, from a real cluster, in Chromium (five minutes)
	$(BIN)/python tools/draw_pages.py

demo: setup ## train while workers join, die and leave; the same bytes come out (three minutes)
	$(BIN)/python examples/demo.py

pilot: setup ## a small shared cluster, elastic and of fixed sizes; writes pilot/report.html (six minutes)
	$(BIN)/python benchmarks/shared_cluster.py $(PILOT)

test: setup ## all tests but the long ones; with DRAW=COMMIT those that .ci/run draws
	$(PYTEST) $(if $(DRAW),--draw $(DRAW),-m "not long")

test-changed: setup ## the tests of the houses that differ from SINCE=REVISION, and a sixteenth of the others
	$(PYTEST) -m "not long" --changed-since $(SINCE)

test-fast: setup ## unit tests and the rules of the house, for the inner loop (a minute and a half)
	$(PYTEST) --numprocesses $$(expr $$(getconf _NPROCESSORS_ONLN) + 1) -m "not processes and not long" \
	  tests/*/unit tests/house

test-long: setup ## storms, seeds and combinations in bulk, PostgreSQL, the wheel (more than an hour)
	$(PYTEST) -m long

bytecode: setup ## compile the sources and the tests, so that several test processes need not
	$(BIN)/python -m pytest --collect-only -qq >build/collected.log || { cat build/collected.log; exit 1; }

times: setup ## run the tests of a landing, and keep the time of each house in tests/times.json
	$(MAKE) test DRAW=$$(git rev-parse HEAD)
	cp build/test-times.json tests/times.json

check: style types ## format, lint, types, floors

style: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy
	$(BIN)/mypy -p tests.run.simulator
	$(BIN)/mypy benchmarks
	$(BIN)/mypy examples/demo.py
	$(BIN)/mypy examples/lm
	$(BIN)/mypy examples/digits
	$(BIN)/mypy examples/fraud
	$(BIN)/mypy examples/research
	$(BIN)/mypy examples/shop

format: setup ## put the code into the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## measure against plain PyTorch, DDP and torchrun; writes docs/benchmarks.md
	$(BIN)/python benchmarks/run.py $(BENCH)

# Without `setup`: a machine that is lent with a GPU may have no network, and brings its own torch.
gpu: ## all tests and measurements on one GPU, in eight minutes; without a GPU nothing (PART=rooms, SMALL=1 on the CPU)
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) benchmarks/gpu/all_parts.py $(if $(PART),--part $(PART)) $(if $(SMALL),--small)

chaos: setup ## EVENTS seeded joins, leaves and kills on a real run, compared with a reference run (SEED=1 EVENTS=20)
	$(BIN)/python benchmarks/chaos.py --seed $(SEED) --events $(EVENTS)

survive: setup ## HISTORIES runs that are killed and resumed, compared with a reference run (SEED=1 HISTORIES=50)
	$(BIN)/python benchmarks/survive.py --seed $(SEED) --histories $(HISTORIES)

crash: setup ## KILLS kills of the controller while jobs and agents come and go, on both databases (SEED=1 KILLS=200)
	$(BIN)/python tests/cluster/controller/controller_kills.py --seed $(SEED) --kills $(KILLS)
	$(BIN)/python tests/cluster/controller/controller_kills.py --seed $(SEED) --kills $(KILLS) --postgres
	$(BIN)/python tests/cluster/controller/agent_kills.py --kills=$(KILLS) --seed=$(SEED)

crash-slurm: setup ## KILLS kills of the controller while jobs on agents under a real Slurm come and go
	$(BIN)/python tests/cluster/controller/slurm_kills.py --seed=$(SEED) --kills=$(KILLS)

clean: ## remove what the targets above have built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
