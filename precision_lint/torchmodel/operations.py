"""provisional"""
from __future__ import annotations
import functools, json
from dataclasses import dataclass
from importlib import resources
from collections.abc import Mapping
INF=float("inf")
@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    parameters: tuple[str, ...]
    operands: tuple[int, ...]
    listed: bool
    result: str
    outputs: tuple[str, ...]
    fields: tuple[str, ...]
    strict: tuple[int, ...]
    policy: Mapping[str, str]
    missing: Mapping[str, int]
    dtype_argument: bool
    method: bool
    function: bool
    lo: float
    hi: float
    view: bool
    elementwise: bool
    reduction: bool
ALIASES={"subtract":"sub","multiply":"mul","divide":"div","true_divide":"div","clip":"clamp","absolute":"abs","negative":"neg","concat":"cat","concatenate":"cat","greater":"gt","less":"lt","greater_equal":"ge","less_equal":"le","not_equal":"ne","expit":"sigmoid","arccos":"acos","arcsin":"asin","arctan":"atan","arctan2":"atan2","row_stack":"vstack","inverse":"linalg.inv","det":"linalg.det","swapaxes":"transpose","moveaxis":"movedim","fix":"trunc","svd":"linalg.svd","cholesky":"linalg.cholesky","qr":"linalg.qr"}
@functools.cache
def _table():
    d=json.loads(resources.files("precision_lint.torchmodel").joinpath("operations.json").read_text())
    return {n:Operation(n,tuple(v["p"]),tuple(v["o"]),bool(v["l"]),v["r"],tuple(v["outs"]),tuple(v["f"]),tuple(v["s"]),v["pol"],v["miss"],bool(v["dt"]),bool(v["m"]),True,-INF if v["lo"] is None else v["lo"],INF if v["hi"] is None else v["hi"],bool(v["v"]),bool(v["e"]),bool(v["red"])) for n,v in d.items()}
def operation(name):
    return _table().get(ALIASES.get(name,name))
HOMES=("torch.nn.functional.","torch.linalg.","torch.fft.","torch.special.","torch.Tensor.","torch.")
def of_function(q):
    for h in HOMES:
        if q.startswith(h):
            n=q[len(h):]
            if "." in n: continue
            if h in ("torch.linalg.","torch.fft."): n=h[6:]+n
            f=operation(n) or operation(n.rstrip("_"))
            if f: return f
    return None
def of_method(n):
    n2=n[:-1] if n.endswith("_") and not n.endswith("__") else n
    f=operation(n2)
    return f if f and f.method or f and n2 in ALIASES else None
