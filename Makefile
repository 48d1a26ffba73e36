PYTHON ?= python

.PHONY: check-compiled compiled differential fuzz test lint bless schema verify verify-cuda docs new-rule bench

test:
	$(PYTHON) -m pytest -q

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

bless: schema
	$(PYTHON) scripts/bless.py

schema:
	$(PYTHON) scripts/make_schema.py

verify:
	$(PYTHON) -m precision_lint verify

docs:
	$(PYTHON) -m mkdocs build --strict

verify-cuda:
	$(PYTHON) -m precision_lint verify --device cuda --output-format json > verify-cuda.json
	$(PYTHON) -m precision_lint verify --device cuda

new-rule:
	$(PYTHON) scripts/new_rule.py $(CODE) $(NAME)

BENCH ?= $(HOME)/.cache/precision-lint-bench

bench:
	$(PYTHON) -m benchmarks.speed $(BENCH) --output benchmarks/results/speed.json
	$(PYTHON) -m benchmarks.speed_page benchmarks/results/speed.json \
		--page benchmarks/results/speed.md --plot docs/assets/speed.svg

FUZZ_SECONDS ?= 60
SEED ?= 0

fuzz:
	$(PYTHON) scripts/fuzz.py --seconds $(FUZZ_SECONDS) --seed $(SEED) --keep fuzz-failures

EXAMPLES ?= 20

differential:
	$(PYTHON) scripts/differential.py --examples $(EXAMPLES)

compiled:
	PRECISION_LINT_MYPYC=1 $(PYTHON) -m pip wheel --no-deps -w dist .

PATHS ?= examples

check-compiled:
	$(PYTHON) scripts/check_compiled.py $(PATHS)
