.PHONY: setup demo test check vllm bench lock
setup:
	@scripts/bootstrap.sh

demo: setup
	.venv/bin/tally demo

test: setup
	.venv/bin/ruff check -q .
	.venv/bin/ruff format --check -q .
	.venv/bin/mypy --no-error-summary
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q -n 2 --dist loadscope --no-loadscope-reorder

check:
	.venv/bin/ruff check -q .
	.venv/bin/ruff format --check -q .
	.venv/bin/mypy --no-error-summary
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q -x -n 2 $$(.venv/bin/python scripts/changed_tests.py)

vllm:
	scripts/vllm_environment.sh .vllm
	VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 .vllm/bin/python -m pytest -q -m vllm tests/recording/serving/vllm

bench: setup
	.venv/bin/python -m benchmarks

lock: setup
	scripts/lock.sh
