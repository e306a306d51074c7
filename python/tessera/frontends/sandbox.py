"""What a traced function meets outside of its arguments, and how it is kept from changing it.

A function is traced as a copy that reads copies of its variables: arrays become arguments of the
program, what else it reads becomes a guard, and what may have effects, or whose changes nobody
would see, refuses to be used. So tracing leaves no trace, and an Environment knows what was read.
"""

from __future__ import annotations

import abc
import builtins
import enum
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, NoReturn

import numpy as np

from tessera.errors import Error
from tessera.frontends import code as codes
from tessera.frontends.constants import (
    NOTHING,
    PURE,
    found,
    is_constant,
    is_harmless,
    is_key,
    is_known,
    is_numpys,
    is_optimized,
    is_plain_class,
    is_plain_enum,
    is_plain_named_tuple,
)
from tessera.frontends.environment import Environment, frozen_copy
from tessera.frontends.number import Number, is_stand_in
from tessera.tensor import Tensor, unsupported
from tessera.types import Array, Function, Object, Record, Value, Values

_MOST = 10_000  # entries of containers; beyond, a program would spend its time comparing
_SMALL = 4096  # bytes of an array that may be compared at each call

_REASONS = {
    "random": "draws random numbers, so it is not a function of its arguments",
    "time": "reads the clock",
    "os": "asks the operating system",
    "io": "reads or writes files",
}
_REASON_OF = {"_random": "random", "secrets": "random", "datetime": "time", "posix": "os",
              "_io": "io"}  # fmt: skip


class _TypeOf(type):
    """`type` as a traced function sees it: of a Tensor what NumPy would have."""

    def __call__(cls, *args: Object) -> Value:
        if len(args) != 1:
            return type(*args)
        if type(args[0]) is _Object:
            value, name, _, sandbox = args[0]._tessera
            return sandbox.admit(type(value), f"the class of {name}")
        return args[0].__class__

    def __instancecheck__(cls, value: Object) -> bool:
        return isinstance(value, type)


class _Type(metaclass=_TypeOf):
    pass


# --- stand-ins ----------------------------------------------------------------------------------


class _Module:
    """A module whose attributes are admitted one by one."""

    __slots__ = ("_tessera",)

    def __init__(self, module: ModuleType, sandbox: Sandbox) -> None:
        object.__setattr__(self, "_tessera", (module, sandbox))

    def __getattr__(self, name: str) -> Value:
        module, sandbox = self._tessera
        return sandbox.of_module(module, name)

    def __setattr__(self, name: str, value: Object) -> None:
        unsupported(f"it changes {self._tessera[0].__name__}.{name}, which lives outside of it")

    __delattr__ = __setattr__  # type: ignore[assignment]


class _Object:
    """An object from outside: of a class written in Python, its attributes can be asked for."""

    __slots__ = ("_tessera",)  # the object, its name, why it is refused if it is, the sandbox

    def __init__(self, value: Object, name: str, sandbox: Sandbox, why: str = "") -> None:
        object.__setattr__(self, "_tessera", (value, name, why, sandbox))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._tessera[0])

    def __getattr__(self, name: str) -> Value:
        value, full, why, sandbox = self._tessera
        if why:
            _refuse(self)
        return sandbox.of_object(self, value, name, f"{full}.{name}")

    def __setattr__(self, name: str, value: Object) -> None:
        unsupported(f"it changes {self._tessera[1]}.{name}, which lives outside of it")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __call__(self, *args: Object, **kwargs: Object) -> Value:
        value, _, why, _ = self._tessera
        own = type(found(type(value), "__call__")) is FunctionType and not isinstance(value, type)
        return self.__getattr__("__call__")(*args, **kwargs) if own and not why else _refuse(self)


