# Two commands do all the set-up: `make demo` and `make test`. They bring uv, a Java, a Spark and the jars where these are missing.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
    "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v "$$p" && break; done)
UV ?= $(shell command -v uv || echo .cache/uv/bin/uv)
RUN = $(UV) run --frozen --no-sync
SYNCED = .venv/.synced
SPARK41 = .venv/.spark41
LANCE_SPARK = .venv/.lance_spark

.PHONY: demo check test soak rck bench-clients bench-server bench-commits bench-spark clean

demo: $(SYNCED)
	$(RUN) python -m examples.demo

check: $(SYNCED)
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) pytest -q tests/test_layers.py

test: check $(SPARK41)
	$(RUN) pytest -q -n auto --maxprocesses 4 --dist loadfile

soak: check $(SPARK41)
	$(RUN) pytest -q --soak

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

$(SYNCED): pyproject.toml uv.lock | $(UV)
	$(UV) sync --frozen --all-extras --all-groups --python "$(PYTHON)"
	@touch $@

# Iceberg's Spark connector runs on an older Spark than ours: an environment of its own, in the user's cache folder.
$(SPARK41): tests/servers/spark41.txt tests/servers/jars.py $(SYNCED)
	$(RUN) python -m tests.servers.spark41
	@touch $@

# lance-spark runs on an older one still.
$(LANCE_SPARK): bench/lance_spark.txt bench/lance_spark.py tests/servers/jars.py $(SYNCED)
	$(RUN) python -m bench.lance_spark
	@touch $@

.cache/uv/bin/uv:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed" >&2; exit 1; }
	"$(PYTHON)" -m venv .cache/uv
	.cache/uv/bin/pip install --quiet uv

clean:
	rm -rf .venv .cache dist site .mypy_cache .ruff_cache .pytest_cache
