"""What only a real GPU can tell; `make gpu-test` runs this folder (run.sh, docs/gpu.md)."""
