"""What stands for a function and is one to whoever asks: attributes, pickling, methods."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from types import FunctionType, MethodType

from tessera import _core
from tessera.options import Options
from tessera.types import Function, Record, Value

_BOUND = "__tessera__"  # of objects whose methods are optimised


class Bound:
    """The optimised methods of one object, among its attributes: they end with it.

    A copy of the object, which has a copy of this, begins anew.
    """

    def __init__(self, instance: Value = None) -> None:
        self.instance = instance
        self.methods: dict[FunctionLike, FunctionLike] = {}

    def __reduce__(self) -> tuple[type[Bound], tuple[()]]:
        return Bound, ()


_STATE = {"__wrapped__", "_function", "_options", "_optimize", "_known", "_variants", "_warned",
          "_tuner", "_on_gpu", "_waits", "_swap", "_told", "_refused", "_sizes",
          "_others"}  # fmt: skip


class FunctionLike(_core.Dispatch):
    """A function in another's place; one for each object that it is a method of."""

    is_tessera_function = True
    __wrapped__: Function
    __class__ = property(lambda self: self._like)
    __dict__ = property(lambda self: getattr(self._function, "__dict__", {}))
    _like: type = FunctionType  # what `isinstance` and inspect see

    def __init__(
        self, function: Function, options: Options, optimize: Callable[..., Value]
    ) -> None:
        super().__init__()
        self._function = function
        functools.update_wrapper(self, function, updated=())  # its `__dict__` is this one's
        self._like = type(function)
        if not isinstance(function, (FunctionType, MethodType)):
            self._like = type(self)
        self._options = options
        self._optimize = optimize

    def __setattr__(self, name: str, value: Value) -> None:
        """All but what this has of its own is the function's, which may read it."""
        own = (name in _STATE or hasattr(type(self), name)) and name != "__dict__"
        if own:
            super().__setattr__(name, value)
        if not own or (name == "__name__" and type(self._function) is FunctionType):
            setattr(self._function, name, value)

    def __delattr__(self, name: str) -> None:
        if name in _STATE:
            super().__delattr__(name)
        else:
            delattr(self._function, name)

    def __getattr__(self, name: str) -> Value:
        """What functions have: `__code__`, `__defaults__`, …"""
        if name == "_function":  # not made yet
            raise AttributeError(name)
        return getattr(self._function, name)

    def __reduce__(self) -> Value:
        """By name, as functions are; what is not its module's own, by its function."""
        found: Value = None
        with contextlib.suppress(ImportError, AttributeError):
            found = importlib.import_module(self.__module__)
            for name in self.__qualname__.split("."):
                found = getattr(found, name)
        if found is self:
            return self.__qualname__
        if isinstance(self._function, MethodType):
            return getattr, (self._function.__self__, self._function.__name__)
        return type(self), (self._function, self._options, self._optimize)

    def __copy__(self) -> FunctionLike:
        return self

    def __deepcopy__(self, memo: Record) -> FunctionLike:
        return self

    def __get__(self, instance: Value, owner: type | None = None) -> Value:
        """Of an object, the method bound to it, with programs of its own: they read its arrays.

        Of what is never bound (ufuncs, callable objects, methods), itself.
        """
        bind = getattr(type(self._function), "__get__", None)
        method = self._function if bind is None else bind(self._function, instance, owner)
        if method is self._function:
            return self
        if instance is None or not callable(method):
            return method
        attributes = getattr(instance, "__dict__", None)
        if not isinstance(attributes, dict):  # __slots__: an argument, which none can trace
            return functools.partial(self, instance)
        bound = attributes.get(_BOUND)
        if not isinstance(bound, Bound) or bound.instance is not instance:
            bound = attributes[_BOUND] = Bound(instance)
        if self not in bound.methods:
            bound.methods[self] = type(self)(method, self._options, self._optimize)
        return bound.methods[self]
