# make demo   sets up, prepares the Python library of this machine, and shows a packed batch; needs no network but pip's
# make test   sets up, and runs the tests
PYTHON ?= python3
PY := .venv/bin/python

.PHONY: demo test lint bench clean

demo: .venv/installed
	$(PY) prepare_data.py demo
	$(PY) examples/show_batch.py

test: .venv/installed
	$(PY) -m pytest

lint: .venv/installed
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

bench: .venv/installed
	$(PY) benchmarks/packing.py
	$(PY) benchmarks/prepare.py
	$(PY) benchmarks/loader.py

.venv/installed: requirements.txt
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --requirement requirements.txt
	touch $@

# what is prepared stays: it may have taken a day
clean:
	rm -rf .venv
