"""provisional"""
from __future__ import annotations
from dataclasses import dataclass
INF=float("inf")
@dataclass(frozen=True, slots=True)
class Creation:
    name: str
    kind: str
    dtype: int
    parameters: tuple[str, ...]
    lo: float
    hi: float
    random: bool
    rank: int
T={}
def _add(names,kind,dtype=0,params=(),lo=-INF,hi=INF,rank=-2):
    for n in names.split(): T[n]=Creation(n,kind,dtype,params,lo,hi,n.startswith("rand"),rank)
_add("zeros","default",lo=0,hi=0);_add("ones","default",lo=1,hi=1);_add("empty randn","default");_add("rand","default",lo=0,hi=1)
_add("eye","default",lo=0,hi=1,rank=2,params=("n","m"));_add("linspace logspace","default",params=("start","end","steps"),rank=1)
_add("hann_window hamming_window blackman_window bartlett_window kaiser_window","default",lo=0,hi=1,rank=1)
_add("tensor as_tensor from_numpy asarray scalar_tensor","data",params=("data",))
_add("zeros_like","like",lo=0,hi=0);_add("ones_like","like",lo=1,hi=1);_add("empty_like randn_like","like");_add("rand_like","like",lo=0,hi=1);_add("full_like","like",params=("input","fill_value"))
_add("new_zeros","new",lo=0,hi=0);_add("new_ones","new",lo=1,hi=1);_add("new_empty","new");_add("new_full","new",params=("input","size","fill_value"));_add("new_tensor","new",params=("input","data"))
_add("full","fill",params=("size","fill_value"));_add("arange","range",params=("start","end","step"),rank=1)
_add("randint randperm tril_indices triu_indices","int",dtype=16)
_add("FloatTensor Tensor","legacy",dtype=2);_add("HalfTensor","legacy",dtype=4);_add("BFloat16Tensor","legacy",dtype=8);_add("DoubleTensor","legacy",dtype=1);_add("LongTensor IntTensor ByteTensor ShortTensor","legacy",dtype=16);_add("BoolTensor","legacy",dtype=32)
def creation(n): return T.get(n)
def of_function(q):
    if q.startswith("torch.cuda.") : q="torch."+q[11:]
    return T.get(q[6:]) if q.startswith("torch.") else None
