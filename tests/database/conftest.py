from __future__ import annotations

from tests.support.workload_databases import empty as empty, place as place
