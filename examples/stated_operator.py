"""An operator of one's own, in a program that is made faster: of `bump` Tessera knows that
bump(-x) = -bump(x), so that two of them are one.

tessera optimize examples/stated_operator.py
"""

import numpy as np

import tessera as ts

example_inputs = {"x": "f32[512,512]", "y": "f32[512,512]"}
bump = ts.operator("bump", "x / (1 + x*x*x*x)", law="odd")


def swing(x, y):  # type: ignore[no-untyped-def]
    return np.sum(bump(x - y) - bump(y - x), axis=1)
