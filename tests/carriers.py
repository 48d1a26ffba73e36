"""Small programs that move tensors through what Python has: objects, containers, closures, decorators."""

from __future__ import annotations

from collections.abc import Iterator

HEAD = """\
import abc
import collections
import contextlib
import copy
import dataclasses
import functools
import itertools
import operator
import typing
from types import SimpleNamespace

import torch
from torch import nn

h = torch.ones(4, 4, dtype=torch.float16)
w = torch.ones(4, 4)
b = torch.ones(4, 4, dtype=torch.bfloat16)
i = torch.ones(4, 4, dtype=torch.int64)


"""


def programs() -> Iterator[str]:
    """The text of each program, which defines ``main``."""
    for body in PROGRAMS.strip().split("\n---\n"):
        yield HEAD + body + "\n"


PROGRAMS = """
class A:
    def __init__(self):
        self.x = None
    def put(self, v):
        self.x = v
    def get(self):
        return self.x
def main():
    a = A()
    a.put(h)
    r = a.get()
    a.put(w)
    s = a.get()
---
class A:
    def __init__(self, x):
        self.x = x
    @property
    def y(self):
        return self.x * 2
def main():
    r = A(h).y
    s = A(w).y
---
class A:
    def __init__(self, x):
        self._x = x
    @property
    def x(self):
        return self._x
    @x.setter
    def x(self, v):
        self._x = v.half()
def main():
    a = A(w)
    r = a.x
    a.x = w
    s = a.x
---
class A:
    def __init__(self, x):
        self._x = x
    @functools.cached_property
    def x(self):
        return self._x.half()
def main():
    a = A(w)
    r = a.x
---
@dataclasses.dataclass
class A:
    x: torch.Tensor
    y: torch.Tensor = None
def main():
    a = A(h, w)
    r = a.x
    s = a.y
    c = dataclasses.replace(a, x=w)
    t = c.x
    d = dataclasses.asdict(a)
    u = d["x"]
---
class A(typing.NamedTuple):
    x: torch.Tensor
    y: torch.Tensor
def main():
    a = A(h, w)
    r = a.x
    x, y = a
    s = y + 0
    t = a[0]
    u = a._replace(x=w).x
---
def main():
    P = collections.namedtuple("P", ["x", "y"])
    p = P(h, y=w)
    r = p.x
    s = p.y
    t = p[1]
---
class A:
    kept = h
    @classmethod
    def get(cls):
        return cls.kept
    @staticmethod
    def cast(v):
        return v.half()
def main():
    r = A.get()
    s = A.cast(w)
    t = A().get()
    u = A.kept
---
class A:
    def f(self, v):
        return v.half()
class B(A):
    def f(self, v):
        return super().f(v).float()
class C(A):
    pass
def main():
    r = B().f(w)
    s = C().f(w)
---
class A:
    def f(self, v):
        return self.g(v)
    def g(self, v):
        return v
class B(A):
    def g(self, v):
        return v.half()
def main():
    r = B().f(w)
    s = A().f(w)
---
class A:
    def __call__(self, v):
        return v.half()
    def __getitem__(self, k):
        return h
    def __add__(self, other):
        return w
    def __len__(self):
        return 3
    def __iter__(self):
        yield h
    def __enter__(self):
        return h
    def __exit__(self, *a):
        return None
    def __matmul__(self, o):
        return o.half()
def main():
    a = A()
    r = a(w)
    s = a[0]
    t = a + 1
    for v in a:
        u = v + 0
    with a as q:
        x = q + 0
    y = a @ w
---
class A:
    def __getattr__(self, name):
        return h
def main():
    r = A().anything
---
def main():
    d = {"x": h, "y": w}
    r = d["x"]
    s = d.get("y")
    t = d.pop("x")
    d["z"] = h
    u = d["z"]
    v = list(d.values())[0]
    d.update(q=h)
    x = d["q"]
    y = d.setdefault("n", h)
    z = {**d}["y"]
---
def main():
    d = {}
    for k in ("a", "b"):
        d[k] = h
    r = d["a"]
    for k, v in d.items():
        s = v + 0
    t = {k: v.float() for k, v in d.items()}["a"]
    u = torch.stack(list(d.values()))
---
def main():
    d = collections.defaultdict(list)
    d["a"].append(h)
    r = torch.cat(d["a"])
    s = d["a"][0]
---
def main():
    d = collections.OrderedDict()
    d["a"] = h
    r = d["a"]
    q = collections.deque(maxlen=3)
    q.append(h)
    s = q[0]
    t = torch.stack(list(q))
    u = q.popleft()
---
def main():
    l = [h, w]
    r = l[0]
    s = l[-1]
    a, c = l
    t = c + 0
    l.append(h)
    u = l[2]
    v = l.pop()
    l2 = l + [b]
    x = l2[-1]
    y = [q.half() for q in l][1]
    z = l[::-1][0]
---
def main():
    l = []
    for k in range(3):
        l.append(w.half())
    r = l[0]
    s = torch.cat(l)
    t = sum(l)
    u = functools.reduce(operator.add, l)
    v = functools.reduce(lambda p, q: p + q, l)
    x = max(l, key=lambda q: q.sum())
    y = sum(l) / len(l)
---
def main():
    l = [w] * 3
    l[0] = h
    r = l[0]
    l.insert(0, h)
    s = l[0]
    l.extend([b, b])
    t = l[-1]
    del l[0]
    u = l[0]
---
def main():
    x, *rest = [h, w, b]
    r = x + 0
    s = rest[0]
    *head, y = (h, w)
    t = y + 0
    (p, q), z = (h, w), b
    u = q + 0
    v = z + 0
---
def f(*args):
    return args[0]
def g(**kw):
    return kw["x"]
def k(a, *args, x=None, **kw):
    return args[0] if args else x
def main():
    r = f(h, w)
    s = g(x=h)
    l = [h, w]
    t = f(*l)
    d = {"x": h}
    u = g(**d)
    v = k(w, h)
    x = k(w, x=h)
---
def f(x, y=None):
    if y is None:
        return x
    return y
def main():
    r = f(h)
    s = f(w, h)
---
def f(x, deep):
    return x.half() if deep == 0 else f(x, deep - 1)
def main():
    r = f(w, 3)
---
def outer(x):
    y = x.half()
    def inner(z):
        return z * y
    return inner
def main():
    r = outer(w)(h)
    s = outer(w)(w)
---
def counter():
    total = w
    def add(v):
        nonlocal total
        total = v
        return total
    return add
def main():
    r = counter()(h)
---
def deco(f):
    def inner(*a, **k):
        return f(*a, **k).half()
    return inner
def with_args(dtype):
    def deco(f):
        @functools.wraps(f)
        def inner(*a, **k):
            return f(*a, **k).to(dtype)
        return inner
    return deco
@deco
def f(x):
    return x
@with_args(torch.bfloat16)
def g(x):
    return x
def main():
    r = f(w)
    s = g(w)
---
class Deco:
    def __init__(self, f):
        self.f = f
    def __call__(self, x):
        return self.f(x).half()
@Deco
def f(x):
    return x
def main():
    r = f(w)
---
def main():
    f = lambda x: x.half()
    r = f(w)
    g = functools.partial(torch.add, h)
    s = g(w)
    k = functools.partial(torch.zeros, dtype=torch.float16)
    t = k(3)
    m = w.half
    u = m()
    fs = {"a": torch.Tensor.half, "b": lambda v: v.float()}
    v = fs["a"](w)
    x = fs["b"](h)
---
def gen(n):
    for k in range(n):
        yield h
def both():
    yield h
    yield w
def deleg():
    yield from gen(2)
def main():
    for v in gen(2):
        r = v + 0
    s = next(gen(1))
    t = list(gen(2))[0]
    u = torch.stack(list(deleg()))
    x, y = both()
    z = torch.stack([q for q in gen(2)])
---
@contextlib.contextmanager
def ctx(x):
    yield x.half()
def main():
    with ctx(w) as v:
        r = v + 0
    with contextlib.ExitStack() as st:
        q = st.enter_context(ctx(w))
        s = q + 0
---
def f(x):
    try:
        return x.half()
    except RuntimeError:
        return x.half()
    finally:
        pass
def g(x):
    try:
        y = x.half()
    except ValueError:
        raise
    else:
        y = y * 2
    return y
def main():
    r = f(w)
    s = g(w)
---
def main():
    x = w
    while x.dtype != torch.float16:
        x = x.half()
    r = x + 0
    for k in range(3):
        x = x.float()
        if k == 1:
            break
    s = x + 0
    for k in range(3):
        y = h
        continue
    t = y + 0
---
def main():
    if (y := w.half()).sum() > 0:
        r = y + 0
    s = [z := h, z][1]
    match 1:
        case 1:
            x = h
        case _:
            x = h * 2
    t = x + 0
---
def pick(kind):
    match kind:
        case "half":
            return torch.float16
        case "bf":
            return torch.bfloat16
        case _:
            return torch.float32
DT = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
def get(name):
    return DT[name]
def resolve(name):
    if name == "fp16":
        return torch.float16
    elif name in ("bf16", "bfloat16"):
        return torch.bfloat16
    return torch.float32
def main():
    r = w.to(pick("half"))
    s = w.to(DT["bf16"])
    t = w.to(get("fp16"))
    u = w.to(getattr(torch, "float16"))
    v = w.to(resolve("bf16"))
    x = w.to(resolve("fp32"))
    y = w.to(DT.get("fp16", torch.float32))
---
class Cfg:
    dtype = torch.float16
    def __init__(self, fp16=True):
        self.fp16 = fp16
        self.d = torch.float16 if fp16 else torch.float32
def main():
    r = w.to(Cfg.dtype)
    c = Cfg()
    s = w.to(c.d)
    t = w.to(c.dtype)
    u = w.half() if c.fp16 else w
    c2 = Cfg(fp16=False)
    v = w.to(c2.d)
---
class Cfg(dict):
    __getattr__ = dict.__getitem__
def main():
    c = Cfg(dtype=torch.float16, x=h)
    r = w.to(c["dtype"])
    s = w.to(c.dtype)
    n = SimpleNamespace(dtype=torch.float16, x=h)
    t = w.to(n.dtype)
    u = n.x
    n.y = h
    v = n.y
---
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)
        self.register_buffer("buf", torch.ones(4))
        self.p = nn.Parameter(torch.ones(4))
        self.plain = torch.ones(4)
        self.ls = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.d = nn.ModuleDict({"a": nn.Linear(4, 4)})
        self.seq = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.ps = nn.ParameterList([nn.Parameter(torch.ones(4))])
    def forward(self, x):
        return self.l(x)
def main():
    m = M().half()
    r = m(h)
    s = m.buf * 1
    t = m.p * 1
    u = m.plain * 1
    v = m.ls[0](h)
    x = m.d["a"](h)
    y = m.seq(h)
    z = m.ps[0] * 1
    for q in m.ls:
        aa = q(h)
    bb = next(m.parameters()) * 1
    cc = m.state_dict()["p"] * 1
    dd = m.l.weight * 1
    ee = m.seq[0](h)
    ff = dict(m.named_parameters())["p"] * 1
    gg = m.get_parameter("p") * 1
    hh = getattr(m, "p") * 1
    ii = [q for q in m.children()][0](h)
---
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)
    def forward(self, x):
        return self.l(x)
def build(n):
    return nn.Sequential(*[M() for _ in range(n)])
def main():
    m = build(2).half()
    r = m(h)
    n = copy.deepcopy(m).float()
    s = n(w)
    k = nn.DataParallel(M().bfloat16())
    layers = [M(), nn.ReLU()]
    q = nn.Sequential(*layers)
    t = q(w)
    o = nn.Sequential(collections.OrderedDict(a=M(), b=nn.ReLU())).half()
    u = o(h)
    m2 = M()
    m2.to(torch.bfloat16)
    v = m2(b)
    m3 = M().to(device="cpu", dtype=torch.float16)
    x = m3(h)
    m4 = M().type(torch.float16)
    y = m4(h)
    m5 = M()
    for p in m5.parameters():
        p.data = p.data.half()
    z = m5(h)
    m6 = M().apply(lambda q: q.half())
    aa = m6(h)
---
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)
        self.cache = {}
        self.hist = []
        self.last = None
    def forward(self, x):
        y = self.l(x)
        self.cache["y"] = y
        self.hist.append(y)
        self.last = y
        return y
def main():
    m = M().half()
    m(h)
    r = m.cache["y"]
    s = m.hist[0]
    t = m.last
    u = torch.cat(m.hist)
---
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2.0
        self.setup()
    def setup(self):
        self.w = nn.Parameter(torch.ones(4) * self.scale)
        self.t = torch.ones(4, dtype=torch.float16)
    def forward(self, x):
        return self.run(x, self.w)
    def run(self, x, w):
        return x * w
def main():
    m = M().half()
    r = m(h)
    s = m.t * 1
    n = M()
    t = n(w)
---
class State:
    def __init__(self):
        self.data = {}
    def __setitem__(self, k, v):
        self.data[k] = v
    def __getitem__(self, k):
        return self.data[k]
    def __contains__(self, k):
        return k in self.data
def main():
    s = State()
    s["x"] = h
    r = s["x"]
---
class Acc:
    def __init__(self):
        self.sum = 0
        self.n = 0
    def update(self, v, n=1):
        self.sum += v * n
        self.n += n
    @property
    def avg(self):
        return self.sum / self.n
def main():
    a = Acc()
    for k in range(3):
        a.update(h.mean())
    r = a.avg
    s = a.sum
---
GLOBAL = None
TABLE = {}
def init():
    global GLOBAL
    GLOBAL = h
    TABLE["x"] = h
def use():
    return GLOBAL
def main():
    init()
    r = use()
    s = TABLE["x"]
---
REG = {}
def register(name):
    def deco(cls):
        REG[name] = cls
        return cls
    return deco
@register("a")
class A:
    def f(self, v):
        return v.half()
def make(name):
    return REG[name]()
def main():
    r = make("a").f(w)
    s = REG["a"]().f(w)
---
class Base:
    registry = {}
    def __init_subclass__(cls, **kw):
        Base.registry[cls.__name__] = cls
class A(Base):
    def f(self, v):
        return v.half()
def main():
    r = Base.registry["A"]().f(w)
---
def swap(a, c):
    return c, a
def main():
    x, y = swap(w, h)
    r = x + 0
    x, y = y, x
    s = x + 0
    l = [w, h]
    l[0], l[1] = l[1], l[0]
    t = l[0] + 0
    (a, c), d = swap(w, (h, b)), 3
    u = c + 0
---
def main():
    xs, ys = zip(*[(h, w), (h, w)])
    r = torch.stack(xs)
    s = torch.stack(ys)
    for k, (x, y) in enumerate(zip([h], [w])):
        t = x + 0
        u = y + 0
    v = list(map(lambda q: q.half(), [w, w]))[0]
    x2, y2 = map(lambda q: q.half(), (w, w))
    z = x2 + 0
    aa = [q for q in filter(lambda q: q is not None, [h, None])][0]
    bb = list(itertools.chain([h], [h]))[0]
    cc = torch.stack([*[h], *[h]])
    dd = sorted([h, h], key=lambda q: q.sum())[0]
    ee = list(reversed([h, h]))[0]
    ff = dict(zip(["a"], [h]))["a"]
    gg = [q for sub in [[h], [h]] for q in sub][0]
    for p, q in itertools.product([h], [w]):
        hh = p + 0
    ii = next(iter([h]))
    jj = tuple(q for q in [h])[0]
---
def f(x):
    return {"logits": x.half(), "loss": x.mean(), "hidden": [x, x.half()]}
def main():
    o = f(w)
    r = o["logits"]
    s = o["hidden"][1]
    t = f(w)["loss"]
---
class Out:
    def __init__(self, **kw):
        for k, v in kw.items():
            setattr(self, k, v)
class Out2:
    def __init__(self, **kw):
        self.__dict__.update(kw)
def main():
    o = Out(x=h, y=w)
    r = o.x
    s = o.y
    p = Out2(x=h)
    t = p.x
    setattr(p, "z", h)
    u = p.z
---
def to_half(obj):
    if isinstance(obj, torch.Tensor):
        return obj.half()
    if isinstance(obj, dict):
        return {k: to_half(v) for k, v in obj.items()}
    if isinstance(obj, (list, tuple)):
        return type(obj)(to_half(v) for v in obj)
    return obj
def main():
    r = to_half(w)
    s = to_half({"x": w})["x"]
    t = to_half([w, w])[0]
    u = to_half((w, {"a": w}))[1]["a"]
---
def main():
    x = w.clone()
    x.data = x.data.half()
    r = x + 0
    y = torch.zeros_like(h)
    y.copy_(w)
    s = y + 0
    z = w
    z = z.half() if z.is_floating_point() else z
    t = z + 0
    q = h if h is not None else w
    u = q + 0
    v = (h, w)[0]
    a = h or w if False else h
    c = not False and h
---
class Lin(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x.to(self.weight.dtype), self.weight, self.bias)
class Norm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.float()).type_as(x)
class Emb(nn.Embedding):
    pass
def main():
    l = Lin(4, 4).half()
    r = l(w)
    n = Norm(4)
    s = n(h)
    e = Emb(4, 4).half()
    t = e(torch.ones(2, dtype=torch.int64))
---
class Wrap(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, *args, **kw):
        return self.inner(*args, **kw)
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)
def main():
    m = Wrap(nn.Linear(4, 4)).half()
    r = m(h)
    s = m.inner.weight * 1
    t = m.weight * 1
---
class Ctx:
    pass
def main():
    c = Ctx()
    c.x = h
    r = c.x
    def f():
        return c.x
    s = f()
    d = vars(c)
    t = d["x"]
    u = getattr(c, "missing", h)
---
def main():
    ps = [nn.Parameter(torch.ones(4).half()) for _ in range(2)]
    opt = torch.optim.SGD(ps, lr=0.1)
    for g in opt.param_groups:
        for p in g["params"]:
            r = p * 1
    for name, p in nn.Linear(4, 4).half().named_parameters():
        s = p * 1
    for name, m in nn.Sequential(nn.Linear(4, 4)).half().named_modules():
        if isinstance(m, nn.Linear):
            t = m.weight * 1
---
class Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.k = 2
        return x.half()
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        q = x * ctx.k
        return g.float()
def main():
    r = Fn.apply(w)
---
def hook(module, args, out):
    return out.float()
class M(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.act = act
        self.fns = [lambda v: v.half(), lambda v: v * 2]
    def forward(self, x):
        for f in self.fns:
            x = f(x)
        return self.act(x)
def main():
    r = M(torch.relu)(w)
    s = M(nn.ReLU())(w)
    t = M(lambda v: v.float())(w)
    ops = {"relu": torch.relu, "half": torch.Tensor.half}
    u = ops["half"](w)
    v = getattr(torch, "relu")(h)
    x = getattr(w, "half")()
    y = operator.methodcaller("half")(w)
---
class Meta(type):
    def __call__(cls, *a, **k):
        return super().__call__(*a, **k)
class A(metaclass=Meta):
    def __init__(self, x):
        self.x = x
class S:
    __slots__ = ("x",)
    def __init__(self, x):
        self.x = x
class N:
    def __new__(cls, x):
        o = super().__new__(cls)
        o.x = x
        return o
class F:
    @classmethod
    def make(cls, x):
        return cls(x.half())
    def __init__(self, x):
        self.x = x
    def with_x(self, x):
        self.x = x
        return self
    def clone(self):
        return type(self)(self.x)
def main():
    r = A(h).x
    s = S(h).x
    t = N(h).x
    u = F.make(w).x
    v = F(w).with_x(h).x
    x = F(h).clone().x
    y = F(w).with_x(w).with_x(h).x
---
class Base(abc.ABC):
    @abc.abstractmethod
    def cast(self, v): ...
    def run(self, v):
        return self.cast(v) * 2
class Half(Base):
    def cast(self, v):
        return v.half()
class Mixin:
    def pre(self, v):
        return v.half()
class Both(Mixin, Half):
    def run(self, v):
        v = self.pre(v)
        return super().run(v)
def main():
    r = Half().run(w)
    s = Both().run(w)
    obj = Half() if w.sum() > 0 else Both()
    t = obj.run(w)
---
class Tree:
    def __init__(self, v, left=None):
        self.v = v
        self.left = left
    def leaf(self):
        return self.v if self.left is None else self.left.leaf()
def main():
    r = Tree(h).leaf()
    s = Tree(h, Tree(h)).leaf()
    node = Tree(h, Tree(h))
    while node.left is not None:
        node = node.left
    t = node.v
---
class Q:
    def __init__(self):
        self.items = []
    def push(self, v):
        self.items.append(v)
    def peek(self):
        return self.items[-1]
    def all(self):
        return torch.stack(self.items)
class Trainer:
    def __init__(self, q):
        self.q = q
    def step(self, v):
        self.q.push(v.half())
    def out(self):
        return self.q.all()
def main():
    q = Q()
    t = Trainer(q)
    t.step(w)
    r = t.out()
    s = q.peek()
---
class E(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Linear(4, 4)
        self.shadow = {k: p.clone() for k, p in self.m.named_parameters()}
        self.copies = [p.detach().clone() for p in self.m.parameters()]
    def restore(self):
        for k, p in self.m.named_parameters():
            p.data.copy_(self.shadow[k])
        return self.shadow["weight"]
def main():
    e = E().half()
    r = e.restore()
    s = e.copies[0]
    t = e.m.weight * 1
---
P = typing.NamedTuple("P", [("x", object), ("y", object)])
R = collections.namedtuple(typename="R", field_names=["x", "y"])
class Q(collections.namedtuple("Q", "x y")):
    def half(self):
        return self._replace(x=self.x.half())
def main():
    p = P(h, w)
    r = p[0] + 0
    x, y = p
    s = x + 0
    t = y + 0
    u = Q(w, y=b).half().x
    v = Q(w, b).half().y
    z = P(*Q(h, b)).y
    c = Q(w, b)._replace(x=h)[0] + 0
    d = R(w, h).y
---
@dataclasses.dataclass
class D:
    x: object
    y: object = None
def main():
    r = dataclasses.replace(D(w, b), x=h).x
    s = dataclasses.replace(D(w, b), x=h).y
    t = operator.matmul(h, h)
    u = operator.iadd(w.half(), w)
    v = operator.truediv(w, h)
    n = SimpleNamespace(x=h)
    n.y = b
    x = n.x
    y = n.y
---
class Loader:
    def __init__(self, items):
        self.items = items
    def __iter__(self):
        for one in self.items:
            yield one.half()
@contextlib.contextmanager
def nothing():
    yield
@contextlib.contextmanager
def several(x):
    yield x, x.half()
def main():
    for one in Loader([w, w]):
        r = one + 0
    with several(w) as (a, c):
        s = c + 0
        t = a + 0
    with nothing() as none:
        u = w if none is None else h
    kinds = ("fp16", "half")
    v = w.half() if "half" in kinds else w
    x = w.half() if "fp32" not in kinds else w
    match "half":
        case "bf16":
            y = w.bfloat16()
        case "fp16" | "half" as name:
            y = w.half()
        case _:
            y = w.bfloat16()
    z = y + 0
---
class Lin(nn.Linear):
    def forward(self, x):
        return super().forward(x) + self.bias
class Two(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.ReLU())
class Table(nn.Embedding):
    pass
class Filled(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(4))
        self.start.data = torch.ones(2).repeat(2)
class Wide(nn.Linear):
    def __init__(self):
        super().__init__(4, 4, dtype=torch.float16)
def main():
    r = Lin(4, 4).half()(h)
    s = Two().half()(h)
    t = Two()[0](w)
    u = Table(4, 4).bfloat16()(i)
    v = Wide()(h)
    x = Wide().weight * 1
    y = Lin(4, 4).weight * 1
    z = Filled().half().start * 1
"""
