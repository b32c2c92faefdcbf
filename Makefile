# Two commands matter: `make run` starts it, `make test` proves it. `make help` lists the rest.

comma := ,

# What the environment holds besides the base packages.
EXTRAS ?= dev,spark
# Test processes side by side; 0 runs the tests in this one (for a debugger).
WORKERS ?= 2
# Minutes that `make test-full` may spend.
BUDGET_MIN ?= 60
# The first interpreter that is new enough, and if possible one that can make an environment; 3.11 is
# the one the pins were made with. The system's own comes first: distributions compile theirs with
# profile feedback, version managers mostly do not, and that is a third of the interpreter's speed.
first = $(shell for p in /usr/bin/python3.11 python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys$(1); sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PYTHON ?= $(or $(call first,$(comma) ensurepip$(comma) venv),$(call first))

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.built-$(subst $(comma),+,$(EXTRAS))
RUNNING := $(VENV)/.built-run
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
PYTEST_ALONE := $(BIN)/python -m pytest -n 0 -m alone tests/server/soak
# A tool that only some extras need is looked for only when they are asked for.
SPARK := $(filter spark,$(subst $(comma), ,$(EXTRAS)))
NEEDS := $(if $(SPARK),java)
# A group of its own: one JVM at a time, whose warnings are not ours.
PYTEST_SPARK := $(BIN)/python -m pytest -n 0 tests/spark

# Tests start the command again and again: it is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: setup run quick test test-full check bench clean help java

setup: $(NEEDS) $(STAMP)  ## build .venv with everything, at the pinned versions

$(STAMP): pyproject.toml constraints.txt
	$(call build,.[$(EXTRAS)])
	$(if $(SPARK),$(BIN)/python -m topics.spark.jars)
	@if command -v npm >/dev/null; then npm ci --prefix tests/foreign --no-audit --no-fund --silent; \
		else echo "npm is not there: the tests with clients of Node will be skipped" >&2; fi
	@command -v nginx >/dev/null || $(call unless_served,nginx-light) \
		|| echo "nginx is not there: the test of its configuration will be skipped" >&2
	@touch $@

# What running needs. An environment that has more will do: it is not built anew for less.
$(RUNNING): pyproject.toml constraints.txt
	$(call build,.)
	@touch $@

# Built anew rather than updated, so that a package that is no longer wanted is no longer there.
define build
	@test -n "$(PYTHON)" || { echo "topics needs Python 3.11 or newer: set PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(call apt,$(notdir $(PYTHON))-venv)
	@echo "installing $(1) and what it needs into $(VENV), with $(PYTHON); this is done once" >&2
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		--no-build-isolation -e '$(1)'
endef

java:
	@command -v java >/dev/null || $(call apt,openjdk-17-jre-headless)

# Installs a Debian package where we may, and says what to type where we may not.
apt = { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	&& apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(1); } \
	|| { echo "please install $(1), for example: sudo apt-get install $(1)" >&2; exit 1; }

# The same for a service, which its package would start where there is something to start it.
unless_served = { test ! -d /run/systemd/system && ( $(call apt,$(1)) ); }

run: $(or $(wildcard $(VENV)/.built-*),$(RUNNING))  ## install what the server needs, and start it
	$(BIN)/topics serve

check: setup  ## lint, formatting, types, import directions
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Somebody waits for it, and ends what hangs: a signal for each test is cheaper than a thread. One
# worker more than elsewhere, since half of the time these wait for something too.
quick: WORKERS = 3
quick: setup  ## the gate before every commit: lint, types, fast tests; under 90 seconds
	$(BIN)/ruff check
	$(BIN)/mypy
	$(PYTEST) -m "not slow and not full" --ignore tests/spark --timeout-method signal

test: check  ## check, then every test but the long tier
	$(PYTEST) -m "not full" --ignore tests/spark
	$(if $(SPARK),$(PYTEST_SPARK) -m "not full")

# What runs alone is an hour of abuse, and a million visits of each kind, which take as long.
test-full: check  ## the long tier too, for about BUDGET_MIN=60 minutes, and what runs alone
	TEST_BUDGET_MIN=$(BUDGET_MIN) $(PYTEST) -m "not alone" --ignore tests/spark
	$(if $(SPARK),TEST_BUDGET_MIN=$(BUDGET_MIN) $(PYTEST_SPARK) -m "full or not full")
	TEST_BUDGET_MIN=$(BUDGET_MIN) $(PYTEST_ALONE)

bench: setup  ## side-by-side benchmarks, with Redis as the peer
	@command -v wrk redis-server >/dev/null || $(call apt,wrk redis-server)
	$(BIN)/python -m bench

clean:  ## remove .venv and every cache
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
		.schemathesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
