"""provisional"""
from __future__ import annotations
from precision_lint.domains import dtypes as d
def result(name, kinds):
    last=name.rpartition(".")[2]
    k={"float32":d.V_FLOAT32,"float16":d.V_FLOAT16,"float64":d.V_FLOAT64,"int64":d.V_INTEGER,"int32":d.V_INTEGER}
    if last in k: return k[last]
    if last in("zeros","ones","linspace","eye","empty","rand","randn","uniform","normal","random","identity","full"): return d.V_FLOAT64
    if last=="arange": return d.V_FLOAT64 if any(x==d.V_FLOAT64 for x in kinds) else d.V_INTEGER
    if kinds and last in("array","asarray","stack","concatenate"): return kinds[0]
    return kinds[0] if kinds and last in("abs","clip","reshape","transpose","exp","log","sqrt") else d.V_ANY
