"""Benchmarks and proofs of kvfs: they run vLLM and its tools as processes and are never in the wheel."""
