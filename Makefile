# Proctor. `make demo` and `make test` each set everything up first; both work in a fresh clone with Python 3.11 and gcc.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_OUT ?= runs/demo-$(shell date +%Y%m%d-%H%M%S)

.PHONY: setup demo test test-fast check format bench clean

setup: $(READY)

# torch comes by pip at the pinned version only: an unpinned torch would be a CUDA build of several gigabytes.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=24" --constraint constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[tasks,dev]"
	touch $(READY)

demo: setup
	$(BIN)/proctor doctor || true
	$(BIN)/proctor run --task forecasting,language_modeling,prefix_sum --tier mini --agent starter,tuner --repeats 2 \
		--budget 45s --silent-snapshots 4 --out "$(DEMO_OUT)"
	$(BIN)/proctor report "$(DEMO_OUT)" --output "$(DEMO_OUT)/report.html"
	@echo "report: $(DEMO_OUT)/report.html"

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-fast: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

check: setup
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

bench: setup
	for script in benchmarks/box_start.py benchmarks/deadline.py benchmarks/harness_cost.py benchmarks/score_roundtrip.py; do \
		$(BIN)/python $$script || exit 1; done

clean:
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
