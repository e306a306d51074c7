"""What only a real GPU can tell; `make gpu-test` runs this folder (tools/gpu.sh, docs/gpu.md)."""
