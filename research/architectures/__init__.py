"""Every architecture that is tried: captured, sliced, replayed on each engine, and judged operator by operator."""
