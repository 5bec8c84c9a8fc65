# Two commands set everything up: `make demo` and `make test`. Only Python and git are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test test-slow test-kills fuzz test-typed lint types bench bench-torch portfolio-table rates autotune-table clean
help:
	@echo "make demo        solve a portfolio on made-up returns; leaves demo/report.html"
	@echo "make test        all tests but the slow ones"
	@echo "make test-slow   the slow ones"
	@echo "make test-kills  the slow ones about checkpoints: killed processes, random chains"
	@echo "make fuzz        100,000 damaged files, for everything that reads files"
	@echo "make test-typed  the tests of the mathematics, with annotations checked at run time"
	@echo "make lint types  style, format and types"
	@echo "make portfolio-table   every method on real portfolios (NESTAX_DATA), into docs/comparison.md"
	@echo "make rates             how samples grow with accuracy, into docs/rates.md (hours; --jobs helps)"
	@echo "make autotune-table    settings found by themselves against a grid, into docs/theory.md"
	@echo "make bench       the speed tables (bench-torch installs PyTorch for one row of them)"

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[plot]" --group dev
	touch $(READY)

demo: $(READY)
	$(BIN)/nestax demo --out demo --overwrite

test: $(READY)
	$(BIN)/python -m pytest -m "not slow" -n 2

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

test-kills: $(READY)
	$(BIN)/python -m pytest tests/checkpoints/test_kills.py tests/checkpoints/test_properties.py

fuzz: $(READY)
	$(BIN)/python tests/fuzz/fuzzing.py 100000

# The annotations, checked while the tests of the mathematics run.
test-typed: $(READY)
	$(BIN)/python -m pytest -n 2 --jaxtyping-packages=nestax,beartype.beartype \
		tests/estimators tests/laws tests/test_level.py tests/test_source.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/basedpyright

bench: $(READY)
	$(BIN)/python benchmarks/bench.py

rates: $(READY)
	$(BIN)/python benchmarks/rates.py

autotune-table: $(READY)
	$(BIN)/python benchmarks/autotune.py

portfolio-table: $(READY)
	$(BIN)/python benchmarks/portfolio_methods.py

bench-torch: $(READY)
	test -x .venv-torch/bin/python || $(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet torch==2.13.0 numpy
	NESTAX_TORCH_PYTHON=.venv-torch/bin/python $(BIN)/python benchmarks/bench.py single

clean:
	rm -rf $(VENV) .venv-torch demo dist
