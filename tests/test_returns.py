"""What calls of the project's own functions give, in the caller's terms."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from precision_lint.semantics.index import build, walk_function
from precision_lint.semantics.module import Module
from precision_lint.semantics.program import Program
from precision_lint.semantics.values import Value
from tests import analysis, projects
from tests.projects import linked


def called(
    helper: str, call: str, tmp_path: Path, before: str = "pass", star: bool = False
) -> Value:
    """What a call gives whose function is in another file."""
    names = ", ".join(re.findall(r"^(?:def|class) (\w+)", helper, re.MULTILINE))
    imports = f"import torch\nfrom util import {'*' if star else names}"
    texts = {
        "util.py": f"import torch\n{helper}\n",
        "use.py": f"{imports}\ndef use(x, y, m):\n    {before}\n    return {call}\n",
    }
    projects.write(tmp_path, texts)
    made = linked(**{name[:-3]: text for name, text in texts.items()})
    program = Program(str(tmp_path), made.files, made.names, made.callers, made.objects)
    module = Module(build(ast.parse(texts["use.py"]), {ast.With, ast.AsyncWith}), "use.py", program)
    function = next(f for f in module.index.functions if f.name == "use")
    (answer,) = (n for n in walk_function(function) if isinstance(n, ast.Return))
    assert answer.value is not None
    return module.analysis(function).values[id(answer.value)]


def helper(body: str, signature: str = "a") -> str:
    return f"def h({signature}):\n    {body}"


@pytest.mark.parametrize(
    ("body", "argument", "kind", "dtype"),
    [
        ("return a", "x", "unknown", "~x"),
        ("return a", "x.float()", "tensor", "float32"),
        ("return a", "x.half()", "tensor", "float16"),
        ("return a * 2 + 1", "x.half()", "tensor", "float16"),
        ("return torch.relu(a)", "x", "tensor", "~x"),
        ("return a.float()", "x.half()", "tensor", "float32"),
        ("return a.to(torch.bfloat16)", "x", "tensor", "bfloat16"),
        ("return torch.zeros(3)", "x", "tensor", "float32"),
        ("return torch.zeros(3, dtype=a.dtype)", "x.half()", "tensor", "float16"),
        ("if a:\n        return a.float()\n    return torch.ones(3)", "x", "tensor", "float32"),
        ("b = a.float()\n    return b.reshape(-1)", "x.half()", "tensor", "float32"),
    ],
)  # fmt: skip
def test_dtypes_follow_the_argument(
    body: str, argument: str, kind: str, dtype: str, tmp_path: Path
) -> None:
    value = called(helper(body), f"h({argument})", tmp_path)
    assert value.dtype == dtype or (kind == "unknown" and value.dtype.startswith("~"))
    assert value.kind == kind


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        ("h(x.half(), x.float())", "float32"),
        ("h(x.half(), b=x.float())", "float32"),
        ("h(b=x.float(), a=x.half())", "float32"),
        ("h(x.float(), x.half())", "float16"),
    ],
)
def test_arguments_are_matched_by_place_and_name(call: str, dtype: str, tmp_path: Path) -> None:
    assert called(helper("return b", "a, b"), call, tmp_path).dtype == dtype


@pytest.mark.parametrize(
    ("body", "low", "high"),
    [
        ("return torch.sigmoid(a)", 0.0, 1.0),
        ("return torch.softmax(a, -1)", 0.0, 1.0),
        ("return a.clamp(min=0.5, max=2.0)", 0.5, 2.0),
        ("return 1 - torch.sigmoid(a)", 0.0, 1.0),
        ("return torch.exp(a) if y else torch.sigmoid(a)", 0.0, float("inf")),
        ("return a", float("-inf"), float("inf")),
    ],
)
def test_bounds_come_along(body: str, low: float, high: float, tmp_path: Path) -> None:
    value = called(helper(body), "h(x)", tmp_path)
    assert (value.lo, value.hi) == (low, high)


def test_bounds_by_a_default_hold_only_for_the_default(tmp_path: Path) -> None:
    clamp = helper("return a.clamp(min=low)", "a, low=0.5")
    assert called(clamp, "h(x)", tmp_path).lo == 0.5
    assert called(clamp, "h(x, 1e-9)", tmp_path).lo < 0.5
    assert called(clamp, "h(x, low=1e-9)", tmp_path).lo < 0.5


def test_functions_that_a_star_brings(tmp_path: Path) -> None:
    assert called(helper("return a.float()"), "h(x)", tmp_path, star=True).dtype == "float32"
    assert called(helper("return a.float()"), "g(x)", tmp_path, star=True).dtype != "float32"


def test_tuples_come_apart(tmp_path: Path) -> None:
    both = helper("return a.float(), a.half()")
    assert called(both, "h(x)[1]", tmp_path).dtype == "float16"
    assert called(both, "p", tmp_path, before="p, q = h(x)").dtype == "float32"


@pytest.mark.parametrize(
    ("functions", "call"),
    [
        (helper("yield a.float()"), "h(x)"),
        (helper("return a.float()"), "h(*x)"),
        (helper("return a.float()"), "h(**x)"),
        (helper("return a.float()"), "h(x, y)"),
        (helper("return b", "*b, a=1"), "h(x.half(), x.float())"),
        (helper("return a.float()"), "m.h(x)"),
        (helper("return a.float()"), "missing(x)"),
        (helper("pass"), "h(x)"),
        ("class C:\n    def h(self, a):\n        return self", "C.h(x.float(), y)"),
    ],
)
def test_what_is_not_followed_is_unknown(functions: str, call: str, tmp_path: Path) -> None:
    value = called(functions, call, tmp_path)
    assert value.kind == "unknown"
    assert value.dtype == "" or value.dtype.startswith("~")


@pytest.mark.parametrize(
    ("decorator", "call"), [("staticmethod", "C.h(x.float())"), ("classmethod", "C.h(x.float())")]
)
def test_methods_of_classes(decorator: str, call: str, tmp_path: Path) -> None:
    signature = "a" if decorator == "staticmethod" else "cls, a"
    text = f"class C:\n    @{decorator}\n    def h({signature}):\n        return a"
    assert called(text, call, tmp_path).dtype == "float32"


@pytest.mark.parametrize("before", ["h = m", "h = lambda a: a"])
def test_a_local_name_hides_the_function(before: str, tmp_path: Path) -> None:
    assert called(helper("return a.float()"), "h(x)", tmp_path, before).dtype != "float32"
    assert called("def m(a):\n    return a.float()", "m(x)", tmp_path).dtype != "float32"


def test_a_parameter_hides_a_function_of_its_own_file() -> None:
    text = "def use(x{}):\n    return h(x)\n\n\ndef h(a):\n    return a.float()\n"
    for parameters, followed in (("", True), (", h", False)):
        made = analysis.module(text.format(parameters))
        found = made.analysis(analysis.function(made, "use")).returned
        assert found is not None
        assert (found.dtype == "float32") is followed


def test_recursion_is_unknown(tmp_path: Path) -> None:
    assert called(helper("return h(a)"), "h(x.float())", tmp_path).dtype != "float32"
    mutual = "def h(a):\n    return g(a)\ndef g(a):\n    return h(a)"
    assert called(mutual, "h(x.float())", tmp_path).dtype != "float32"


def test_chains_are_followed_and_end(tmp_path: Path) -> None:
    def chain(length: int) -> str:
        links = [f"def f{n}(a):\n    return f{n + 1}(a)" for n in range(length)]
        return "\n".join([*links, f"def f{length}(a):\n    return a.float()"])

    assert called(chain(1), "f0(x)", tmp_path).dtype == "float32"
    assert called(chain(500), "f0(x)", tmp_path).dtype != "float32"


def test_regions_of_the_caller_count(tmp_path: Path) -> None:
    text = helper("return torch.softmax(a, -1)")
    assert called(text, "h(x)", tmp_path).wide
    before = "with torch.autocast('cuda'):\n        p = h(x)"
    assert called(text, "p", tmp_path, before).dtype == "float32"
