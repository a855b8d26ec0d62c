# `make demo` and `make test` set everything up themselves.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
WORDS ?=
TESTS ?=
PARTS ?=

.PHONY: demo test lint bench schema clean

demo: $(VENV)/ready
	$(BIN)/python examples/g2p.py $(WORDS)
	$(BIN)/python examples/minilm.py

test: $(VENV)/ready
	$(BIN)/python -m pytest -n 2 --dist worksteal $(TESTS)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	rm -rf build/types build/lib
	$(BIN)/pip install -q --no-deps --target build/types .
	MYPYPATH=build/types $(BIN)/mypy -p nnspec

bench: $(VENV)/ready
	$(BIN)/pip install -q -c constraints.txt -e '.[bench]'
	$(BIN)/python tests/bench/run.py -o build/bench.json $(PARTS)

schema: $(VENV)/ready
	$(BIN)/python -m nnspec.schema > specs/schema.json

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[test,lint,demo]'
	touch $@

clean:
	rm -rf build $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