def _refuse(proxy: Value, *args: Value, **kwargs: Value) -> NoReturn:
    value, name, why, _ = proxy._tessera
    if why:
        unsupported(f"it uses {name}, {why}")
    kinds = (value, type(value), type(getattr(value, "__self__", None)))
    for module in (str(getattr(kind, "__module__", "")) for kind in kinds):
        top = "random" if module.startswith("numpy.random") else module.partition(".")[0]
        if reason := _REASONS.get(_REASON_OF.get(top, top)):
            unsupported(f"it uses {name}, which {reason}")
    if callable(value):
        unsupported(f"it uses {name}, of which it is not known that calling it has no effects")
    unsupported(
        f"it uses {name}, a {type(value).__name__} from outside, which may change unseen; pass "
        "what it needs as arguments"
    )


_SPECIAL = """
    array array_function array_ufunc array_interface array_struct add radd sub rsub mul rmul
    truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and rand or ror xor
    rxor lshift rlshift rshift rrshift neg pos abs invert lt le gt ge eq ne bool len iter next
    getitem setitem delitem contains enter exit int float complex index round str repr format
    hash divmod reversed iadd isub imul itruediv copy deepcopy reduce_ex await
"""
for _name in _SPECIAL.split():
    setattr(_Object, f"__{_name}__", _refuse)


class _Globals(Record):
    """The module variables of traced functions, admitted when they are asked for."""

    def __init__(self, real: Record, sandbox: Sandbox) -> None:
        own = {"__builtins__": sandbox.builtins, "__name__": real.get("__name__", "")}
        super().__init__(own)
        self.real, self.sandbox, self.read = real, sandbox, dict(own)

    def __missing__(self, name: str) -> Value:
        environment = self.sandbox.environment
        if name not in self.real:
            environment.guard(self.real, name)
            if name in self.sandbox.builtins:
                environment.guard(vars(builtins), name, vars(builtins)[name])
            raise KeyError(name)
        value = self.real[name]
        environment.guard(self.real, name, value)
        self[name] = self.read[name] = self.sandbox.admit(value, name)
        return self[name]


