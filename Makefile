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

.PHONY: demo docs map notebooks check types compiled test functional test-engines soak rck bench-clients bench-server bench-commits bench-spark bench-console bench-gateway bench-store bench-columns bench-sql bench-search bench-maintenance bench-scale clean

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

check: $(SYNCED) docs types
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) pytest -q tests/test_layers.py tests/test_architecture.py

types: $(SYNCED)
	$(RUN) mypy

# Compiles all tests once, for the processes of pytest that would each do it at the same time. They report what is wrong.
compiled: $(SYNCED)
	$(RUN) pytest -q --collect-only >/dev/null || true

# Tests make and sync thousands of small files: a file system in memory, where one has 4 GB free, halves their time.
IN_MEMORY = if [ "$$(df -Pk /dev/shm 2>/dev/null | awk 'END {print $$4}')" -gt 4000000 ] 2>/dev/null; then \
    TMPDIR=$$(mktemp -d /dev/shm/lancehouse-XXXXXX); export TMPDIR; chmod 711 "$$TMPDIR"; trap 'rm -rf "$$TMPDIR"' EXIT; fi;

PARALLEL = --dist loadfile --no-loadscope-reorder --durations 40
# Tests wait for servers half of the time.
TWICE_THE_CORES = $(shell expr 2 '*' $$(getconf _NPROCESSORS_ONLN))

# The checks take one core for a minute, beside the tests.
test: $(SYNCED)
	$(MAKE) --no-print-directory -j 2 check functional

functional: compiled
	$(IN_MEMORY) $(RUN) pytest -q -m "not engines" -n $(TWICE_THE_CORES) --maxprocesses 8 $(PARALLEL)

# What starts other engines: Spark, clusters, Connect, Ray, Daft, Spark 4.1, lance-spark, Node, notebooks, examples, benchmarks.
test-engines: $(SYNCED) $(SPARK41) $(LANCE_SPARK) $(STORES)
	# Spark waits ten seconds for the Python of a stream to start, which takes longer on a machine that others share.
	$(IN_MEMORY) $(RUN) pytest -q -m engines --reruns 2 --only-rerun "failed to connect back" -n auto --maxprocesses 4 $(PARALLEL)

soak: check $(SPARK41) $(LANCE_SPARK) $(STORES)
	# A machine that others share pauses: an attack during which the server answers late is run again, up to twice.
	$(RUN) pytest -q --soak --reruns 2 --only-rerun "/health/live took"

rck: $(SYNCED)
	$(RUN) python -m tests.servers.rck

bench-clients: $(SYNCED)
	$(RUN) python -m bench.clients

bench-server: $(SYNCED)
	$(RUN) python -m bench.server

bench-commits: $(SYNCED)
	$(RUN) python -m bench.commits

bench-spark: $(SYNCED) $(LANCE_SPARK)
	$(RUN) python -m bench.spark

bench-console: $(SYNCED)
	$(RUN) python -m bench.console

bench-store: $(SYNCED) $(STORES)
	$(RUN) python -m bench.store

bench-columns: $(SYNCED)
	$(RUN) python -m bench.columns

bench-sql: $(SYNCED) $(LANCE_SPARK)
	$(RUN) python -m bench.sql

bench-search: $(SYNCED)
	$(RUN) python -m bench.search

bench-maintenance: $(SYNCED) $(STORES)
	$(RUN) python -m bench.maintenance

bench-scale: $(SYNCED)
	$(RUN) python -m bench.scale

bench-gateway: $(SYNCED)
	$(RUN) python -m bench.gateway

$(SYNCED): pyproject.toml uv.lock | $(UV)
	$(UV) sync --frozen --all-extras --all-groups --python "$(PYTHON)"
	@touch $@

# A real S3 and a Google store, built with Go, and an Azure store, for Node; where these are missing, moto stands in for S3. Prometheus comes from Debian.
$(STORES): tests/servers/versitygw.py tests/servers/fake_gcs.py tests/servers/azurite.py tests/servers/prometheus.py $(SYNCED)
	$(RUN) python -m tests.servers.versitygw
	$(RUN) python -m tests.servers.fake_gcs
	$(RUN) python -m tests.servers.azurite
	$(RUN) python -m tests.servers.prometheus
	@touch $@

# Iceberg's Spark connector runs on an older Spark than ours: an environment of its own, in the user's cache folder.
$(SPARK41): tests/servers/spark41.txt tests/servers/jars.py $(SYNCED)
	$(RUN) python -m tests.servers.spark41
	@touch $@

# lance-spark runs on an older one still.
$(LANCE_SPARK): tests/servers/lance_spark.txt tests/servers/lance_spark.py tests/servers/jars.py $(SYNCED)
	$(RUN) python -m tests.servers.lance_spark
	@touch $@

.cache/uv/bin/uv:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed" >&2; exit 1; }
	"$(PYTHON)" -m venv .cache/uv
	.cache/uv/bin/pip install --quiet uv

clean:
	rm -rf .venv .cache dist site .mypy_cache .ruff_cache .pytest_cache
