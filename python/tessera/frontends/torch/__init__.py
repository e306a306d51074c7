"""Graphs of PyTorch's core ATen operators (as AOTAutograd makes them) to programs."""
