# `make demo` from a fresh clone needs Python >= 3.11 and make, nothing else: every target that
# runs something first brings `.venv` up to date with pyproject.toml and constraints.txt.

PYTHON ?= python3
# Another index for torch. Without one, and without an NVIDIA device, it is CPU_INDEX, if that can be reached: torch is
# gigabytes smaller there.
TORCH_INDEX ?=
CPU_INDEX := https://download.pytorch.org/whl/cpu
SEEDS ?= 200
FIRST ?= 0
MUTANTS ?=
CASES ?=
EXAMPLES ?=
EVENTS ?= 150
SEED ?= 0
KILLS ?= 30
DURATION_S ?= 600
NUM_SEEDS ?= 1
MINUTES ?= 10
EXPERIMENTS_S ?= 900
GPU_PYTHON ?= python3
GPU_PYTHON_VERSION ?= 3.12
STAGING ?=
TODAY := $(shell date +%F)

STAMP := .venv/.installed
BIN := .venv/bin

.PHONY: install demo test long thorough check simulate churn storms scripts resumes experiments soak coverage equivalence figures \
  exchanges fuzz mutants staging api rounds rounds-quick bench-wan bench-aa gpu-wheels test-gpu bench-staging clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "shoal needs Python >= 3.11, and $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one: make install PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@index='$(TORCH_INDEX)'; \
	  if [ -z "$$index" ] && [ ! -e /dev/nvidiactl ] && ! command -v nvidia-smi > /dev/null && \
	    $(PYTHON) -c 'from urllib.request import urlopen; urlopen("$(CPU_INDEX)/", timeout=10)' 2> /dev/null; \
	    then index='$(CPU_INDEX)'; echo "no NVIDIA device: torch comes from $$index"; fi; \
	  set -x; $(BIN)/python -m pip install --quiet $${index:+--extra-index-url "$$index"} -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m examples.demo

test: $(STAMP)
	$(BIN)/python -m tests.everything

# What takes long, and is shown in small by `make test`.
long: $(STAMP)
	$(BIN)/python -m tests.everything --long

# The laws of the pure packages, with many examples each.
thorough: $(STAMP)
	SHOAL_EXAMPLES=$(or $(EXAMPLES),300) $(BIN)/python -m pytest --timeout 0 -n logical \
	  tests/gossip tests/collectives tests/p2p

check: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

simulate: $(STAMP)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST)

# The same with living processes: kills, joins and leaves in a row, as SEED draws them.
churn: $(STAMP)
	$(BIN)/python -m tests.churn --events $(EVENTS) --seed $(SEED)

# Links that are cut, one way or both, come and go, and hosts that vanish, between four hosts of a network lab.
storms: $(STAMP)
	$(BIN)/python -m tests.storms --seconds $(DURATION_S) --seed $(SEED) --seeds $(NUM_SEEDS)

# Ordinary scripts as seeds draw them, whose peers die, join, leave, are stopped, and go on from checkpoints.
scripts: $(STAMP)
	$(BIN)/python -m tests.scripts --seconds $(DURATION_S) --seed $(SEED)

# Operations as seeds draw them, among peers that die, join and are stopped; their results against plain sums.
exchanges: $(STAMP)
	$(BIN)/python -m tests.exchanges --seconds $(DURATION_S) --seed $(SEED)

# A run that is killed as a whole, and goes on from its checkpoints, so many times.
resumes: $(STAMP)
	$(BIN)/python -m tests.resumes --kills $(KILLS) --seed $(SEED)

