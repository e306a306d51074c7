"""Benchmarks: workloads, peers measured side by side, and the suites of `tessera bench`."""
