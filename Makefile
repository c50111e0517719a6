# make demo   sets up, prepares the Python library of this machine, and shows a packed batch; needs no network but pip's
# make test   sets up, and runs the tests that a contributor waits for; make test-all those that are marked slow too
PYTHON ?= python3
PY := .venv/bin/python

# Bytecode is written when a module is first imported: to compile all of torch while it is installed takes half a minute,
# and where an image forbids to keep any, each of the many Pythons that a command starts compiles it again.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(PY) -m pip install --quiet --no-compile

.PHONY: demo test test-all train chat torture fuzz picture docs lint bench tables clean

demo: .venv/installed
	$(PY) prepare_data.py demo > .venv/demo.txt
	$(PY) -m tokenmill show "$$(tail -n 1 .venv/demo.txt)" --batch 0 --batch-size 4 --world-size 1 --seq-len 2048
	@cat .venv/demo.txt
	@echo "next: \`make train\` trains a small GPT on it for three minutes, and for a set of your own text, run"
	@echo "  .venv/bin/tokenmill prepare --source FILE_OR_FOLDER"

PYTEST = OMP_NUM_THREADS=1 $(PY) -m pytest --dist loadfile --no-loadscope-reorder

# three processes on two cores, as many tests wait for processes, servers and disks
test: .venv/tools
	$(PYTEST) --numprocesses 3 -m "not slow"

# what CI runs: other people's frameworks, Ray, another Python, a type checker, kills and damage at random too
test-all: .venv/tools
	$(PYTEST) --numprocesses 3

# a few million parameters, for three minutes, on what `make demo` makes; again: goes on where it ended
train: .venv/installed
	@[ -e .venv/demo.txt ] || $(MAKE) demo
	@AGAIN="make train" $(PY) examples/train_gpt.py --tokens "$$(tail -n 1 .venv/demo.txt)" --checkpoint data/checkpoints/demo.pt

# fine-tunes what `make train` has made on some thousand conversations, in three minutes; again: goes on where it ended
chat: .venv/installed
	@[ -e .venv/demo.txt ] || $(MAKE) demo
	@[ -e data/checkpoints/demo.pt ] || $(MAKE) train
	@[ -e data/chats/val.jsonl ] || $(PY) examples/chat_data.py
	@$(PY) prepare_data.py --source data/chats --val-file val.jsonl --chat nanochat --name chats \
		--tokenizer "$$(tail -n 1 .venv/demo.txt)/tokenizer.json" > .venv/chat.txt
	@AGAIN="make chat" $(PY) examples/train_gpt.py --tokens "$$(tail -n 1 .venv/chat.txt)" --start-from data/checkpoints/demo.pt \
		--checkpoint data/checkpoints/chat.pt --learning-rate 1e-3 --steps 120 --val-every 40

# kills preparations of 80 sets at random moments, some 200 times
torture: .venv/tools
	KILLED_SETS=80 $(PYTEST) --numprocesses 2 --dist load tests/prepare/test_torture.py -k killed

# damages what tokenmill reads at random; CASES and SEED name others
CASES ?= 5000
SEED ?= $(shell date +%s)
fuzz: .venv/tools
	CASES=$(CASES) SEED=$(SEED) $(PYTEST) tests/test_fuzz.py

# those of README and docs, with a Chromium
picture: .venv/tools
	[ -e .venv/demo.txt ] || $(MAKE) demo
	[ -e .venv/chat.txt ] || $(MAKE) chat
	$(PY) docs/picture.py "$$(tail -n 1 .venv/demo.txt)" "$$(tail -n 1 .venv/chat.txt)"
	$(PY) docs/order_picture.py
	$(PY) docs/show_picture.py "$$(tail -n 1 .venv/demo.txt)"
	$(PY) docs/run_notebook.py

# a site of all pages, in site/
docs: .venv/tools
	$(PY) docs/make_site.py
	@echo "open site/index.html; its search needs a server: python -m http.server --directory site"

lint: .venv/tools
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m check_jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	.venv/bin/zizmor --offline --quiet .github/workflows

# on what `make demo` made; SOURCE, TOKENIZER and TOKENS name others
SOURCE ?= data/raw/stdlib
TOKENIZER ?= data/tokenizers/stdlib-bpe8192.json
TOKENS ?= $(wildcard data/tokens/stdlib-bpe8192-*/)
bench: .venv/tools
	$(PY) benchmarks/packing.py $(TOKENS)
	$(PY) benchmarks/prepare.py $(SOURCE) $(TOKENIZER)
	$(PY) benchmarks/loader.py
	$(PY) benchmarks/steps.py $(TOKENS)
	$(PY) benchmarks/remote.py

# after a change of an engine's or tiktoken's pinned version
tables: .venv/tools
	PYTHONPATH=.:tests $(PY) tests/tables.py

.venv/installed: requirements.txt
	$(PYTHON) -m venv .venv
	-$(PIP) --upgrade pip  # that of an older Python takes half a minute longer to choose versions
	$(PIP) --requirement requirements.txt
	$(PIP) --no-deps --editable .  # the command `tokenmill`, and `import tokenmill` in any folder
	touch $@

# what the tests need
.venv/tools: requirements-test.txt .venv/installed
	$(PIP) --requirement requirements-test.txt
	touch $@

# what is prepared stays: it may have taken a day
clean:
	rm -rf .venv
