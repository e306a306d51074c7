"""The benchmark of Mirage's workloads on an NVIDIA GPU: peers, timing by events, limits."""
