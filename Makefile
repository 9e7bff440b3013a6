# Two commands: `make demo` and `make test`. Both make their own environment in .venv first and can be interrupted and
# repeated. PYTHON names the interpreter the environment is made with (3.11 or newer); ARGS are overrides for the demo.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VLLM := .venv-vllm
MEMBERS := packages/hooks packages/mazeenv[players] packages/grpo-core packages/runner[ray]
GAMES := klotski jigsaw matchstick firstperson
EDITABLE := $(foreach member,$(MEMBERS),-e $(member)) -e plugins/fsspec[testing] $(foreach name,$(GAMES),-e plugins/$(name)) \
	-e plugins/gymnasium[testing] -e examples/own-plugin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-vllm faults soak lint install install-vllm clean

demo: install
	$(BIN)/grpo-run train examples/maze-tiny.toml $(ARGS)

# One thread a process: the models of the tests are too small to share, and CI machines are busy.
test: install lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --ignore tests/vllm

# The engine vllm on a real vLLM, in an environment of its own: its pins are not those of constraints-cpu.txt.
test-vllm: install-vllm
	OMP_NUM_THREADS=1 PYTHONPATH=tests/vllm/support $(VLLM)/bin/python -m pytest -q tests/vllm

soak: install-vllm
	OMP_NUM_THREADS=1 PYTHONPATH=tests/vllm/support $(VLLM)/bin/python tests/vllm/support/soak.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# kill -9 at 200 seeded instants of real runs; a bounded number of kills, about a quarter of an hour on one core.
faults: install
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/faults/campaign.py --kills 200

install: $(STAMP)

# The stamp comes last: an installation that was interrupted is done again.
$(STAMP): constraints-cpu.txt pyproject.toml $(wildcard packages/*/pyproject.toml plugins/*/pyproject.toml) examples/own-plugin/pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(0 if sys.version_info >= (3, 11) else 'Python 3.11 or newer is needed: make PYTHON=python3.11 …')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints-cpu.txt torch
	$(BIN)/pip install --quiet -c constraints-cpu.txt $(EDITABLE) -r requirements-dev.txt
	touch $@

install-vllm: $(VLLM)/.installed

# What is taken away again is for sound only, and its builds need not fit a torch without CUDA.
$(VLLM)/.installed: constraints-vllm.txt requirements-vllm.txt $(wildcard packages/*/pyproject.toml)
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet -c constraints-vllm.txt torch
	$(VLLM)/bin/pip install --quiet -c constraints-vllm.txt $(foreach member,$(MEMBERS),-e $(member)) -r requirements-vllm.txt
	$(VLLM)/bin/pip uninstall --quiet --yes torchaudio torchcodec
	touch $@

clean:
	rm -rf $(VENV) $(VLLM) runs build dist
