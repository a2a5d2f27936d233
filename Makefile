# Two commands for a fresh machine: `make demo` and `make test`. Both build .venv themselves: the demo installs what the
# command line needs, and the tests what everything needs.
PYTHON ?= python3
BIN := .venv/bin
COMMAND := .venv/.command
INSTALLED := .venv/.installed

.PHONY: demo test fuzz lint types docs notebooks bench report constraints clean

demo: $(COMMAND)
	@$(BIN)/remnant demo

test: lint types
	$(BIN)/python -m pytest -n 2

# Damages files in thousands of ways and prints what became of them. One kind only: make fuzz FUZZ=archive
fuzz: $(INSTALLED)
	PYTHONPATH=tests:tests/data:tests/faults OMP_NUM_THREADS=1 $(BIN)/python tests/faults/fuzz.py $(FUZZ)
	$(BIN)/python -m pytest -m long

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

# The figures are for one core, so numpy must use one thread too: torch uses one in a run.
ONE_CORE := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
bench: $(INSTALLED)
	$(BIN)/python benchmarks/start.py
	$(ONE_CORE) $(BIN)/python benchmarks/pmnist_step.py
	$(ONE_CORE) $(BIN)/python benchmarks/consolidation.py --cpu
	$(BIN)/python benchmarks/memory.py
	$(ONE_CORE) $(BIN)/python benchmarks/accuracy.py --seeds 2 --set training.epochs=1 --set stream.tasks=3
	$(ONE_CORE) $(BIN)/python benchmarks/growth.py --quick
	$(ONE_CORE) $(BIN)/python benchmarks/attached_step.py

report: $(COMMAND)
	$(BIN)/remnant report results -o report --docs docs

docs: $(INSTALLED)
	$(BIN)/pip install -q -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

notebooks: $(INSTALLED)
	$(BIN)/pip install -q nbclient ipykernel
	$(BIN)/python examples/make_notebooks.py

# Installs the newest versions into a fresh environment and pins them. A local suffix (torch+cpu) depends on the index.
constraints:
	$(PYTHON) -m venv .venv-new
	.venv-new/bin/pip install -q --disable-pip-version-check -e '.[dev,docs]'
	@echo '# The versions that CI and `make` install. Refresh them with `make constraints`.' > constraints.txt
	.venv-new/bin/pip freeze --exclude-editable | grep -v ' @ ' | sed 's/+[a-z0-9.]*$$//' >> constraints.txt
	rm -rf .venv-new

$(COMMAND): pyproject.toml constraints.txt
	@echo "Setting up .venv (once; PyTorch is large)…"
	@$(PYTHON) -c 'import sys; sys.exit("Remnant needs Python 3.11 or newer: make PYTHON=python3.11 …" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[cli,report]'
	@touch $@

$(INSTALLED): $(COMMAND)
	@echo "Installing what the tests need (once)…"
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv .venv-new .mypy_cache .ruff_cache .hypothesis site
