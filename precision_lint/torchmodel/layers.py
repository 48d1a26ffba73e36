"""provisional"""
from __future__ import annotations
import functools, json
from dataclasses import dataclass
from importlib import resources
from collections.abc import Mapping
@dataclass(frozen=True, slots=True)
class Layer:
    name: str
    operation: str
    parameters: tuple[str, ...]
    defaults: Mapping[str, object]
    weights: tuple[str, ...]
    buffers: tuple[str, ...]
    outputs: int
    container: bool
@functools.cache
def _t():
    d=json.loads(resources.files("precision_lint.torchmodel").joinpath("layers.json").read_text())
    return {n:Layer(n,v["op"],tuple(v["p"]),v["d"],tuple(v["w"]),tuple(v["b"]),v["out"],bool(v["c"])) for n,v in d.items()}
def layer(n): return _t().get(n)
def of_class(q):
    return _t().get(q.rpartition(".")[2]) if q.startswith("torch.nn.") else None
