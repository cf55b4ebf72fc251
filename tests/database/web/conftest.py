from __future__ import annotations

from tests.recording.serving.conftest import loopback_only as loopback_only
from tests.support.services import service as service, unheard as unheard
from tests.support.workload_databases import empty as empty, place as place