class Sandbox:
    """Makes stand-ins for what a function and its helpers read, and records it.

    `outer` makes a Tensor of an array; `frozen`: small ones stay arrays, whose values are guarded;
    `instead`: functions that others take the place of, by their identity.
    """

    def __init__(
        self,
        environment: Environment,
        outer: Callable[[Array], Tensor],
        frozen: bool,
        instead: Mapping[int, Function],
    ) -> None:
        self.environment, self._outer, self._frozen = environment, outer, frozen
        self._instead = {**instead, id(np.errstate): _errstate}
        self._admitted: dict[int, tuple[Value, Value]] = {}  # by identity; also keeps those alive
        self._globals: dict[int, _Globals] = {}
        self._cells: dict[int, tuple[CellType, Value, CellType]] = {}
        self._copies: list[tuple[Value, Value, str]] = []  # a container, as it was, and what it is
        self.was_frozen = False  # whether arrays stayed arrays
        self.handles = False  # whether some code handles exceptions
        own = vars(builtins).items()
        self.builtins = {n: v if is_harmless(n, v) else _Object(v, n, self) for n, v in own}
        self.builtins |= {"type": _Type, "__import__": self._import, "getattr": _getattr,
                          "hasattr": _hasattr, "isinstance": _isinstance}  # fmt: skip

    # --- values
    def admit(self, value: Object, name: str) -> Value:
        """What stands for a value in the traced function."""
        if issubclass(type(value), (enum.Enum, enum.EnumMeta)):
            self._watch_enum(value)
        if is_constant(value):
            return value
        if id(value) in self._instead:
            return self._instead[id(value)]
        if id(value) not in self._admitted:
            self._keep(value, self._made(value, name))
        return self._admitted[id(value)][1]

    def _watch_enum(self, value: Value) -> None:
        """Members can be given other values, and classes and members attributes."""
        kind = value if isinstance(value, type) else type(value)
        if id(value) not in self._admitted and is_plain_enum(kind):
            for part in (kind, value, *(kind if kind is value else ())):
                self.environment.watch(self._keep(part, part).__dict__)

    def _keep(self, value: Object, made: Object) -> Value:
        return self._admitted.setdefault(id(value), (value, made))[1]

    def _made(self, value: Value, name: str) -> Value:
        kind = type(value)
        if issubclass(kind, np.ndarray):
            return self._array(value, name)
        if is_optimized(value):
            return self.admit(value.__wrapped__, name)
        if kind is FunctionType and not is_known(value):
            return self._function(value, name)
        if kind is MethodType:
            owner = self.admit(value.__self__, "self")
            return MethodType(self.admit(value.__func__, name), owner)
        if kind is functools.partial:
            for part in ("func", "args", "keywords"):
                self.environment.guard(value, part, getattr(value, part))
            given = [self.admit(a, f"an argument of {name}") for a in value.args]
            named = self.admit(value.keywords, f"the keywords of {name}")
            made = functools.partial(self.admit(value.func, name), *given, **named)
            return self._with_attributes(made, value, name)
        if kind is slice:
            return slice(*(self.admit(p, name) for p in (value.start, value.stop, value.step)))
        if kind in (list, dict, set, frozenset) or issubclass(kind, tuple):
            return self._container(value, name)
        if kind is ModuleType:
            return _Module(value, self)
        if is_numpys(value) if isinstance(value, np.ufunc) else is_known(value):
            return value
        own = self.builtins.get(getattr(value, "__name__", ""))
        plain = is_plain_enum(value) if isinstance(value, enum.EnumMeta) else is_plain_class(value)
        if plain or own is value:
            return value
        return _Object(value, name, self)

    def _array(self, array: Array, name: str) -> Value:
        if type(array) is np.ndarray or isinstance(array, np.memmap):
            small = array.size == 0 or (self._frozen and array.nbytes <= _SMALL)
            if small and (copy := frozen_copy(array)) is not None:
                self.environment.watch_content(array, copy)
                self.was_frozen = True
                return copy
            try:
                tensor = self._outer(array)
            except Error as error:
                return _Object(array, name, self, f"an array from outside: {error.message}")
            self.environment.watch(array)
            return tensor
        return _Object(array, name, self, f"a {type(array).__name__}; use a plain array")

    def _container(self, value: Value, name: str) -> Value:
        if len(value) > _MOST:
            return _Object(value, name, self)
        if isinstance(value, (set, frozenset)):
            copy = value.copy()
            if not all(map(is_key, value)) or list(copy) != list(value):  # of another order
                return _Object(value, name, self)
            self._record(value, copy, name)
            for member in value:
                self.admit(member, name)
            return copy
        if isinstance(value, dict) and not all(map(is_key, value)):
            return _Object(value, name, self)
        if isinstance(value, tuple):
            if type(value) is not tuple and not is_plain_named_tuple(type(value)):
                return _Object(value, name, self)
            parts = [self.admit(v, f"{name}[{i}]") for i, v in enumerate(value)]
            return tuple(parts) if type(value) is tuple else type(value)(*parts)
        made: Value = self._keep(value, type(value)())
        if isinstance(value, list):
            made.extend(self.admit(v, f"{name}[{i}]") for i, v in enumerate(value))
        else:
            made.update(
                {self.admit(k, name): self.admit(v, f"{name}[{k!r}]") for k, v in value.items()}
            )
        self._record(value, made, name)
        return made

    def _record(self, value: Object, copy: Any, name: str) -> None:
        self.environment.watch(value)
        self._copies.append((copy, copy.copy(), f"a {type(copy).__name__}, {name}"))

    # --- functions
    def _function(self, function: FunctionType, name: str) -> Value:
        code, environment = function.__code__, self.environment
        if why := codes.refused_code(code) or codes.confuses_objects(code, function.__globals__):
            return _Object(function, name, self, f"which {why}")
        self.handles |= codes.handles_exceptions(code)
        cells = function.__closure__ or ()
        made = FunctionType(
            code,
            self._scope(function.__globals__),
            function.__name__,
            None,
            tuple(self._cells.setdefault(id(c), (c, None, CellType()))[2] for c in cells),
        )
        self._keep(function, made)
        environment.guard(function, "__code__", code)
        environment.guard(function, "__defaults__", function.__defaults__)
        if code.co_kwonlyargcount:
            environment.guard(function, "__kwdefaults__", function.__kwdefaults__)
        for variable, cell in zip(code.co_freevars, cells, strict=True):
            copy = self._cells[id(cell)][2]
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                environment.guard(cell, "cell_contents")
                continue
            if _is_empty(copy):
                environment.guard(cell, "cell_contents", value)
                copy.cell_contents = self.admit(value, variable)
                self._cells[id(cell)] = (cell, copy.cell_contents, copy)
        if function.__defaults__:
            made.__defaults__ = self.admit(function.__defaults__, f"the defaults of {name}")
        if function.__kwdefaults__:
            made.__kwdefaults__ = self.admit(function.__kwdefaults__, f"the defaults of {name}")
        environment.guard(function, "__name__", function.__name__)
        return self._with_attributes(made, function, name)

    def _with_attributes(self, made: Object, value: Object, name: str) -> Value:
        """With the attributes of what it stands for; those that are not there may come."""
        made.__dict__.update(self.admit(value.__dict__, f"the attributes of {name}"))
        self.environment.guard(value, "__dict__", value.__dict__)
        self._copies.append((made.__dict__, dict(made.__dict__), f"an attribute of {name}"))
        return made

    def _scope(self, real: Record) -> _Globals:
        if id(real) not in self._globals:
            self._globals[id(real)] = _Globals(real, self)
        return self._globals[id(real)]

    def _import(
        self,
        name: str,
        globals: Record | None = None,
        locals: Record | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> Value:
        top = name.partition(".")[0]
        for module in {name, top}:
            if level or type(sys.modules.get(module)) is not ModuleType:
                unsupported(f"it imports {name}, which may have effects; import it outside")
            self.environment.guard(sys.modules, module, sys.modules[module])
        made = sys.modules[name if fromlist else top]
        if not all(n in vars(made) for n in fromlist or ()):
            unsupported(f"it imports {fromlist} from {name}, of which some are not there")
        return self.admit(made, name)

    # --- attributes
    def of_module(self, module: ModuleType, name: str) -> Value:
        top = module.__name__.partition(".")[0]
        full = f"{module.__name__}.{name}"
        if top in PURE and not module.__name__.startswith("numpy.random"):
            value = getattr(module, name)
            if name in vars(module):
                self.environment.guard(vars(module), name, value)
            grid = top == "numpy" and type(value).__module__.startswith("numpy.lib")  # np.s_, np.r_
            return value if grid and not callable(value) else self.admit(value, full)
        entries = vars(module)
        if name not in entries or (name.startswith("__") and name != "__name__"):
            unsupported(f"it asks for {full}, which is not known to be there")
        self.environment.guard(entries, name, entries[name])
        return self.admit(entries[name], full)

    def of_object(self, proxy: _Object, value: Object, name: str, full: str) -> Value:
        kind = value if isinstance(value, type) else type(value)
        is_class = kind is value
        heap = bool(kind.__flags__ & (1 << 9))  # Py_TPFLAGS_HEAPTYPE: written in Python, as a rule
        own = not is_class and found(kind, "__getattribute__") is not object.__getattribute__
        hidden = is_class and type(value) not in (type, abc.ABCMeta)
        if not heap or own or hidden or found(kind, "__getattr__") is not NOTHING:
            _refuse(proxy)
        if name.startswith("__") and name not in ("__name__", "__call__"):
            unsupported(f"it asks for {full}, which may change unseen")
        guard = self.environment.guard
        raw = found(kind, name)
        if kind is not value:
            guard(value, "__class__", kind)
            entries: Value = getattr(value, "__dict__", NOTHING)
            guard(value, "__dict__", entries)  # which another may take the place of
            entries = {} if entries is NOTHING else entries
            if isinstance(raw, property) and raw.fget is not None:
                guard(kind, name, raw)
                return self.admit(raw.fget, full)(proxy)
            slot = type(raw).__name__ == "member_descriptor"
            if slot or (name in entries and not hasattr(type(raw), "__set__")):
                now = getattr(value, name, NOTHING)
                guard(value, name, now)
                if now is NOTHING:
                    raise AttributeError(name)
                return self.admit(now, full)
            guard(entries, name)
        if isinstance(raw, staticmethod):
            raw = raw.__func__
        elif hasattr(type(raw), "__get__") and not _is_function(raw):
            unsupported(f"it uses {full}, a {type(raw).__name__}, which may have effects")
        if raw is NOTHING:
            unsupported(f"it asks for {full}, which is not there")
        guard(kind, name, raw)
        made = self.admit(raw, full)
        bound = _is_function(raw) and _is_function(found(kind, name))
        return MethodType(made, proxy) if bound and kind is not value else made

    # --- afterwards
    def stand_ins(self) -> Values:
        return [made for _, made in self._admitted.values()]

    def changed(self) -> str:
        """What the function changed of its copies; "" if nothing."""
        for scope in self._globals.values():
            for name in {*scope, *scope.read}:
                if scope.get(name, NOTHING) is not scope.read.get(name, NOTHING):
                    return f"the variable {name}"
        for _, value, copy in self._cells.values():
            if not _is_empty(copy) and copy.cell_contents is not value:
                return "a variable of an enclosing function"
        if not self.environment.same_contents():  # some of NumPy's writes ignore the flag
            return "an array"
        for now, before, what in self._copies:
            items = (list(v.items()) if isinstance(v, dict) else list(v) for v in (now, before))
            if not _identical(*items):
                return what
        return ""


def _getattr(value: Object, name: str, *default: Object) -> Value:
    """`getattr` of a traced function: stand-ins have only what they stand for has."""
    if name in codes.REFUSED_ATTRIBUTES:
        unsupported(f"it asks for the attribute {name}, which programs cannot follow")
    if type(value) is FunctionType and not hasattr(value, name):
        unsupported(f"it asks a function for {name}, which is not there")
    if is_stand_in(value):
        kind = value.__class__
        if not hasattr(kind, name):
            return getattr(np.empty(0) if kind is np.ndarray else kind(), name, *default)
        if type(value) is Number or name.startswith("__"):
            unsupported(f"it asks for the attribute {name}, which programs cannot follow")
    return getattr(value, name, *default)


def _hasattr(value: Object, name: str) -> bool:
    if is_stand_in(value) and name not in codes.REFUSED_ATTRIBUTES:
        return hasattr(value.__class__, name)
    return _getattr(value, name, NOTHING) is not NOTHING


def _isinstance(value: Value, kinds: Value) -> bool:
    """Abstract classes look at the type too."""
    return issubclass(value.__class__, kinds) if is_stand_in(value) else isinstance(value, kinds)


def _is_empty(cell: CellType) -> bool:
    return cell == CellType()  # which compares contents if there are any


def _identical(a: Values, b: Values) -> bool:
    if len(a) != len(b):
        return False
    pairs = zip(a, b, strict=True)
    return all(
        (x[0] is y[0] and x[1] is y[1]) if type(x) is tuple is type(y) and len(x) == 2 else x is y
        for x, y in pairs
    )


def _errstate(**kwargs: Value) -> Value:
    """np.errstate within a traced function: what is ignored or warned of makes no difference."""
    if any(v not in ("ignore", "warn", None) for v in kwargs.values()):
        unsupported("it asks NumPy to raise or report floating-point errors")
    return np.errstate(**kwargs)


def _is_function(value: Object) -> bool:
    return type(value) is FunctionType or is_optimized(value)
