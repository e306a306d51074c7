"""NumPy programs that ask for things at the edge of what a trace can know; see test_hostile.py.

Each defines `f`; where they are needed also `given()`, its arguments, `change(n)`, which changes
what it reads between calls, and `state()`, what it might have changed.
"""

from __future__ import annotations

PRELUDE = """
import abc, asyncio, collections, contextlib, copy, ctypes, dataclasses, enum, functools, inspect
import itertools, math, operator, os, random, sys, threading, time, types, typing, warnings
import numpy as np

def given():
    return [np.arange(6.0).reshape(2, 3) + 1]

def change(n):
    pass

def state():
    return []

w = np.array([1.0, 2.0, 3.0])
scale = 2.0
"""

PROGRAMS = """
== keywords of a partial change
p = functools.partial(lambda x, k: x * k, k=2.0)
def f(x): return p(x)
def change(n): p.keywords["k"] = 3.0 + n

== a partial is given another function
p = functools.partial(np.multiply, 2.0)
def f(x): return p(x)
def change(n): p.__setstate__((np.add, (3.0 + n,), {}, None))

== a scalar of a structured array is a view
rec = np.zeros(1, [("a", float), ("b", int)])
row = rec[0]
def f(x): return x * row["a"]
def change(n): rec["a"] = n + 1.0

== an array inside an enumeration
class P(enum.Enum):
    W = np.ones(3)
def f(x): return x * P.W.value
def change(n): P.W.value[0] = 5.0 + n

== a method of an enumeration reads a global
class Mode(enum.Enum):
    FAST = 1
    def rate(self): return scale * self.value
def f(x): return x * Mode.FAST.rate()
def change(n):
    global scale
    scale = 7.0 + n

== an enumeration as an argument has a method that reads a global
class Mode(enum.IntEnum):
    FAST = 1
    def rate(self): return scale * self.value
def given(): return [np.ones((2, 3)), Mode.FAST]
def f(x, mode): return x * mode.rate()
def change(n):
    global scale
    scale = 7.0 + n

== a class as an argument
class Config:
    rate = 2.0
def given(): return [np.ones((2, 3)), Config]
def f(x, c): return x * c.rate
def change(n): Config.rate = 3.0 + n

== a class method reads its class
class C:
    rate = 2.0
    @classmethod
    def scaled(cls, x): return x * cls.rate
def f(x): return C.scaled(x)
def change(n): C.rate = 3.0 + n

== a named tuple with a method as an argument
class Pair(typing.NamedTuple):
    a: object
    b: float
    def total(self): return self.a * scale + self.b
def given(): return [Pair(np.ones((2, 3)), 2.0)]
def f(p): return p.total()
def change(n):
    global scale
    scale = 7.0 + n

== a named tuple with a method made inside
class Pair(typing.NamedTuple):
    a: object
    b: float
    def total(self): return self.a * scale + self.b
def f(x): return Pair(x, 2.0).total()
def change(n):
    global scale
    scale = 7.0 + n

== a named tuple with an effect
log = []
class Pair(typing.NamedTuple):
    a: object
    def total(self):
        log.append(1)
        return self.a * 2
def given(): return [Pair(np.ones((2, 3)))]
def f(p): return p.total()
def state(): return [len(log)]

== a dict of a class of its own as an argument
class D(dict):
    def __getitem__(self, k): return super().__getitem__(k) * scale
def given(): return [D(a=np.ones((2, 3)))]
def f(d): return d["a"] + 1
def change(n):
    global scale
    scale = 7.0 + n

== a list of a class of its own as an argument
class L(list):
    def total(self): return sum(self) * scale
def given(): return [L([np.ones((2, 3)), np.ones((2, 3))])]
def f(xs): return xs.total()
def change(n):
    global scale
    scale = 7.0 + n

== a default dict as an argument
def given(): return [collections.defaultdict(lambda: scale, a=np.ones((2, 3)))]
def f(d): return d["a"] * d["b"]
def change(n):
    global scale
    scale = 7.0 + n

== an ordered dict comes back
def f(x): return collections.OrderedDict(a=x * 2, b=x + 1)

== a float of a class of its own as an argument
class F(float):
    pass
k = F(2.0)
k.extra = 1.0
def given(): return [np.ones((2, 3)), k]
def f(x, k): return x * k.extra
def change(n): k.extra = 3.0 + n

== a float of a class of its own from outside
class F(float):
    extra = 1.0
k = F(2.0)
def f(x): return x * (k + k.extra)
def change(n): F.extra = 3.0 + n

== a string of a class of its own as an argument
class S(str):
    axis = 0
s = S("a")
def given(): return [np.ones((2, 3)), s]
def f(x, s): return x.sum(axis=s.axis)
def change(n): S.axis = 1

== a slice holds an array
n_ = np.array(2)
s = slice(0, n_)
def f(x): return x[:, s] * 1.0
def change(n): n_[...] = 1 if n % 2 == 0 else 3

== a cached function has read what changed since
@functools.lru_cache
def rate(): return scale
def f(x): return x * rate()
def change(n):
    global scale
    scale = 7.0 + n

== a cached array is the same each time
@functools.cache
def window(n): return np.ones(n)
def f(x): return x * window(3)
def change(n): window(3)[0] = 4.0 + n

== a variable of an enclosing function that is not assigned yet
def make():
    def f(x):
        try:
            k = later
        except NameError:
            k = 1.0
        return x * k
    def assign(n):
        nonlocal later
        later = 5.0 + n
    if False:
        later = 0
    return f, assign
f, change = make()

== keys of a dict are objects
@dataclasses.dataclass(eq=False)
class Key:
    rate: float
key = Key(2.0)
d = {key: w}
def f(x):
    for k, v in d.items():
        x = x * k.rate + v
    return x
def change(n): key.rate = 3.0 + n

== keyword-only defaults are replaced
def g(x, *, k=2.0): return x * k
def f(x): return g(x)
def change(n): g.__kwdefaults__ = {"k": 3.0 + n}

== keyword-only defaults change
def g(x, *, k=2.0): return x * k
def f(x): return g(x)
def change(n): g.__kwdefaults__["k"] = 3.0 + n

== a function gets an attribute
def g(x): return x * 2
def f(x): return g(x) * getattr(g, "k", 1.0)
def change(n): g.k = 3.0 + n

== a function gets an attribute, hasattr
def g(x): return x * 2
def f(x): return g(x) * (3 if hasattr(g, "k") else 1.0)
def change(n): g.k = 3.0 + n

== the flags of an array from outside
def f(x): return x * (2 if w.flags.writeable else 3) * float(w[0])
def change(n): w.flags.writeable = not w.flags.writeable

== the strides of an array from outside
v = np.asfortranarray(np.arange(6.0).reshape(2, 3))
def f(x): return x * v.strides[0] * float(v[0, 1])

== an array from outside in its order in memory
v = np.asfortranarray(np.arange(6.0).reshape(2, 3))
def f(x): return x * v.ravel(order="K")[1] * v.ravel(order="A")[1]

== bytes of a Fortran array from outside
v = np.asfortranarray(np.arange(6.0).reshape(2, 3))
def f(x): return x * v.tobytes(order="A")[14] + v.flatten(order="K")[1]

== an argument in its order in memory
def given(): return [np.asfortranarray(np.arange(6.0).reshape(2, 3))]
def f(x): return np.ravel(x, order="A") * 2

== an argument in its order in memory, K
def given(): return [np.asfortranarray(np.arange(6.0).reshape(2, 3))]
def f(x): return x.ravel(order="K") * 2

== an argument flattened in its order
def given(): return [np.asfortranarray(np.arange(6.0).reshape(2, 3))]
def f(x): return x.flatten("F") * 2 + x.flatten("A")

== a reshape in the order of memory
def given(): return [np.asfortranarray(np.arange(6.0).reshape(2, 3))]
def f(x): return np.reshape(x, (3, 2), order="A") * 2

== a reshape of what a Fortran array was made to
def given(): return [np.asfortranarray(np.arange(6.0).reshape(2, 3))]
def f(x): return (x + 1).reshape((3, 2), order="A") * 2

== a copy in another order, raveled
def f(x): return np.array(x, order="F").ravel(order="A") + x.copy(order="F").ravel("K")

== Fortran order comes back
def f(x): return np.asfortranarray(x * 2), np.array(x, order="F"), (x + 1).copy(order="F")

== the text of an array from outside
def f(x): return x * len(str(w / 3)) * float(w[0])
def change(n): np.set_printoptions(precision=2 + n)

== the text of a number
def f(x): return x * len("%s" % w.tolist()) * len(f"{w[1] / 3}")
def change(n): np.set_printoptions(precision=2 + n, floatmode="fixed")

== an argument is an attribute from outside
buf = np.ones((2, 3))
box = types.SimpleNamespace(buf=buf)
class Box:
    pass
box = Box()
box.buf = buf
turn = [0]
def given(): return [buf if turn[0] % 2 else np.ones((2, 3))]
def f(x): return x * (2 if x is box.buf else 3)
def change(n): turn[0] += 1

== an argument is an entry from outside
buf = np.ones((2, 3))
items = [buf]
turn = [0]
def given(): return [buf if turn[0] % 2 else np.ones((2, 3))]
def f(x): return x * (2 if x is items[0] else 3)
def change(n): turn[0] += 1

== operator.is_
buf = np.ones((2, 3))
turn = [0]
def given(): return [buf if turn[0] % 2 else np.ones((2, 3))]
def f(x): return x * (2 if operator.is_(x, buf) else 3)
def change(n): turn[0] += 1

== one entry of two containers
turn = [0]
def given():
    a = np.ones((2, 3))
    return [[a], [a if turn[0] % 2 else np.ones((2, 3))]]
def f(x, y): return x[0] * (2 if x[0] is y[0] else 3)
def change(n): turn[0] += 1

== a function of NumPy is replaced
def f(x): return np.exp(-x) + 1
exp = np.exp
def change(n): np.exp = (lambda x: x * (5 + n)) if n < 2 else exp

== a function of math is replaced
def f(x): return x * math.sqrt(4.0)
sqrt = math.sqrt
def change(n): math.sqrt = (lambda x: 5.0 + n) if n < 2 else sqrt

== a built-in is replaced
import builtins
def f(x): return x * max(2.0, 3.0)
old = max
def change(n): builtins.max = (lambda a, b: 7.0 + n) if n < 2 else old

== a module variable hides a built-in
def f(x): return x * max(2.0, 3.0)
def change(n): globals()["max"] = lambda a, b: 7.0 + n

== a captured list comes back
items = [1.0, 2.0]
def f(x): return x * 2, items
def change(n): items.append(n)

== a list among the arguments comes back
def given(): return [np.ones((2, 3)), [np.ones(3)]]
def f(x, xs): return x * xs[0], xs

== a captured array comes back beside what its values decide
def f(x): return x * int(w[0]), w
def change(n): w[0] = n + 2

== a captured array of an attribute comes back
class Box:
    pass
box = Box()
box.w = w
def f(x): return x * 2, box.w
def change(n): box.w = np.full(3, 1.0 + n)

== a view of a captured array comes back
def f(x): return x * w, w[1:]

== a captured dict comes back
d = {"a": 1}
def f(x): return {"x": x * 2, "d": d}

== order of a set
s = set(range(0, 2000, 64))
for i in list(s): (s.discard(i) if i % 3 else None)
def f(x):
    for v in s: x = (x * 0.5 + v) % 7.0
    return x
def change(n):
    old = sorted(s, reverse=n % 2 == 0)
    s.clear()
    s.update(old)

== order of a dict
d = {"a": 1.0, "b": 2.0}
def f(x):
    for v in d.values(): x = x * 0.5 + v
    return x
def change(n): d["a"] = d.pop("a")

== a metaclass with a property
class Meta(type):
    rate = property(lambda cls: cls.r * scale)
class C(metaclass=Meta):
    r = 2.0
def f(x): return x * C.rate
def change(n):
    global scale
    scale = 7.0 + n

== a metaclass hides an attribute
class Meta(type):
    rate = property(lambda cls: scale)
class C(metaclass=Meta):
    rate = 2.0
def f(x): return x * C.rate
def change(n):
    global scale
    scale = 7.0 + n

== a metaclass that counts
log = []
class Meta(type):
    def __getattribute__(cls, name):
        log.append(name)
        return type.__getattribute__(cls, name)
class C(metaclass=Meta):
    rate = 2.0
def f(x): return x * C.rate
def state(): return [log.count("rate")]

== a descriptor that counts
log = []
class Rate:
    def __get__(self, obj, owner):
        log.append(1)
        return scale
class C:
    rate = Rate()
c = C()
def f(x): return x * c.rate
def state(): return [len(log)]

== a class with __getattr__
class C:
    def __getattr__(self, name): return scale
c = C()
def f(x): return x * c.rate
def change(n):
    global scale
    scale = 7.0 + n

== slots
class C:
    __slots__ = ("w", "k")
c = C()
c.w, c.k = w, 2.0
def f(x): return x * c.w * c.k
def change(n):
    c.k = 3.0 + n
    c.w = np.full(3, 4.0 + n)

== a dataclass
@dataclasses.dataclass
class C:
    w: object
    k: float = 2.0
c = C(w)
def f(x): return x * c.w * c.k
def change(n):
    c.k += 1
    c.w[0] += 1

== a frozen dataclass is replaced in place
@dataclasses.dataclass(frozen=True)
class C:
    k: float = 2.0
c = C()
def f(x): return x * c.k
def change(n): object.__setattr__(c, "k", 3.0 + n)

== an object changes its class
class A:
    k = 2.0
class B(A):
    k = 3.0
c = A()
def f(x): return x * c.k
def change(n): c.__class__ = B if n % 2 == 0 else A

== a class gets a base
class A:
    k = 2.0
class B:
    k = 5.0
class C(A):
    pass
c = C()
def f(x): return x * c.k
def change(n): C.__bases__ = (B,) if n % 2 == 0 else (A,)

== a list of arrays grows
items = [w]
def f(x):
    for v in items: x = x * v
    return x
def change(n): items.append(np.full(3, 2.0 + n))

== a closure over arrays in nested containers
def make():
    table = {"layers": [(w, [np.ones(3)])]}
    def f(x):
        for a, (b,) in table["layers"]: x = x * a + b
        return x
    def change(n):
        table["layers"][0][1][0][1] = n + 4.0
        if n == 1: table["layers"].append((np.ones(3), [np.zeros(3)]))
    return f, change
f, change = make()

== a clock
def f(x): return x * 0 + (time.time() > 0)

== random numbers of NumPy
np.random.seed(3)
def f(x): return x * np.random.rand()
def state(): return [np.random.get_state()[2]]

== a subclass of ndarray from outside
class A(np.ndarray):
    def __mul__(self, o): return np.ndarray.__mul__(self, o) + scale
    __rmul__ = __mul__
    __array_priority__ = 10
a = np.ones(3).view(A)
def f(x): return np.asarray(x * a)

== a masked array from outside
m = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])
def f(x): return (x * m).filled(9.0)
def change(n): m.mask[0] = True

== a masked array as an argument
def given(): return [np.ma.array(np.ones((2, 3)), mask=[[0, 1, 0]] * 2)]
def f(x): return (x * 2).filled(9.0)

== a matrix as an argument
def given(): return [np.matrix([[1.0, 2.0], [3.0, 4.0]])]
def f(x): return np.asarray(x * x)

== a structured array from outside
rec = np.zeros(3, [("a", float), ("b", "f4")])
def f(x): return x * rec["a"] + float(rec["b"][1])
def change(n): rec["a"][1] = n + 2; rec["b"] = n

== objects in a structured array
rec = np.zeros(1, [("a", "O")])
rec[0]["a"] = [2.0]
def f(x): return x * rec[0]["a"][0]
def change(n): rec[0]["a"][0] = 3.0 + n

== an array of objects
o = np.array([2.0, [3.0]], dtype=object)
def f(x): return x * o[1][0]
def change(n): o[1][0] = 4.0 + n

== an empty array of objects grows elsewhere
o = np.array([], dtype=object)
def f(x): return x * (len(o) + 2)

== memory written through a memoryview
mv = memoryview(w)
def f(x): return x * w * int(w[0])
def change(n): mv[0] = 3.0 + n

== memory written through ctypes
def f(x): return x * np.sqrt(w)
def change(n): ctypes.memset(w.ctypes.data, n, 8); w[0] += 1

== a captured memoryview
mv = memoryview(w)
def f(x): return x * mv[1]
def change(n): w[1] = 5.0 + n

== a captured bytearray
b = bytearray(b"ab")
def f(x): return x * b[0]
def change(n): b[0] = 5 + n

== a view over bytes
b = bytearray(np.ones(3).tobytes())
v = np.frombuffer(b)
def f(x): return x * v
def change(n): b[:8] = np.array([5.0 + n]).tobytes()

== an array that changes its shape in place
v = np.arange(6.0)
def f(x): return x * v.reshape(2, 3) if v.ndim == 1 else x + v
def change(n): v.shape = (2, 3) if n % 2 == 0 else (6,)

== an array that changes its dtype in place
v = np.ones(3)
def f(x): return x + v.astype(float)
def change(n): v.dtype = np.int64 if n % 2 == 0 else np.float64

== two captured arrays over one memory
v = w[::-1]
def f(x): return x * w + v
def change(n): v[0] = 7.0 + n

== memory outside of a captured view
big = np.arange(10.0)
v = big[2:5]
def f(x): return x * np.lib.stride_tricks.as_strided(v, (5,), (8,))[4]
def change(n): big[6] = 50.0 + n

== a recursive function
def f(x, n=3): return x if n == 0 else f(x * scale, n - 1) + w
def change(n):
    global scale
    scale += 1

== decorators on decorators
def twice(g):
    @functools.wraps(g)
    def inner(*a, **k): return g(*a, **k) * scale
    return inner
def f(x): return x + w
f = twice(twice(f))
def change(n):
    global scale
    scale += 1

== a timing decorator
log = []
def timed(g):
    @functools.wraps(g)
    def inner(*a):
        start = time.perf_counter()
        r = g(*a)
        log.append(time.perf_counter() > start)
        return r
    return inner
@timed
def f(x): return x * 2
def state(): return [len(log)]

== single dispatch is extended
@functools.singledispatch
def g(v, x): return x * 2
@g.register(int)
def _(v, x): return x * 3
def f(x): return g(1, x)
def change(n): g.register(int)(lambda v, x: x * (5 + n))

== methods through super
class A:
    k = 2.0
    def g(self, x): return x * self.k
class B(A):
    def g(self, x): return super().g(x) + 1
b = B()
def f(x): return b.g(x)
def change(n): A.k = 3.0 + n

== abstract classes
class A(abc.ABC):
    @abc.abstractmethod
    def g(self, x): ...
class B(A):
    k = 2.0
    def g(self, x): return x * self.k
b = B()
def f(x): return b.g(x)
def change(n): B.k = 3.0 + n

== a method is replaced on the class
class A:
    def g(self, x): return x * 2
a = A()
def f(x): return a.g(x)
def change(n): A.g = lambda self, x: x * (3 + n)

== a bound method of an array
total = w.sum
def f(x): return x * total()
def change(n): w[0] += 1

== a bound method of a dict
d = {"a": 2.0}
get = d.get
def f(x): return x * get("a", 1.0)
def change(n): d["a"] = 3.0 + n

== operator.itemgetter on what changes
first = operator.itemgetter(0)
items = [2.0]
def f(x): return x * first(items)
def change(n): items[0] = 3.0 + n

== operator.attrgetter on what changes
class C:
    k = 2.0
c = C()
get = operator.attrgetter("k")
def f(x): return x * get(c)
def change(n): c.k = 3.0 + n

== setattr on a function
def f(x):
    f.last = x.shape
    return x * 2
def state(): return [getattr(f, "last", None)]

== a generator as an argument
def given(): return [np.ones((2, 3)), (v for v in [2.0, 3.0])]
def f(x, g): return x * next(g) + sum(1 for _ in g)

== an iterator of arrays as an argument
def given(): return [iter([np.ones(3), np.ones(3) * 2])]
def f(g): return next(g) * 2

== map and zip over arrays
def given(): return [[np.ones(3), np.ones(3) * 2], [np.ones(3), np.ones(3)]]
def f(xs, ys): return sum(map(lambda p: p[0] * p[1], zip(xs, ys)))

== functools.reduce over captured arrays
items = [w, w * 2]
def f(x): return functools.reduce(operator.mul, items, x)
def change(n): items[1] = np.full(3, 2.0 + n)

== itertools.accumulate
def f(x): return list(itertools.accumulate([x, x * 2, w], operator.add))
def change(n): w[0] += 1

== a branch on data
def f(x): return x * 2 if x.sum() > 3 else x * 5
def given(): return [np.full((2, 3), turn[0])]
turn = [0.0]
def change(n): turn[0] = 1.0 - turn[0]

== a loop on data
turn = [1.0]
def given(): return [np.full(3, turn[0])]
def f(x):
    n = 0
    while np.abs(x).max() > 0.1 and n < 50:
        x = x * 0.5
        n += 1
    return x + n
def change(n): turn[0] *= 9

== an array as a shape
turn = [2]
def given(): return [np.ones(3), np.array(turn[0])]
def f(x, n): return np.zeros((int(n), 3)) + x
def change(n): turn[0] += 1

== an array as a number of steps
turn = [2]
def given(): return [np.ones(3), np.array(turn[0])]
def f(x, n):
    for _ in range(n): x = x * 2
    return x
def change(n): turn[0] += 1

== an exception after a partial write
buf = np.zeros(3)
def f(x):
    buf[0] += 1
    if x.ndim == 2: raise ValueError("two axes")
    return x
def state(): return [buf]

== an exception after a write to the argument
def f(x):
    x[0] = 9.0
    return x + np.ones(7)

== an exception of NumPy inside
def f(x):
    try:
        return x + np.ones(7)
    except ValueError as e:
        return x * len(str(e))

== an exception that depends on data
turn = [0]
def given(): return [np.arange(3.0), np.array([turn[0]])]
def f(x, i):
    try:
        return x[i] * 2
    except IndexError:
        return x * 100
def change(n): turn[0] = 5 - turn[0]

== integers to negative powers raise
turn = [2]
def given(): return [np.arange(1, 4), np.array([turn[0]] * 3)]
def f(x, n): return x ** n
def change(n): turn[0] = -1 - turn[0]

== a negative power from outside
n_ = np.array([1, 2, 3])
def given(): return [np.arange(1, 4)]
def f(x): return x ** n_
def change(n): n_[0] = -n_[0]

== finally
log = []
def f(x):
    try:
        return x * 2
    finally:
        log.append(1)
def state(): return [len(log)]

== a context manager of the user's
log = []
@contextlib.contextmanager
def noted():
    log.append("in")
    yield 2.0
    log.append("out")
def f(x):
    with noted() as k:
        return x * k
def state(): return list(log)

== a lock
lock = threading.Lock()
def f(x):
    with lock:
        return x * 2

== a division of a float that varies
turn = [2.0]
def given(): return [np.ones(3), turn[0]]
def f(x, k): return x * (1 / (k - 4.0))
def change(n): turn[0] += 1.0

== powers of a float that varies
turn = [2.0]
def given(): return [np.ones(3), turn[0]]
def f(x, k): return x * k ** 2 + (k - 3.0) ** 2
def change(n): turn[0] += 1e200 if n == 2 else 1.0

== a float that varies is not a number
turn = [2.0]
def given(): return [np.ones(3), turn[0]]
def f(x, k): return x * (2 if k > 1 else 3)
def change(n): turn[0] = [3.0, math.nan, -0.0, math.inf][n % 4]

== the sign of a float that varies
turn = [2.0]
def given(): return [np.ones(3), turn[0]]
def f(x, k): return np.copysign(x, k) * math.copysign(1.0, k)
def change(n): turn[0] = [3.0, -0.0, -4.0, 0.0][n % 4]

== a float that varies, rounded
turn = [2.0]
def given(): return [np.ones(3), turn[0]]
def f(x, k): return x * round(k, 1) + int(k)
def change(n): turn[0] += 0.55

== a float that varies against f4
turn = [2.1]
def given(): return [np.ones(3, "f4"), turn[0]]
def f(x, k): return x * k + k * 1e-9, x * np.float64(k)
def change(n): turn[0] += 0.1

== a scalar that varies
turn = [2.1]
def given(): return [np.ones(3, "f4"), np.float64(turn[0])]
def f(x, k): return x * k
def change(n): turn[0] += 0.1

== types of arguments that are equal
turn = [1, 1.0, True, np.float64(1), np.int8(1), 1 + 0j, "1", None]
def given(): return [np.ones(3, "f4"), turn[0]]
def f(x, k): return x * (k if k is not None and k != "1" else 2) + (5 if isinstance(k, bool) else 0)
def change(n): turn.append(turn.pop(0))

== scalars and arrays without axes come back
def f(x): return (x.sum(), x.sum(keepdims=True), np.asarray(x.sum()), x[0, 0], x[0, 0, ...],
                  np.add(np.asarray(x.max()), 1), x.max() * 2, np.array(3.0) * x.max())

== an array without axes
def given(): return [np.array(2.0)]
def f(x): return x * 2, x + np.ones(1), x.T * 1, -x, x[()] * 3, np.exp(x), np.where(x > 1, x, 0)

== an array without elements
def given(): return [np.ones((0, 3))]
def f(x): return x * 2, x.sum(), x.sum(axis=0), x.reshape(3, 0)

== None comes back
def f(x):
    x * 2

== an empty tuple comes back
def f(x): return ()

== None beside an array
def f(x): return x * 2, None, (), {}, "a", 3, 2.0, True, 1j

== an order of keys
def f(x): return {"b": x * 2, "a": x + 1, 3: w * x, (1, 2): -x}

== sets come back
def f(x): return x * 2, {1, 2}, frozenset("ab")

== an array in a set of objects is not hashable
def f(x): return x * len({x})

== comparisons with what is no number
def f(x): return x * 2 if x is not None else x, (x == None) | (x > 2), (x != None) & (x > 2)

== comparisons with text
def f(x): return x * (2 if np.all(x == "a") else 3)

== int64 and uint64
def given(): return [np.arange(3), np.arange(3).astype("u8")]
def f(x, y): return x + y, x * 2, y // 2

== short integers overflow
def given(): return [np.array([100, 120, -128], "i1")]
def f(x): return x + x, x * np.int8(3), -x, np.abs(x), x - 1, x.sum(), x.cumsum(), x ** 2, x // -1

== short integers that do not fit
def given(): return [np.array([100, 120, -128], "i1")]
def f(x): return x + 300

== complex numbers
def given(): return [np.array([1 + 2j, 3j])]
def f(x): return x * x.conj(), np.abs(x), x.real * 2

== long doubles
def given(): return [np.arange(3).astype(np.longdouble) / 3]
def f(x): return x * 3 + 1

== the other byte order
def given(): return [np.arange(3).astype(">f8"), np.arange(3).astype(">i4")]
def f(x, y): return x * 2, y + 1

== the other byte order outside
v = np.arange(3).astype(">f8")
def f(x): return x * v
def change(n): v[0] = 3 + n

== dates
d = np.array(["2020-01-01", "2020-01-03", "2020-01-04"], "datetime64[D]")
def f(x): return x * (d - d[0]).astype(float)
def change(n): d[1] += np.timedelta64(1, "D")

== text arrays
names = np.array(["a", "bb", "a"])
def f(x): return x * (names == "a")
def change(n): names[1] = "a"

== bools as numbers
def given(): return [np.array([True, False, True])]
def f(x): return x + x, x * 2, x.sum(), x.mean(), ~x, x & True, x.cumsum(), x.astype("i1") - 1, -x.astype(int)

== bools cannot be subtracted
def given(): return [np.array([True, False, True])]
def f(x): return x - x

== halves
def given(): return [np.array([6e4, 1.0, 1e-7], "f2")]
def f(x): return x * 2 / 2, x + 2048 - 2048, x.sum(), x.mean(), np.exp(x), x * 2.5, x.astype("f4") * 2

== casts of numbers that do not fit
def given(): return [np.array([1e20, -1e20, np.nan, np.inf, 3.7, -3.7])]
def f(x): return x.astype(int), x.astype("i4"), x.astype("i1"), x.astype(bool), x.astype("f4")

== signs of zeros and NaN
def given(): return [np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf])]
def f(x): return (-x, x * -1, np.abs(x), x + 0.0, 0.0 - x, x * 0, np.maximum(x, 0.0), np.sign(x),
                  np.round(x), np.sqrt(x), x.min(), x.max(), np.sort(x), np.where(x == 0, x, 1.0))

== negative strides and steps
def given(): return [np.arange(24.0).reshape(4, 6)[::-2, ::-1]]
def f(x): return x * 2, x.T @ x, x.sum(axis=0), x[::-1] + 1, np.ravel(x) * 1

== an argument that overlaps itself
def given(): return [np.lib.stride_tricks.as_strided(np.arange(4.0), (3, 2), (8, 8))]
def f(x): return x * 2, x.sum()

== an array that is not aligned
def given(): return [np.frombuffer(b"x" + np.arange(3.0).tobytes(), np.uint8)[1:].view(float)]
def f(x): return x * 2, x.sum()

== an array that cannot be written
def given():
    x = np.ones((2, 3))
    x.flags.writeable = False
    return [x]
def f(x): return x * 2, x.copy()

== a broadcast array
def given(): return [np.broadcast_to(np.arange(3.0), (2, 3))]
def f(x): return x * 2, x.copy(), x.T + 0

== out= of an argument
def given(): return [np.ones(3), np.zeros(3)]
def f(x, out): return np.multiply(x, 2, out=out)

== out= of an array made inside
def f(x):
    out = np.empty_like(x)
    np.multiply(x, 2, out=out)
    r = np.exp(x, out=out)
    return r, out

== out= of a captured array
buf = np.zeros((2, 3))
def f(x): return np.add(x, 1, buf)
def state(): return [buf]

== out= by the method
buf = np.zeros(3)
def f(x): return x.sum(axis=0, out=buf) * 2
def state(): return [buf]

== methods of ufuncs
def f(x): return (np.add.reduce(x), np.multiply.reduce(x, axis=1), np.add.accumulate(x, axis=1),
                  np.maximum.accumulate(x), np.subtract.outer(w, w), np.logical_or.reduce(x > 2))

== ufunc.at
def f(x):
    y = x.copy()
    np.add.at(y, ([0, 0], [1, 1]), w[0])
    return y
def change(n): w[0] += 1

== ufunc.at on the argument
def f(x):
    np.add.at(x, (0, 1), 5.0)
    return x * 2

== where= of a ufunc
def f(x): return np.sqrt(x, where=x > 2, out=np.zeros_like(x))

== a ufunc of Python
u = np.frompyfunc(lambda v: v * scale, 1, 1)
def f(x): return u(x).astype(float)
def change(n):
    global scale
    scale = 7.0 + n

== np.vectorize
g = np.vectorize(lambda v: v * scale)
def f(x): return g(x)
def change(n):
    global scale
    scale = 7.0 + n

== errstate inside
def f(x):
    with np.errstate(divide="ignore", invalid="ignore"):
        return 1 / (x - 1)

== errstate raises inside
def f(x):
    try:
        with np.errstate(divide="raise"):
            return 1 / (x - 1)
    except FloatingPointError:
        return x * 100

== seterr for all
def f(x):
    try:
        return 1 / (x - 1)
    except FloatingPointError:
        return x * 100
def change(n): np.seterr(divide="raise" if n % 2 == 0 else "ignore")
np.seterr(divide="ignore")

== seterr inside
def f(x):
    old = np.seterr(divide="ignore")
    y = 1 / (x - 1)
    np.seterr(**old)
    return y
def state(): return [np.geterr()]

== asking for the state of errors
def f(x): return x * (2 if np.geterr()["divide"] == "ignore" else 3)

== warnings as errors inside
def f(x):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return 1 / (x - 1)
    except RuntimeWarning:
        return x * 100

== views of views of what is made
def f(x):
    y = x * 2
    v = y[0]
    v[1:] = 7.0
    u = v[::-1]
    u += 1
    return y, v

== a view of the argument is written to
def f(x):
    v = x[0][1:]
    v += 1
    return x * 2

== in place on what both names have
def f(x):
    y = x * 2
    z = y
    z += 1
    return y, z

== in place after a reshape that copies
def f(x):
    y = (x * 2).T.reshape(-1)
    z = (x * 2).reshape(-1)
    y[0], z[0] = 5.0, 6.0
    return y, z

== in place with a mask
def f(x):
    y = x.copy()
    y[y > 2] *= -1
    y[[0, 0], [1, 1]] += 1
    return y

== in place of another dtype
def given(): return [np.arange(3)]
def f(x):
    y = x.copy()
    y += 1.5
    return y

== in place to short integers
def given(): return [np.arange(3, dtype="i1")]
def f(x):
    y = x.copy()
    y *= 100
    y[0] = 3.9
    return y

== a swap
def f(x):
    y = x.copy()
    y[0], y[1] = y[1], y[0]
    return y

== a swap of copies
def f(x):
    y = x.copy()
    y[[0, 1]] = y[[1, 0]]
    return y

== a list is changed and comes back
def f(x):
    items = [x]
    items.append(x * 2)
    items[0] = w
    return items

== an array is deleted from a list of the arguments
def given(): return [[np.ones(3), np.ones(3) * 2]]
def f(xs):
    y = xs.pop()
    return y * len(xs)

== a dict of the arguments gets an entry
def given(): return [{"a": np.ones(3)}]
def f(d):
    d["b"] = d["a"] * 2
    return d["b"] + 1

== a default list grows
def g(x, seen=[]):
    seen.append(1)
    return x * len(seen)
def f(x): return g(x)

== the function is asked for its own name
def f(x): return x * len(f.__name__) * len(f.__qualname__)

== the function is asked for its own text
def f(x):
    "12345"
    return x * len(f.__doc__)
def change(n): f.__doc__ = "1" * n

== defaults of the function change
def f(x, k=2.0): return x * k
def change(n): f.__defaults__ = (3.0 + n,)

== the code of a helper changes
def g(x): return x * 2
def h(x): return x * 3
def f(x): return g(x)
def change(n): g.__code__, h.__code__ = h.__code__, g.__code__

== copies of objects
@dataclasses.dataclass
class C:
    w: object
c = C(w)
def f(x): return x * copy.copy(c).w + copy.deepcopy(c).w
def change(n): w[0] += 1

== arrays that other threads write
def f(x): return x * w
def change(n):
    t = threading.Thread(target=lambda: w.__setitem__(0, 5.0 + n))
    t.start(); t.join()

== a local of threads
local = threading.local()
local.k = 2.0
def f(x): return x * local.k
def change(n): local.k = 3.0 + n

== a variable of a context
import contextvars
var = contextvars.ContextVar("k", default=2.0)
def f(x): return x * var.get()
def change(n): var.set(3.0 + n)

== a weak reference
import weakref
class C:
    k = 2.0
c = C()
ref = weakref.ref(c)
def f(x): return x * (ref().k if ref() is not None else 9.0)
def change(n):
    global c
    c = None

== environment variables
def f(x): return x * float(os.environ.get("HOSTILE", "2")) * float(os.getenv("HOSTILE", "3"))
def change(n): os.environ["HOSTILE"] = str(n)
os.environ.pop("HOSTILE", None)

== arguments of the process
def f(x): return x * len(sys.argv)
def change(n): sys.argv.append("a") if n < 2 else sys.argv.__delitem__(slice(-2, None))

== a module that is imported inside
def f(x):
    import math as m
    from operator import mul
    return mul(x, m.pi)

== a module of the user's
m = types.ModuleType("m")
m.k, m.w = 2.0, w
def f(x): return x * m.k * m.w
def change(n):
    m.k = 3.0 + n
    w[0] += 1

== a module with __getattr__
m = types.ModuleType("m")
m.__getattr__ = lambda name: scale
def f(x): return x * m.rate
def change(n):
    global scale
    scale = 7.0 + n

== a lambda in a dict
table = {"a": lambda x: x * 2}
def f(x): return table["a"](x)
def change(n): table["a"] = lambda x: x * (3 + n)

== a global is deleted
k = 2.0
def f(x):
    try:
        return x * k
    except NameError:
        return x * 100
def change(n):
    global k
    if n == 0: del k
    else: k = 5.0

== a class is made inside
def f(x):
    class C:
        k = scale
        def g(self, x): return x * self.k
    return C().g(x)
def change(n):
    global scale
    scale = 7.0 + n

== a property with state
class C:
    def __init__(self): self.n = 0
    @property
    def k(self):
        self.n += 1
        return float(self.n)
c = C()
def f(x): return x * c.k
def state(): return [c.n]

== a property from a class that changes
class C:
    @property
    def k(self): return 2.0
c = C()
def f(x): return x * c.k
def change(n): C.k = property(lambda self: 3.0 + n)

== a cached property
class C:
    def __init__(self): self.n = 0
    @functools.cached_property
    def k(self):
        self.n += 1
        return 2.0 + scale
c = C()
def f(x): return x * c.k
def change(n):
    global scale
    scale = 7.0 + n
    if n == 1: del c.k
def state(): return [c.n]

== a partial method
class C:
    def g(self, k, x): return x * k * self.s
    h = functools.partialmethod(g, 2.0)
    s = 1.0
c = C()
def f(x): return c.h(x)
def change(n): C.s = 2.0 + n

== a walrus, a star and a comprehension
def f(x, *rest, **named): return [(y := v * 2) + y for v in (x, *rest, *named.values())]
def given(): return [np.ones(3), np.ones(3) * 2]

== a view of a scalar of NumPy
k = np.float64(2.0)
def f(x): return x * k
def change(n):
    global k
    k = np.float64(3.0 + n)

== text of numbers from outside decides
def f(x): return x * float(f"{scale:.1f}") * len(repr(scale))
def change(n):
    global scale
    scale = 7.25 + n

== hashes
def f(x): return x * (hash((1, 2.0)) % 7)

== the size of a list that holds itself
loop = [2.0]
loop.append(loop)
def f(x): return x * loop[0] * len(loop[1][1])
def change(n): loop[0] = 3.0 + n

== np.einsum with captured text
spec = ["ij,j->i"]
def f(x): return np.einsum(spec[0], x, w)
def change(n): spec[0] = ["ij,j->ij", "ij,j->j", "ij,j->i"][n % 3]

== masked choices
def f(x): return x[x > 2].sum(), np.count_nonzero(x > 2), x[x > 2].mean()

== what a mask picks comes back
def f(x): return x[x > 2]

== np.nonzero
def f(x): return np.nonzero(x > 2)[0] * 2

== sorting and searching
def f(x): return np.sort(x, axis=1) * 2, np.argsort(-x), np.searchsorted(w, x)
def change(n): w[:] = np.sort(w + n)

== statistics that are not traced
def f(x): return np.median(x) + np.percentile(x, 30), np.histogram(x, 3)[0], np.unique(x)

== linear algebra
def f(x): return np.linalg.inv(x @ x.T) @ x, np.linalg.norm(x)

== a singular matrix raises
turn = [1.0]
def given(): return [np.array([[turn[0], 0.0], [0.0, 1.0]])]
def f(x): return np.linalg.inv(x) * 2
def change(n): turn[0] = 1.0 - turn[0]

== a fft
def f(x): return np.abs(np.fft.rfft(x)) * 2

== bytes of arguments
def f(x): return x * x.tobytes()[7]

== an awaitable
def f(x):
    async def g(): return x * scale
    try:
        g().send(None)
    except StopIteration as e:
        return e.value
def change(n):
    global scale
    scale = 7.0 + n

== a match statement
kind = ["a"]
def f(x):
    match kind:
        case ["a"]: return x * 2
        case ["b", *rest]: return x * (3 + len(rest))
        case _: return x
def change(n): kind[:] = [["b"], ["b", 1], ["c"]][n % 3]

== isinstance and its relatives
def f(x): return x * (2 if isinstance(w, np.ndarray) and hasattr(w, "sum") and callable(np.sum) else 3)

== arrays in conditions that short-cut
def f(x): return x * (w.any() and 2 or 3)
def change(n): w[:] = 0 if n % 2 == 0 else 1

== a chained comparison
def f(x): return x * (2 if 0 < w[0] < 2 else 3)
def change(n): w[0] = 3.0 - w[0]

== min and max of arrays from outside
def f(x): return x * max(w) + min(w, key=lambda v: -v)
def change(n): w[n % 3] = 9.0 + n

== enumerate, zip and reversed of an array from outside
def f(x):
    for i, (a, b) in enumerate(zip(w, reversed(w))): x = x * a + b * i
    return x
def change(n): w[n % 3] = 9.0 + n

== unpacking an array from outside
def f(x):
    a, *rest = w
    return x * a + len(rest) * rest[-1]
def change(n): w[n % 3] = 9.0 + n

== an array from outside as a key
def f(x): return x * {1.0: 2.0, 5.0: 6.0}.get(float(w[0]), 3.0)
def change(n): w[0] = [5.0, 7.0, 1.0][n % 3]

== a dict of an argument keeps its order
turn = [0]
def given():
    items = [("a", np.ones(3)), ("b", np.ones(3) * 2)]
    return [dict(items[::-1] if turn[0] % 2 else items)]
def f(d):
    t = 0.0
    for v in d.values(): t = t * 10 + v
    return t
def change(n): turn[0] += 1

== arguments by name in another order
def f(**named): return sum(v * (i + 1) for i, v in enumerate(named.values()))
def given(): return []
def call(f): return f(a=np.ones(3), b=np.ones(3) * 2), f(b=np.ones(3) * 2, a=np.ones(3))

== the class of an object
class Layer:
    gain = 2.0
layer = Layer()
def f(x): return x * type(layer).gain
def change(n): Layer.gain = 3.0 + n

== the class of an object, from itself
class Layer:
    gain = 2.0
    def g(self, x): return x * self.__class__.gain
layer = Layer()
def f(x): return layer.g(x)
def change(n): Layer.gain = 3.0 + n

== getattr with a name that is computed
class Layer:
    gain_1 = 2.0
layer = Layer()
def f(x): return x * getattr(layer, "gain_" + str(1)) * getattr(layer, "other", 3.0)
def change(n):
    Layer.gain_1 = 3.0 + n
    layer.other = 4.0 + n

== a dunder by getattr
class Layer:
    gain = 2.0
layer = Layer()
def f(x): return x * getattr(layer, "__dict__").get("k", 1.0) * getattr(layer, "__class__").gain
def change(n):
    Layer.gain = 3.0 + n
    layer.k = n

== operator.attrgetter of a class
class Layer:
    gain = 2.0
layer = Layer()
get = operator.attrgetter("__class__.gain")
def f(x): return x * get(layer)
def change(n): Layer.gain = 3.0 + n

== operator.methodcaller
class Layer:
    def rate(self): return scale
layer = Layer()
get = operator.methodcaller("rate")
def f(x): return x * get(layer)
def change(n):
    global scale
    scale = 3.0 + n

== an itemgetter of NumPy's scalar
def f(x): return x * operator.itemgetter(0)(w)
def change(n): w[0] = 3.0 + n

== vars of an object
class C:
    pass
c = C()
c.k = 2.0
def f(x): return x * vars(c)["k"]
def change(n): c.k = 3.0 + n

== the module by sys.modules
def f(x): return x * sys.modules[__name__].scale
def change(n):
    global scale
    scale = 3.0 + n

== the module by import
def f(x):
    import hostile
    return x * hostile.scale
def change(n):
    global scale
    scale = 3.0 + n

== globals()
def f(x): return x * globals()["scale"]
def change(n):
    global scale
    scale = 3.0 + n

== eval
def f(x): return x * eval("scale")
def change(n):
    global scale
    scale = 3.0 + n

== a deque
q = collections.deque([2.0])
def f(x): return x * q[0] * len(q)
def change(n): q.append(3.0); q[0] = 3.0 + n

== a chain map
m = collections.ChainMap({}, {"k": 2.0})
def f(x): return x * m["k"]
def change(n): m["k"] = 3.0 + n

== a mapping proxy
d = {"k": 2.0}
m = types.MappingProxyType(d)
def f(x): return x * m["k"]
def change(n): d["k"] = 3.0 + n

== an array of Python's
import array
a = array.array("d", [2.0])
def f(x): return x * a[0]
def change(n): a[0] = 3.0 + n

== a dict view
d = {"k": 2.0}
values = d.values()
def f(x): return x * sum(values)
def change(n): d["k"] = 3.0 + n

== a tuple of lists of arrays
t = ([w], {"k": [2.0]})
def f(x): return x * t[0][0] * t[1]["k"][0]
def change(n):
    t[1]["k"][0] = 3.0 + n
    t[0][0] = np.full(3, n + 2.0)

== an object in an object in an object
class N: pass
a = N(); a.b = N(); a.b.c = N(); a.b.c.k = 2.0
def f(x): return x * a.b.c.k
def change(n):
    if n == 0: a.b.c.k = 3.0
    elif n == 1: a.b = N(); a.b.c = N(); a.b.c.k = 4.0
    else: a.b.c = types.SimpleNamespace(k=5.0 + n)

== a property with a setter
class C:
    _k = 2.0
    @property
    def k(self): return self._k
    @k.setter
    def k(self, v): self._k = v * 2
c = C()
def f(x): return x * c.k
def change(n): c.k = 3.0 + n

== a class with __getattribute__
class C:
    k = 2.0
    def __getattribute__(self, name): return scale
c = C()
def f(x): return x * c.k
def change(n):
    global scale
    scale = 3.0 + n

== a callable object with state
class C:
    def __init__(self): self.n = 0
    def __call__(self, x):
        self.n += 1
        return x * self.n
f = C()
def state(): return [f.n if isinstance(f, C) else f.__wrapped__.n]

== a callable object that reads
class C:
    k = 2.0
    def __call__(self, x): return x * self.k
c = C()
def f(x): return c(x)
def change(n): C.__call__ = lambda self, x: x * (3 + n)

== attributes of a function that the function reads
def f(x): return x * g.k
def g(): pass
g.k = 2.0
def change(n): g.k = 3.0 + n

== a nested function keeps its variable
def outer():
    k = [2.0]
    def g(x): return x * k[0]
    return g, k
g, k = outer()
def f(x): return g(x)
def change(n): k[0] = 3.0 + n

== a lambda's default is what it was
table = {"a": 2.0}
g = lambda x, k=table["a"]: x * k
def f(x): return g(x)
def change(n): table["a"] = 3.0 + n

== a function gets another closure
def made(k):
    def g(x): return x * k
    return g
g = made(2.0)
def f(x): return g(x)
def change(n):
    global g
    g = made(3.0 + n)

== the order of keyword arguments
def f(**named): return sum((i + 1) * v for i, v in enumerate(named.values()))
def given(): return []
def call(f): return [f(a=np.ones(3), b=np.full(3, 2.0)), f(b=np.full(3, 2.0), a=np.ones(3))]

== positional only, keyword only
def f(a, /, b, *, c=2.0): return a * b + c
def given(): return []
def call(f): return [f(np.ones(3), np.ones(3)), f(np.ones(3), b=np.ones(3), c=w), f(np.ones(3), w)]

== missing arguments raise
def f(a, b): return a * b
def given(): return []
def call(f): return f(np.ones(3))

== an unknown keyword raises
def f(a): return a * 2
def given(): return []
def call(f): return f(np.ones(3), k=2)

== Python numbers come back
def f(x): return float(x.sum()), int(x[0, 0]), bool((x > 0).all()), x.sum().item(), x.tolist()

== NumPy's numbers come back
def f(x): return x.sum(), (x > 0).all(), x.argmax(), x.max() > 2, np.any(x > 9), x[0, 0] * 2, -x[1, 1]

== only facts come back
def f(x): return x.shape, x.dtype, len(x), x.ndim, x.size

== facts beside arrays
def f(x): return x * 2, x.shape, x.dtype, len(x), np.finfo(x.dtype).eps, x.dtype.type(3), x.itemsize

== an iterator comes back
def f(x): return map(lambda v: v * 2, x)
def call(f): return list(f(np.ones((2, 3))))

== a generator comes back
def f(x):
    for row in x: yield row * scale
def call(f): return list(f(np.ones((2, 3))))
def change(n):
    global scale
    scale = 3.0 + n

== a function comes back
def f(x): return lambda y: x * y
def call(f): return f(np.ones(3))(np.full(3, 2.0))

== an object comes back
@dataclasses.dataclass
class R:
    a: object
def f(x): return R(x * 2)
def call(f): return f(np.ones(3)).a

== a namespace comes back
def f(x): return types.SimpleNamespace(a=x * 2)
def call(f): return f(np.ones(3)).a

== a named tuple comes back
R = collections.namedtuple("R", "a b")
def f(x): return R(x * 2, x.sum())

== one list twice
def f(x):
    y = [x * 2]
    return y, y

== one made array twice
def f(x):
    c = np.ones(3)
    return x * c, c, c

== a made array and its view
def f(x):
    c = np.ones(3)
    return x * c, c, c[1:]

== a made array that cannot be written
def f(x): return x * 2, np.broadcast_to(np.ones(3), (2, 3))

== captured and made arrays come back in a list
def f(x): return [x * 2, w, np.zeros(2), np.arange(6).reshape(2, 3).T]
def change(n): w[0] += 1

== a captured scalar array comes back
z = np.array(2.0)
def f(x): return x * z, z, z * 2
def change(n): z[...] = n

== an empty captured array comes back
z = np.zeros((0, 3))
def f(x): return x * 2, z, z.sum()

== a captured set comes back
s = {1, 2}
def f(x): return x * len(s), s
def call(f): return f(np.ones(3))[1] is s
def change(n): s.add(n + 10)

== a set of the arguments comes back
s = {1, 2}
def f(x, s): return x * 2, s
def call(f): return f(np.ones(3), s)[1] is s

== an object from outside comes back
class C: pass
c = C()
def f(x): return x * 2, c
def call(f): return f(np.ones(3))[1] is c

== a class comes back
class C: pass
def f(x): return x * 2, C, np.float32, float
def call(f): return [v is u for v, u in zip(f(np.ones(3))[1:], (C, np.float32, float))]

== a function from outside comes back
def g(): pass
def f(x): return x * 2, g
def call(f): return f(np.ones(3))[1] is g

== text comes back
def f(x): return {"a": x * 2, "name": f"{scale:.2f}", "n": str(x.shape)}
def change(n):
    global scale
    scale = n / 3

== the same for floats that are one
k = float("nan")
def f(x): return x * (2 if k != k else 3), k
def change(n):
    global k
    k = float(n)

== a branch on a captured bool array
m = np.array([True, False, True])
def f(x): return x[:, m] * 2
def change(n): m[1] = not m[1]

== a captured index array of another length
i = np.array([0, 1])
def f(x): return x[:, i] * 2
def change(n):
    global i
    i = np.arange(n % 3 + 1)

== captured indices out of range
i = np.array([0, 1])
def f(x):
    try:
        return x[:, i] * 2
    except IndexError:
        return x * 100
def change(n): i[0] = 5 if n % 2 == 0 else 1

== captured indices by np.take
i = np.array([0, 1])
def f(x): return np.take(x, i, axis=1, mode="clip") + np.take(x, i, axis=1, mode="wrap")
def change(n): i[0] = 5 + n

== np.ix_
i = np.array([0, 1])
def f(x): return x[np.ix_(i, [0, 2])] * 2
def change(n): i[0] = 1

== writes through np.ix_, np.put and np.place
def f(x):
    y = x.copy()
    y[np.ix_([0], [0, 2])] = 9.0
    np.put(y, [1], 7.0)
    np.place(y, y > 5, [1.0])
    return y

== writes to the diagonal
def f(x):
    y = x[:, :2].copy()
    np.fill_diagonal(y, w[0])
    return y
def change(n): w[0] = n

== several results of ufuncs
def f(x): return (*divmod(x, 2), *np.modf(x / 3), *np.frexp(x), *np.divmod(x, w))

== integer extremes
def given(): return [np.array([np.iinfo("i8").min, -1, 0, 1, np.iinfo("i8").max])]
def f(x): return (x // -1, x % -1, abs(x), -x, x * x, x + 1, x - 1, x // 7, x % 7, x.sum(), x.mean(),
                  x // 2, np.sign(x), x.max() - x.min(), x >> 3, x << 2, x ** 2, x / 3)

== integer division by zero
def given(): return [np.array([5, -5, 0]), np.array([0, 0, 0])]
def f(x, y): return x // y, x % y, x / y

== wide shifts
def given(): return [np.array([1, -1, 5])]
def f(x): return x << 63, x >> 63, x << 64, x >> 70

== unsigned bytes
def given(): return [np.array([0, 1, 200, 255], "u1")]
def f(x): return -x, x - 1, x + 255, x * 2, ~x, x << 1, x // 3, x.sum(), x.mean(), x.cumsum(), x > 100

== a Python number that a byte does not hold
def given(): return [np.array([0, 1], "u1")]
def f(x): return x - 256

== comparisons with Python numbers that do not fit
def given(): return [np.array([0, 1, 255], "u1"), np.array([2**53, 2**53 + 1])]
def f(x, y): return x < 300, x > -1, x == 256, y == float(2**53), y < 2.0**53 + 1

== bytes and floats
def given(): return [np.array([1, 2, 3], "i1"), np.array([1, 2, 3], "f4"), np.array([1, 2, 3], "i8")]
def f(x, y, z): return x * y, x / x, y * z, np.sqrt(x), np.mean(x), x * 1.5, y * 1.5, np.sin(z), y ** 2, y ** x

== halves and bytes
def given(): return [np.array([1, 2, 3], "f2"), np.array([1, 2, 3], "i1")]
def f(x, y): return x * y, x + 1.0, np.sum(x), np.mean(x), np.sqrt(y), x ** 2, np.float32(2) * x

== where of mixed kinds
def given(): return [np.array([1.5, -2.0], "f4"), np.array([1, -2], "i4")]
def f(x, y): return np.where(x > 0, 1, 0), np.where(x > 0, x, 0), np.where(y > 0, y, 1.5), np.where(x > 0, True, y)

== clips
def given(): return [np.array([-3.0, 0.5, np.nan, np.inf, -np.inf, 7.0])]
def f(x): return np.clip(x, None, 1), np.clip(x, 2, 1), np.clip(x, np.nan, 1), x.clip(-1), np.clip(x, w[0], None)

== rounding
def given(): return [np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e20, 0.05, 2.675])]
def f(x): return np.round(x), np.round(x, 1), np.round(x, -1), np.rint(x), np.floor(x), np.ceil(x), np.trunc(x), x // 1, np.fix(x)

== rounding of integers
def given(): return [np.array([5, 15, 25, -5])]
def f(x): return np.round(x), np.round(x, -1), np.floor(x), np.ceil(x)

== NaN in reductions
def given(): return [np.array([[1.0, np.nan, 3.0], [np.inf, -np.inf, 0.0]])]
def f(x): return (x.max(), x.min(axis=0), x.argmax(axis=1), x.argmin(), x.sum(axis=0), x.mean(), x.std(axis=1),
                  np.nansum(x), np.nanmax(x, axis=0), np.fmax(x[0], x[1]), x.any(), x.all(axis=0), x.prod())

== ties
def given(): return [np.array([[1.0, 1.0, 0.0], [-0.0, 0.0, 0.0]])]
def f(x): return x.argmax(axis=1), x.argmin(axis=1), np.argmax(x), x.max(axis=1), x.min(axis=1), np.maximum(x[1], -x[1])

== closeness
def given(): return [np.array([1.0, np.nan, np.inf, 0.0])]
def f(x): return np.isclose(x, x), np.allclose(x, x), np.isclose(x, x + 1e-9, equal_nan=True), np.array_equal(x, x)

== reductions of several axes
def given(): return [np.arange(24.0).reshape(2, 3, 4)]
def f(x): return x.sum(axis=(0, 2)), x.max(axis=(0, -1), keepdims=True), x.mean(axis=()), np.sum(x, axis=-2), x.var(axis=(1, 2), ddof=1)

== axes that are not there raise
def f(x): return x.sum(axis=2)

== reductions with where and initial
def f(x): return np.sum(x, where=x > 2, initial=1.0), np.max(x, initial=9.0), np.min(x, axis=0, initial=0.0, where=x > 2)

== reductions of nothing
def given(): return [np.ones((0, 3))]
def f(x): return x.sum(axis=0), x.prod(), x.mean(), x.all(), x.any(axis=0)

== the greatest of nothing raises
def given(): return [np.ones((0, 3))]
def f(x): return x.max()

== products of matrices
def given(): return [np.arange(6).reshape(2, 3), np.array([True, False, True]), np.arange(3, dtype="i1")]
def f(a, b, c): return a @ a.T, a @ b, a @ c, c @ c, np.dot(a, 2), np.outer(c, c), b @ b, np.inner(a, a), np.vdot(c, c)

== short integers overflow in products
def given(): return [np.full((2, 2), 100, "i1"), np.full((2, 2), 2**62)]
def f(a, b): return a @ a, b @ b, np.einsum("ij,jk->ik", a, a), np.trace(a), np.sum(b), np.cumsum(a)

== einsum
def f(x): return np.einsum("ij->", x), np.einsum("ij,ij->i", x, x), np.einsum("ij,kj", x, x), np.einsum("...j,j", x, w), np.einsum("ii", x[:, :2])
def change(n): w[0] = n

== padding, rolling, repeating
def f(x): return np.pad(x, 1), np.pad(x, ((0, 1), (2, 0)), constant_values=7), np.roll(x, 1), np.roll(x, (1, -1), (0, 1)), np.repeat(x, 2, 1), np.tile(x, (2, 1)), np.kron(x, w)

== differences and gradients
def f(x): return np.diff(x), np.diff(x, n=2, axis=1), np.gradient(x, 2.0, axis=1), np.trapezoid(x, dx=0.5), np.cumsum(x, axis=0), np.ediff1d(x)

== slices
def f(x): return x[::-1, ::2] * 1, x[..., None] * 1, x[-1:] * 1, x[5:].sum(), x[:, [2, 0]] * 1, x[x[:, 0] > 1] * 1, x[np.array([1, -1])] * 1, x[True] * 1

== assignments
def f(x):
    y = x * 1
    y[0, ::2] = y[1, ::-2]
    y[:, 1] += y[:, 0]
    y[y > 5] = 0
    y[-1] *= 2
    y[...] = y + 1
    y[[0, 1], [1, 2]] = -1
    return y

== a loop of writes
def f(x):
    y = np.zeros(3)
    for i in range(1, 3): y[i] = y[i - 1] * scale + x[0, i]
    return y
def change(n):
    global scale
    scale += 1

== what is written is read later
def f(x):
    a = np.zeros(3)
    b = x[0] + a
    a[:] = x[1]
    c = x[0] + a
    a += c
    return a, b, c

== a made array is written through its view
def f(x):
    a = np.zeros((2, 3))
    v = a[0]
    v[:] = x[0]
    a[1] = v * 2
    return a

== a transposed array is written to
def f(x):
    a = (x * 2).T
    a[0] = 1.0
    return a

== logging
import logging
seen = []
class H(logging.Handler):
    def emit(self, record): seen.append(record.getMessage())
logger = logging.getLogger("hostile")
logger.handlers[:] = [H()]
logger.setLevel("INFO"); logger.propagate = False
def f(x):
    logger.info("called %s", x.shape)
    return x * 2
def state(): return list(seen)

== warnings of the user's
seen = []
def f(x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("mine")
    seen.append(len(caught))
    return x * 2
def state(): return list(seen)

== assertions
turn = [1.0]
def given(): return [np.full(3, turn[0])]
def f(x):
    assert x.ndim == 1
    assert (x > 0).all(), "not positive"
    return x * 2
def change(n): turn[0] = -turn[0]

== assertions on what is captured
def f(x):
    assert w[0] > 0, "not positive"
    return x * 2
def change(n): w[0] = -w[0]

== an exception with a value from outside
def f(x):
    if w.sum() > 6: raise ValueError(f"sum {w.sum()}")
    return x * 2
def change(n): w[0] += 1

== one exception and another
def f(x):
    try:
        raise KeyError(w[0] > 1)
    except KeyError as e:
        return x * (2 if e.args[0] else 3)
def change(n): w[0] += 1

== a loop that breaks on what is captured
def f(x):
    for v in w:
        if v > 2: break
        x = x * (v + 1)
    else:
        x = x + 100
    return x
def change(n): w[:] = n

== sorted, any and all of what is captured
def f(x): return x * sorted(w)[0] * (2 if any(w > 2) else 3) * (2 if all(v > 0 for v in w) else 5)
def change(n): w[n % 3] = n - 1.0

== text of a captured array decides
def f(x): return x * (2 if w.tolist() == [1.0, 2.0, 3.0] else 3) * len(w.tobytes())
def change(n): w[0] += 1

== np.isin, np.unique of what is captured
def f(x): return x * np.isin(2.0, w) * len(np.unique(w))
def change(n): w[1] = n

== a captured array of complex numbers
z = np.array([1 + 2j, 0, 3])
def f(x): return (x * z).real
def change(n): z[0] = n

== a captured array with no axes
z = np.array(2.0)
def f(x): return x * z + float(z) + z.item()
def change(n): z[()] = 3.0 + n

== a captured random generator
rng = np.random.default_rng(3)
def f(x): return x * rng.random()
def state(): return [rng.bit_generator.state["state"]["state"]]

== a captured random array
rng = np.random.default_rng(3)
noise = rng.random(3)
def f(x): return x * noise
def change(n): rng.random(out=noise)

== a random choice of Python's
def f(x): return x * random.choice([2.0, 2.0])
def state(): return [len(random.getstate()[1])]

== a counter in a default
def f(x, seen={"n": 0}):
    seen["n"] += 1
    return x * seen["n"]

== a counter in a class
class C:
    n = 0
def f(x):
    C.n += 1
    return x * 2
def state(): return [C.n]

== an iterator in a default
def f(x, it=itertools.count(1)): return x * next(it)

== a global that the function sets
last = None
def f(x):
    global last
    last = x * 2
    return last + 1
def state(): return [last]

== a list comprehension of effects
seen = []
def f(x): return sum([(seen.append(i), x * i)[1] for i in range(3)])
def state(): return list(seen)

== sys.stdout is replaced
import io
def f(x):
    print("called", file=sys.stderr if x.ndim > 5 else out)
    return x * 2
out = io.StringIO()
def state(): return [out.getvalue()]

== a queue
import queue
q = queue.Queue()
def f(x):
    q.put(1)
    return x * 2
def state(): return [q.qsize()]

== a thread is started
seen = []
def f(x):
    t = threading.Thread(target=lambda: seen.append(1))
    t.start(); t.join()
    return x * 2
def state(): return list(seen)

== a memoised method
class C:
    def __init__(self): self.memo = {}
    def g(self, x, n):
        if n not in self.memo: self.memo[n] = n * scale
        return x * self.memo[n]
c = C()
def f(x): return c.g(x, 3)
def change(n):
    global scale
    scale = 3.0 + n
def state(): return [dict(c.memo)]

== a memo by a decorator of the user's
def memo(g):
    known = {}
    @functools.wraps(g)
    def inner(n):
        if n not in known: known[n] = g(n)
        return known[n]
    return inner
@memo
def rate(n): return n * scale
def f(x): return x * rate(3)
def change(n):
    global scale
    scale = 3.0 + n

== a function decorated by NumPy's errstate
@np.errstate(divide="ignore")
def g(x): return 1 / (x - 1)
def f(x): return g(x)

== np.piecewise, np.select, np.choose
def f(x): return np.piecewise(x, [x > 2], [lambda v: v * scale, 0.0]) + np.select([x > 3, x > 1], [x, x * scale], 7.0) + np.choose([[0, 1, 0]] * 2, [x, x * 2])
def change(n):
    global scale
    scale = 3.0 + n

== np.fromfunction, np.fromiter, np.apply_along_axis
def f(x): return np.fromfunction(lambda i, j: i * scale + j, (2, 3)) * x + np.fromiter((v for v in w), float) + np.apply_along_axis(lambda r: r * scale, 1, x)
def change(n):
    global scale
    scale = 3.0 + n
    w[0] = n

== np.poly1d and np.polyval
p = np.poly1d([1.0, 2.0])
c = [1.0, 2.0]
def f(x): return p(x) + np.polyval(c, x)
def change(n):
    p.coeffs[0] = 3.0 + n
    c[1] = 4.0 + n

== np.interp over captured tables
xs, ys = np.arange(4.0), np.arange(4.0) ** 2
def f(x): return np.interp(x, xs, ys) * 2
def change(n): ys[1] = 3.0 + n

== np.nditer and np.ndenumerate
def f(x):
    y = np.zeros_like(x)
    for i, v in np.ndenumerate(w): y[0, i[0]] = v * x[1, i[0]]
    return y
def change(n): w[0] = 3.0 + n

== complex numbers of Python
k = 1 + 2j
def f(x): return (x * k).imag
def change(n):
    global k
    k = n + 1j

== big integers of Python
k = 2**70
def f(x): return x * k
def change(n):
    global k
    k = 2 ** (71 + n)

== decimals and fractions
import decimal, fractions
k = fractions.Fraction(1, 2)
def f(x): return x * float(k) + float(decimal.Decimal("0.5"))
def change(n):
    global k
    k = fractions.Fraction(n + 1, 3)

== dates of Python
import datetime
day = datetime.date(2020, 1, 2)
def f(x): return x * day.day
def change(n):
    global day
    day = datetime.date(2020, 1, 3 + n)

== a protocol of arrays
class A:
    def __array__(self, dtype=None, copy=None): return w * 2
a = A()
def f(x): return np.asarray(a) * x + np.add(x, a)
def change(n): w[0] = 3.0 + n

== an object that is multiplied
class K:
    __array_ufunc__ = None
    def __rmul__(self, x): return x * scale
k = K()
def f(x): return x * k
def change(n):
    global scale
    scale = 3.0 + n

== an object that is an index
class I:
    def __index__(self): return turn[0]
turn = [0]
i = I()
def f(x): return x[i] * 2
def change(n): turn[0] = 1 - turn[0]

== lengths that change
turn = [3]
def given(): return [np.arange(float(turn[0]))]
def f(x): return x * len(x) + x.sum()
def change(n): turn[0] += 1

== dtypes that change
kinds = ["f8", "f4", "i8", "?", "f2"]
def given(): return [np.arange(3).astype(kinds[0])]
def f(x): return x * 2, x.sum(), x.mean()
def change(n): kinds.append(kinds.pop(0))

== layouts that change
turn = [0]
def given():
    x = np.arange(36.0).reshape(6, 6)
    return [[x, x.T, np.asfortranarray(x), x[::2, ::2], x[::-1]][turn[0]]]
def f(x): return x * 2, x.sum(axis=0), np.ravel(x) * 1, x.copy()
def change(n): turn[0] += 1

== alignment and byte order change
turn = [0]
def given():
    raw = np.frombuffer(b"x" + np.arange(3.0).tobytes(), np.uint8)[1:].view(float)
    return [[np.arange(3.0), raw, np.arange(3).astype(">f8"), np.arange(3.0)[::-1]][turn[0] % 4]]
def f(x): return x * 2, x.sum()
def change(n): turn[0] += 1

== subclasses come in between
class A(np.ndarray):
    def __mul__(self, o): return np.full(3, 99.0)
turn = [0]
def given(): return [np.ones(3).view(A) if turn[0] % 2 else np.ones(3)]
def f(x): return x * 2
def change(n): turn[0] += 1

== structures of arguments change
turn = [0]
def given(): return [[[np.ones(3)], [np.ones(3)] * 2, (np.ones(3),), {"a": np.ones(3)}][turn[0] % 4]]
def f(xs): return sum(xs.values() if isinstance(xs, dict) else xs) * len(xs) * (2 if isinstance(xs, tuple) else 3)
def change(n): turn[0] += 1

== numbers and arrays change places
turn = [0]
def given(): return [np.ones(3), [2.0, np.array(2.0), np.float64(2.0), 2, np.ones(1) * 2][turn[0] % 5]]
def f(x, k): return x * k, k * 2
def change(n): turn[0] += 1
"""


def programs() -> dict[str, str]:
    """Names, and texts."""
    parts = [p.partition("\n") for p in PROGRAMS.split("\n== ")[1:]]
    assert len({name for name, _, _ in parts}) == len(parts)
    return {name: PRELUDE + text for name, _, text in parts}
