# Two commands do all the set-up: `make demo` and `make test`. They bring uv, a Java, a Spark and the jars where these are missing.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
    "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v "$$p" && break; done)
UV ?= $(shell command -v uv || echo .cache/uv/bin/uv)
RUN = $(UV) run --frozen --no-sync
SYNCED = .venv/.synced
SPARK41 = .venv/.spark41
LANCE_SPARK = .venv/.lance_spark
STORES = .venv/.stores

# Spark starts a Python process for each plan and each task; without bytecode, each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs map notebooks check test test-engines soak rck bench-clients bench-server bench-commits bench-spark bench-console bench-gateway bench-store clean

demo: $(SYNCED)
	$(RUN) lancehouse demo

# Fails on a link that leads nowhere.
docs: $(SYNCED)
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict --quiet

# The table of modules in docs/architecture.md.
map: $(SYNCED)
	$(RUN) python -m tools.module_map

# Executes them, and stores what their cells show.
notebooks: $(SYNCED)
	$(RUN) python -m notebooks.run

check: $(SYNCED) docs
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) pytest -q tests/test_layers.py tests/test_architecture.py

PARALLEL = --dist loadfile --no-loadscope-reorder --durations 40
# Tests wait for servers half of the time.
TWICE_THE_CORES = $(shell expr 2 '*' $$(getconf _NPROCESSORS_ONLN))

test: check
	$(RUN) pytest -q -m "not engines" -n $(TWICE_THE_CORES) --maxprocesses 8 $(PARALLEL)

# What starts other engines: Spark, clusters, Connect, Ray, Daft, Spark 4.1, lance-spark, Node, notebooks, examples, benchmarks.
test-engines: $(SYNCED) $(SPARK41) $(LANCE_SPARK) $(STORES)
