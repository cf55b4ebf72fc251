.PHONY: setup demo test bench lock
setup:
	@scripts/bootstrap.sh

demo: setup
	.venv/bin/tally demo

test: setup
	.venv/bin/ruff check -q .
	.venv/bin/ruff format --check -q .
	.venv/bin/mypy --no-error-summary
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q -n 2 --dist loadscope --no-loadscope-reorder

bench: setup
	.venv/bin/python -m benchmarks

lock: setup
	scripts/lock.sh
