# Two commands: `make demo` and `make test`. Both make their own environment in .venv first and can be interrupted and
# repeated. PYTHON names the interpreter the environment is made with (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MEMBERS := packages/hooks packages/mazeenv[players] packages/grpo-core packages/runner
GAMES := klotski jigsaw matchstick firstperson
EDITABLE := $(foreach member,$(MEMBERS),-e $(member)) -e plugins/fsspec[testing] $(foreach name,$(GAMES),-e plugins/$(name)) \
	-e plugins/gymnasium[testing] -e examples/own-plugin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint install clean

demo: install
	$(BIN)/grpo-run train examples/maze-tiny.toml

# One thread a process: the models of the tests are too small to share, and CI machines are busy.
test: install lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(STAMP)

# The stamp comes last: an installation that was interrupted is done again.
$(STAMP): constraints-cpu.txt pyproject.toml $(wildcard packages/*/pyproject.toml plugins/*/pyproject.toml) examples/own-plugin/pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(0 if sys.version_info >= (3, 11) else 'Python 3.11 or newer is needed: make PYTHON=python3.11 …')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints-cpu.txt torch
	$(BIN)/pip install --quiet -c constraints-cpu.txt $(EDITABLE) -r requirements-dev.txt
	touch $@

clean:
	rm -rf $(VENV) runs build dist