# The shipped experiments, with what is expected of their times; reports in OUT, without one in a new folder each time.
experiments: $(STAMP)
	@mkdir -p $(or $(OUT),experiments) && out=$(or $(OUT),$$(mktemp -d experiments/$$(date +%F-%H%M)-XXXX)) && \
	failed=""; all=$$(date +%s); for file in examples/experiments/*.toml; do \
	  name=$$(basename $$file .toml); began=$$(date +%s); \
	  $(BIN)/shoal experiment $$file --out $$out/$$name || failed="$$failed $$name"; \
	  took=$$(($$(date +%s) - all)); \
	  echo "$$name took $$(($$(date +%s) - began)) s, all so far $$took s of the $(EXPERIMENTS_S) that it may take"; \
	done; test -z "$$failed" || { echo "not as expected:$$failed"; exit 1; }; \
	test $$took -le $(EXPERIMENTS_S) || { echo "all took $$took s, and may take $(EXPERIMENTS_S) s"; exit 1; }

# Constant churn for so many minutes: is anything lost, do memory and descriptors stay? The report is kept in OUT.
soak: $(STAMP)
	$(BIN)/python -m bench.soak --minutes $(MINUTES) --seed $(SEED) --out $(or $(OUT),soak)

coverage: $(STAMP)
	SHOAL_EXAMPLES=300 $(BIN)/python -m coverage run -m pytest tests/gossip tests/collectives
	$(BIN)/python -m coverage report --include 'gossip/*,collectives/*' --fail-under 100

# What people write, in one process, with 2 and 3 peers, and with DDP; docs/training-code.md is written from it.
# CASES='NAME ...': those alone, or families of them.
equivalence: $(STAMP)
	$(BIN)/python -m tests.equivalence $(CASES)

figures: $(STAMP)
	$(BIN)/python -m tests.figures

fuzz: $(STAMP)
	SHOAL_EXAMPLES=$(or $(EXAMPLES),10000) $(BIN)/python -m pytest --timeout 0 tests/gossip/test_fuzz.py

# Each rule of the protocol, and each wait for a device, removed in turn: is it noticed? MUTANTS=--from-zero tries every
# seed of the protocol.
mutants: $(STAMP)
	$(BIN)/python -m tests.simulated.mutants $(MUTANTS)
	$(BIN)/python -m tests.p2p.staging.mutants

# Tensors of a stand-in for a device, whose copies are late and in any order: is every element right?
staging: $(STAMP)
	$(BIN)/python -m tests.p2p.staging.campaign --seeds $(SEEDS) --first $(FIRST)

# The same on a GPU, and what its copies take, on a machine with torch for CUDA but without a network and our environment:
# fill .whl with what is missing there (`gpu-wheels`), and take the folder along. Into OUT, or bench/results.
gpu-wheels:
	$(PYTHON) -m pip install --quiet --upgrade --target .whl --no-deps --only-binary=:all: --implementation cp \
	  --python-version $(GPU_PYTHON_VERSION) --platform manylinux_2_28_x86_64 --platform manylinux_2_26_x86_64 \
	  --platform manylinux2014_x86_64 -c constraints.txt pyzmq platformdirs safetensors msgpack xxhash

test-gpu:
	@$(GPU_PYTHON) -m bench.gpu_tests

bench-staging:
	@$(GPU_PYTHON) -m bench.staging $(STAGING)

# docs/api.md, from signatures and docstrings.
api: $(STAMP)
	$(BIN)/python -m tests.p2p.api_page

# What it costs in loss to exchange little and seldom, with simulated workers: the whole table (some 30 minutes on two
# quiet cores), and three seeds of five ways. What is in the file already is not run again.
rounds: $(STAMP)
	$(BIN)/python -m bench.rounds --json $(or $(JSON),bench/results/rounds.json)

rounds-quick: $(STAMP)
	$(BIN)/python -m bench.rounds --quick $(if $(JSON),--json $(JSON))

# Ring or tree over emulated links (under 25 minutes), and the tables of docs/ring-or-tree.md; is one run like the next
# (under 20 minutes)? Both for a quiet machine.
bench-wan: $(STAMP)
	$(BIN)/python -m bench.wan --page docs/ring-or-tree.md --json $(or $(JSON),bench/results/wan-$(TODAY).json)

bench-aa: $(STAMP)
	$(BIN)/python -m bench.aa --json $(or $(JSON),bench/results/aa-$(TODAY).json)

clean:
	rm -rf .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
