"""The store of proved results: entries, the places that keep them, and how they are received.

Nothing that comes from a store is trusted: what an entry says is proved, compiled, checked and
timed again where it arrives (docs/store.md).
"""
