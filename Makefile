# Everything a developer does. The first use of any target makes .venv and installs the project into it.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
BENCH_INSTALLED := .venv/.bench-installed
DOCS_INSTALLED := .venv/.docs-installed
OLDEST_TESTS := tests/packaging tests/backends/test_choice.py tests/backends/test_products.py \
                tests/kernels/test_kernel_parameters.py tests/estimators/test_regressor.py tests/estimators/test_classifier.py \
                tests/estimators/test_saving.py tests/solvers/test_invariants.py
export OMP_NUM_THREADS ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: demo photograph test test-gpu oldest wheel fuzz fuzz-files fuzz-kills lint docs check bench bench-plan bench-memory figure1 figures23 figures-quick format clean

demo: $(INSTALLED)  ## fit a table of invented houses, predict, write a report: demo/houses.html
	$(BIN)/kernelcg demo --out demo --force

photograph: $(INSTALLED)  ## restore a photograph from a seventh of its pixels, compare solvers, write demo.png
	$(BIN)/python examples/demo.py

test: $(INSTALLED)  ## run all tests, in parallel, one thread each
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -q

test-gpu: $(INSTALLED)  ## on a machine with a GPU: the contract on the card, then benchmarks/gpu.py; goes on where it stopped; WITHIN=590: seconds
	began=$$(date +%s); failed=0; PYTHONPATH=src $(BIN)/python3 benchmarks/gpu.py check || exit; \
	if $(BIN)/python3 -c "import pytest, hypothesis"; then PYTHONPATH=src $(BIN)/python3 -m pytest -q -m gpu || failed=1; fi; \
	within=$(if $(WITHIN),$$(($(WITHIN) + began - $$(date +%s))),inf); \
	PYTHONPATH=src $(BIN)/python3 benchmarks/gpu.py products fits --within $$within && exit $$failed

oldest:  ## install the oldest versions that are allowed into .venv-oldest, run a part of the tests with them
	test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --constraint constraints-oldest.txt . "pytest>=8" "hypothesis>=6.100" "pandas==2.2.*"
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -q -W "ignore::FutureWarning" $(OLDEST_TESTS)

wheel:  ## build the sdist and from it the wheel into dist/; fails without the compiled module
	$(PYTHON) -m pip install --quiet build
	KERNELCG_REQUIRE_NATIVE=1 $(PYTHON) -m build

fuzz-files: $(INSTALLED)  ## change 5,000 model files, checksums recomputed: each is refused in words or works; prints its seed
	OMP_NUM_THREADS=1 $(BIN)/python tests/estimators/mutated_files.py

fuzz-kills: $(INSTALLED)  ## kill 20 fits of each kind at random moments, go on: the same bytes; prints its seed
	OMP_NUM_THREADS=1 $(BIN)/python tests/estimators/killed_fits.py

lint: $(INSTALLED)  ## format, lint, spelling, strict types, import contract
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell src tests benchmarks examples experiments fuzz native docs README.md CHANGELOG.md
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports

docs: $(DOCS_INSTALLED)  ## build the documentation into site/, every link checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

check: lint test docs  ## everything CI checks

bench: $(BENCH_INSTALLED)  ## speed as ratios against peers in the same run; writes benchmarks/results/*.csv
	$(BIN)/python benchmarks/products.py
	$(BIN)/python benchmarks/block_against_batched.py
	$(BIN)/python benchmarks/tuned_problems.py
	$(BIN)/python benchmarks/gp_regression.py --data concrete powerplant --folds 1 --limit 900
	$(BIN)/python benchmarks/gp_classification.py --data credit spambase --folds 1 --limit 900

bench-plan: $(INSTALLED)  ## plans against what happens, what is missing of it (half an hour on two quiet cores); table and picture
	$(BIN)/python benchmarks/plan_against_reality.py

bench-memory: $(INSTALLED)  ## the largest size of processes that fit and predict within a given memory, up to 60,000 rows
	$(BIN)/python benchmarks/memory.py

figure1: $(INSTALLED)  ## run what is missing of the paper's figure 1 (hours on two cores if all is), draw it
	$(BIN)/python experiments/figure1.py
	$(BIN)/python experiments/draw_figure1.py

figures23: $(INSTALLED)  ## run what is missing of the paper's figures 2 and 3 (a day on two cores if all is), draw them
	$(BIN)/python experiments/figures23.py
	$(BIN)/python experiments/draw_figures23.py

figures-quick: $(INSTALLED)  ## the same on data that come with scikit-learn, in two minutes
	$(BIN)/python experiments/figures23.py --quick
	$(BIN)/python experiments/draw_figures23.py --quick

fuzz: $(INSTALLED)  ## generated problems against truths in higher precision, fresh seeds; FUZZ="--seed 7 --count 50"
	$(BIN)/python -m fuzz $(FUZZ)

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(INSTALLED): pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,plot,cli]"
	-$(BIN)/python -m pip install --quiet --constraint constraints.txt "triton; platform_system == 'Linux'"
	touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "mkdocs-material>=9.5" "mkdocstrings[python]>=0.27"
	touch $@

$(BENCH_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt gpytorch
	-$(BIN)/python -m pip install --quiet --constraint constraints.txt pykeops
	touch $@

clean:
	rm -rf .venv build dist demo demo.png site .mypy_cache .ruff_cache .pytest_cache .hypothesis
