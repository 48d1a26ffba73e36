PYTHON ?= python

.PHONY: test lint bless verify new-rule

test:
	$(PYTHON) -m pytest -q

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

bless:
	$(PYTHON) scripts/bless.py

verify:
	$(PYTHON) -m precision_lint verify

new-rule:
	$(PYTHON) scripts/new_rule.py $(CODE) $(NAME)
