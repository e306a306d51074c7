"""`Runner` runs a compiled module on NumPy arrays, CPU tensors and device arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tessera import _core
from tessera.errors import BadInputError, WrongTypeError
from tessera.torch_arrays import from_tensor, is_tensor
from tessera.types import Arguments, Array, DType, Function, Value, Values, require_array, to_numpy

_BY_WORDS = {"bf16": np.dtype(np.uint16)}  # dtypes that Python's buffer protocol does not know
_LEAST_FOR_OTHERS = 2e-5  # seconds for which a call lets other Python threads run
_MOST_DIRECT = 256  # results of a direct call
_MOST_WEIGHT_SETS = 4  # per program; the oldest is forgotten
Span = tuple[int, int]  # of memory without gaps: its address and bytes


@dataclass(frozen=True)
class _WeightSet:
    """What a module prepared from one set of weights."""

    prepared: _core.PreparedWeights
    given: list[Array]  # kept, so that their identities cannot be used again
    contents: _core.ArrayContents
    copies: dict[int, Array]  # of those that the module cannot read as they are


def _is_immutable(array: Array) -> bool:
    """Whether an array is a view of bytes, which nothing can change."""
    base: Value = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, bytes)


class Runner:
    """A compiled module on arrays: checks types, allocates results."""

    def __init__(self, module: _core.Module, names: Sequence[str], frozen: bool = False) -> None:
        self._module = module
        self._frozen = frozen  # nobody writes to weights
        self._inputs = [
            (name, to_numpy(dtype), tuple(shape), _BY_WORDS.get(dtype))
            for name, (dtype, shape) in zip(names, module.input_types, strict=True)
        ]
        self._outputs = [
            (to_numpy(dtype), tuple(shape), _BY_WORDS.get(dtype))
            for dtype, shape in module.output_types
        ]
        self._words_out = any(words is not None for _, _, words in self._outputs)
        self._weights = tuple(module.weights)
        self._sets: dict[tuple[int, ...], _WeightSet] = {}
        self._may_overwrite = functools.cache(module.may_overwrite)

    def aim(self, call: _core.Call, finish: Function | None, seconds: float) -> bool:
        """Has a direct call run the module; False where it cannot. A run takes about `seconds`."""
        words_in = any(words is not None for _, _, _, words in self._inputs)
        if self._words_out or words_in or self._weights or len(self._outputs) > _MOST_DIRECT:
            return False
        outputs = [(shape, dtype) for dtype, shape, _ in self._outputs]
        call.run_module(self._module, outputs, finish, seconds > _LEAST_FOR_OTHERS)
        return True

    def fits(self, arrays: Values) -> bool:
        """Whether these are arrays of the program's types."""
        return all(
            type(a) is np.ndarray and a.dtype == dtype and a.shape == shape
            for a, (_, dtype, shape, _) in zip(arrays, self._inputs, strict=True)
        )

    def __call__(self, arrays: Values, out: Value = None) -> list[Array]:
        if len(arrays) != len(self._inputs):
            raise BadInputError(f"expected {len(self._inputs)} arrays, got {len(arrays)}")
        prepared = None
        if self._weights:
            arrays = list(arrays)
            prepared = self._prepared(arrays)
        plain = not self._words_out
        if out is None:
            outputs = [np.empty(shape, dtype) for dtype, shape, _ in self._outputs]
        else:
            outputs = given_outputs(out, [(dtype, shape) for dtype, shape, _ in self._outputs])
            ready = [a for a in arrays if type(a) is np.ndarray]
            plain &= not any(np.may_share_memory(r, a) for r in outputs for a in ready)
        # The common case, arrays of exactly the right types, is settled without a loop here.
        if plain and self._module.run_exactly(arrays, outputs, prepared):
            return outputs
        inputs = []
        for array, (name, dtype, shape, words) in zip(arrays, self._inputs, strict=True):
            fits = type(array) is np.ndarray and array.dtype == dtype and array.shape == shape
            if not (fits and array.flags.c_contiguous):
                array = np.asarray(self._array(array, name, dtype, shape), order="C")
            inputs.append(array if words is None else array.view(words))
        if out is not None:
            read = [(address_of(a), a.nbytes) for a in inputs]
            written = [(address_of(a), a.nbytes) for a in outputs]
            names = [name for name, *_ in self._inputs]
            refuse_overlaps(read, written, names, self._may_overwrite)
        views = [
            array if words is None else array.view(words)
            for array, (_, _, words) in zip(outputs, self._outputs, strict=True)
        ]
        self._module.run(inputs, views, prepared)
        return outputs

    def refresh(self) -> None:
        """Forgets what was computed from weights: the next call does it again."""
        self._sets.clear()

    def _prepared(self, arrays: list[Array]) -> _core.PreparedWeights:
        """What was prepared from these weights, known by where they lie and what they hold; each
        becomes an array that the module can read."""
        key = tuple(id(arrays[i]) for i in self._weights)
        known = self._sets.get(key) if self._frozen else None
        if known is None:
            given, views = [arrays[i] for i in self._weights], []
            for i in self._weights:
                name, dtype, shape, words = self._inputs[i]
                arrays[i] = array = self._array(arrays[i], name, dtype, shape)
                views.append(array if words is None else array.view(words))
            known = next((k for k in self._sets.values() if k.contents.same(views)), None)
            if known is None:
                while len(self._sets) >= _MOST_WEIGHT_SETS:
                    del self._sets[next(iter(self._sets))]
                known = self._sets[key] = self._prepare(arrays, given, views)
        for i, copy in known.copies.items():
            arrays[i] = copy
        return known.prepared

    def _prepare(self, arrays: Values, given: list[Array], views: list[Array]) -> _WeightSet:
        fixed = [self._frozen or _is_immutable(v) for v in views]
        contents = _core.ArrayContents(views, fixed)
        of: list[Array | None] = [None] * len(self._inputs)
        copies = {}
        for i, view in zip(self._weights, views, strict=True):
            of[i] = np.asarray(view, order="C")
            if of[i] is not view:
                copies[i] = np.asarray(arrays[i], order="C")
            elif self._frozen and arrays[i] is not given[self._weights.index(i)]:
                copies[i] = arrays[i]  # where only identities are looked at
        return _WeightSet(self._module.prepare(of), given, contents, copies)

    def _array(self, value: Value, name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        """An argument that is not ready as it is: converted, or refused."""
        array: Array = value
        if not isinstance(value, np.ndarray):
            array = from_tensor(value) if is_tensor(value) else self._convert(value, name, dtype)
        require_array(array, f"argument {name}", dtype, shape)
        return array

    @staticmethod
    def _convert(value: Value, name: str, dtype: DType) -> Array:
        """Scalars and lists, where no information is lost."""
        try:
            array = np.asarray(value)
        except Exception as error:
            raise WrongTypeError(f"argument {name} is not an array: {error}") from None
        weak = isinstance(value, (bool, int, float, list, tuple))
        if weak and array.dtype.kind in "biuf" and np.can_cast(array.dtype, dtype, "same_kind"):
            return array.astype(dtype)
        return array


def given_outputs(out: Value, types: Sequence[tuple[DType, tuple[int, ...]]]) -> list[Array]:
    """The caller's arrays or CPU tensors for results of these types, as arrays to write to."""
    given = list(out) if isinstance(out, (tuple, list)) else [out]
    if len(given) != len(types):
        raise BadInputError(f"out must hold {len(types)} arrays, one per result, not {len(given)}")
    arrays: list[Array] = []
    for i, (value, (dtype, shape)) in enumerate(zip(given, types, strict=True)):
        name = out_name(i, len(given))
        if is_tensor(value):
            if value.requires_grad:
                raise BadInputError(f"{name} requires a gradient; give {name}.detach()")
            value = from_tensor(value)
        if not isinstance(value, np.ndarray):
            raise WrongTypeError(
                f"{name} must be a NumPy array or a torch tensor, not {type(value).__name__}"
            )
        require_array(value, name, dtype, shape)
        if not value.flags.c_contiguous:
            raise BadInputError(
                f"{name} must be contiguous (C order), but has gaps or another order"
            )
        if not value.flags.writeable:
            raise BadInputError(f"{name} is read-only")
        for j, other in enumerate(arrays):
            if np.may_share_memory(value, other):
                raise BadInputError(
                    f"{name} and {out_name(j, len(given))} share memory; each needs its own"
                )
        arrays.append(value)
    return arrays


def refuse_overlaps(
    inputs: Sequence[Span],
    outputs: Sequence[Span],
    names: Sequence[str],
    may_overwrite: Callable[[int, int], bool],
) -> None:
    """Raises where writing a result would change another one, or what is still to be read."""
    for o, result in enumerate(outputs):
        name = out_name(o, len(outputs))
        if any(_meet(result, other) for other in outputs[:o]):
            raise BadInputError(f"{name} shares memory with another result")
        for i, array in enumerate(inputs):
            if _meet(result, array) and not (result == array and may_overwrite(i, o)):
                raise BadInputError(
                    f"{name} shares memory with argument {names[i]}, which the program reads while "
                    "it writes results; give it memory of its own"
                )


def _meet(a: Span, b: Span) -> bool:
    return a[0] < b[0] + b[1] and b[0] < a[0] + a[1]


def out_name(position: int, count: int) -> str:
    """How messages name one of so many results that are written to."""
    return "out" if count == 1 else f"out[{position}]"


def address_of(array: Array) -> int:
    """Where an array's first element lies."""
    return int(array.__array_interface__["data"][0])


def order_of(array: Value) -> tuple[int, ...] | None:
    """An array's axes, the outermost in memory first; None of a row-major one."""
    if np.ndim(array) < 2 or array.flags.c_contiguous:
        return None
    strides = [-abs(s) for s in array.strides]
    order = tuple(sorted(range(array.ndim), key=strides.__getitem__))
    return None if order == tuple(range(array.ndim)) else order


def sharing(results: Values, given: Values) -> set[Arguments]:
    """Which results lie in the memory of which arguments or earlier results, and how."""
    shared: set[Arguments] = set()
    for n, result in enumerate(results):
        if not isinstance(result, np.ndarray):
            continue
        for m, other in enumerate((*given, *results[:n])):
            if isinstance(other, np.ndarray) and np.may_share_memory(result, other):
                offset = address_of(result) - address_of(other)
                shared.add((n, m, offset, result.strides, result.flags.writeable))
    return shared
