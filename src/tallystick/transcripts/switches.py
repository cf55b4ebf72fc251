"""The settings of a process that choose among kernels of the installed libraries, and so decide the last bits."""

from __future__ import annotations

import re
from typing import Final

CAPABILITY: Final = "ATEN_CPU_CAPABILITY"
SWITCHES: Final = (CAPABILITY, "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE")
"""Environment variables that a run may state and that only choose among kernels of the installed libraries."""
VALUE: Final = re.compile(r"[A-Za-z0-9_,]{0,32}", re.ASCII)
"""What such a variable may be set to on the word of a prover."""
THREADS: Final = "OMP_NUM_THREADS"
THREADS_MAX: Final = 256
