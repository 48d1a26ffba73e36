"""Summaries: what is kept of a file's names, functions, classes and calls."""

from __future__ import annotations

import pickle
import textwrap

import pytest

from precision_lint.semantics.summary import (
    ClassFacts,
    FunctionFacts,
    Lexical,
    Origin,
    Summary,
    summarise,
)
from precision_lint.semantics.withs import Withs


def summary(text: str) -> Summary:
    return summarise(("import torch\n" + textwrap.dedent(text)).encode())


def function(made: Summary, name: str) -> FunctionFacts:
    (found,) = (f for f in made.functions if f.name == name)
    return found


def cls(made: Summary, name: str) -> ClassFacts:
    (found,) = (c for c in made.classes if c.name == name)
    return found


def test_names() -> None:
    made = summary("""
        import numpy as np
        import pkg.deep
        from . import util
        from ..other import thing as renamed
        from .star import *
        EPS = 1e-8
        helper = util.make()

        def f():
            from late import inner
    """)
    assert dict(made.imports) == {
        "torch": "torch", "np": "numpy", "pkg": "pkg", "util": ".util",
        "renamed": "..other.thing", "inner": "late.inner",
    }  # fmt: skip
    assert made.stars == (".star",)
    assert set(made.names) == {"EPS", "helper"}
    assert made.variables == (("helper", ("call", ("name", ".util.make"))),)


def test_functions_have_names_of_their_own() -> None:
    made = summary("""
        def f():
            def g():
                class C:
                    def h(self):
                        pass

        class C:
            def f(self):
                def g():
                    pass
    """)
    assert {f.name for f in made.functions} == {
        "<module>", "f", "f.g", "f.g.C.h", "C.f", "C.f.g",
    }  # fmt: skip
    assert function(made, "C.f.g").owner == "C"


def origin(expression: str, around: str = "") -> Origin | None:
    """Where an expression that is called comes from."""
    made = summary(f"""
        from pkg import make, Net, loss
        def local(a=make):
            return a
        class Own:
            def method(self, given, other: Net, *rest):
                {around or "pass"}
                ({expression})("called")
    """)
    calls = function(made, "Own.method").calls
    found = [call for call in calls if call.span[2] == max(c.span[2] for c in calls)]
    outer = max(found, key=lambda call: call.span[3]) if found else None
    return outer.callee if outer and outer.span[3] > len(expression) else None


MAKE = ("name", "pkg.make")
NET = ("name", "pkg.Net")


@pytest.mark.parametrize(
    ("expression", "around", "expected"),
    [
        ("make", "", MAKE),
        ("local", "", ("here", "local")),
        ("Own", "", ("here", "Own")),
        ("given", "", ("parameter", "given")),
        ("self", "", ("self",)),
        ("self.x", "", ("attribute", ("self",), "x")),
        ("self.x.y", "", ("attribute", ("attribute", ("self",), "x"), "y")),
        ("make()", "", ("call", MAKE)),
        ("make().run", "", ("attribute", ("call", MAKE), "run")),
        ("super().method", "", ("attribute", ("super",), "method")),
        ("Net().to('cuda').eval()", "", ("call", NET)),
        ("v", "v = Net()", ("call", NET)),
        ("w", "v = Net(); w = v", ("call", NET)),
        ("v", "v, w = make()", ("item", ("call", MAKE), 0)),
        ("w", "v, w = Net(), make", MAKE),
        ("v", "v = Net() if given else make()", ("any", (("call", NET), ("call", MAKE)))),
        ("v", "v = given or make", ("any", (("parameter", "given"), MAKE))),
        ("v[0]", "v = [make, Net]", ("tuple", (MAKE, NET))),
        ("v['a']", "v = {'a': make}", MAKE),
        ("v", "v = v", None),
        ("v", "v = make(v)", ("call", MAKE)),
        ("torch.log", "", None),
        ("torch.nn.Linear(1, 2)", "", None),
        ("unknown", "", None),
        ("3", "", None),
        ("(lambda: 1)", "", None),
    ],
)
def test_origins(expression: str, around: str, expected: Origin | None) -> None:
    assert origin(expression, around) == expected


def test_origins_are_shallow() -> None:
    deep = "make" + "(make)" * 30
    found = origin(deep)
    depth = 0
    while found and found[0] == "call":
        found, depth = found[1], depth + 1
    assert depth < 10


def test_builtins_come_from_no_star() -> None:
    made = summary("from pkg import *\ndef f(x):\n    print(x)\n    perhaps(x)\n")
    assert [c.callee for c in function(made, "f").calls] == [("name", "*.perhaps")]


def test_arguments() -> None:
    made = summary("""
        from pkg import run, Net
        def f(x):
            run(Net, 3, x, model=Net(), rate=0.1)
            run(*x, Net)
    """)
    first, second = sorted(function(made, "f").calls, key=lambda call: call.span)[::2]
    assert first.arguments == (
        (0, NET), (2, ("parameter", "x")), ("model", ("call", NET)),
    )  # fmt: skip
    assert second.arguments == ()


def test_calls_of_functions_that_are_passed() -> None:
    made = summary("""
        from torch.utils.checkpoint import checkpoint
        class C:
            def f(self, x):
                return checkpoint(self.g, x)
    """)
    assert ("attribute", ("self",), "g") in {c.callee for c in function(made, "C.f").calls}


def test_regions_of_calls() -> None:
    made = summary("""
        from pkg import a, b, c
        def f(x):
            a(x)
            with torch.autocast("cuda"):
                b(x)
                with torch.autocast("cuda", enabled=False):
                    c(x)
        @torch.autocast("cpu")
        def g(x):
            pass
    """)
    regions = {call.callee[1]: call.region for call in function(made, "f").calls}
    assert regions["pkg.a"] is None
    assert regions["pkg.b"] == Lexical("on", "float16", "cuda", (6, 9, 6, 31))
    assert regions["pkg.c"] is not None and regions["pkg.c"].state == "off"
    opened = function(made, "g").region
    assert opened is not None and (opened.state, opened.dtype) == ("on", "bfloat16")


def test_parameters() -> None:
    made = summary("""
        from pkg import Net, make
        def f(a, b=Net, *c, d: Net, e=3, g: Net = None, h: torch.Tensor = None, **i):
            pass
    """)
    facts = function(made, "f")
    assert facts.parameters == ("a", "b", "d", "e", "g", "h", "c", "i")
    assert dict(facts.defaults) == {"b": NET, "d": ("declared", NET), "g": ("declared", NET)}


def test_classes() -> None:
    made = summary("""
        from pkg import Base, Net
        class C(Base, torch.nn.Module):
            def __init__(self, given):
                self.net = Net()
                self.given = given
                self.number = 3
                self.layers = torch.nn.ModuleList()
                self.layers.append(Net())
                self.a, self.b = Net(), given

            @property
            def p(self):
                return self.net

            def setup(self):
                self.net = self.given
    """)
    facts = cls(made, "C")
    assert facts.bases == (("name", "pkg.Base"),)
    assert set(facts.methods) == {"__init__", "p", "setup"}
    assert set(facts.attributes) == {
        ("net", ("call", NET), "__init__"),
        ("given", ("parameter", "given"), "__init__"),
        ("layers", ("call", NET), "__init__"),
        ("a", ("call", NET), "__init__"),
        ("b", ("parameter", "given"), "__init__"),
        ("net", ("attribute", ("self",), "given"), "setup"),
    }
    assert function(made, "C.p").is_property and not function(made, "C.setup").is_property


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"\0", b"def f(:", b"# coding: no\n", b"(" * 500, b"-" * 9000 + b"1"],
)  # fmt: skip
def test_what_is_no_python_is_empty(data: bytes) -> None:
    made = summarise(data)
    assert made.classes == () and {f.name for f in made.functions} <= {"<module>"}


@pytest.mark.parametrize(
    "text",
    [
        "x = f" + ".b" * 900 + "\n",
        "f" + ".b()" * 300 + "\n",
        "x = " + " + ".join(["f(a)"] * 900) + "\n",
        "x = " + " or ".join(f"a{i}" for i in range(3000)) + "\n",
        "".join(f"a{i + 1} = (a{i} or a{i}, a{i} if a{i} else a{i})\n" for i in range(300)),
        "".join(f"v{i} = v{i * 7 % 50} or f(v{i * 3 % 50})\n" for i in range(50)) + "v1()()()\n",
        "v = " + "[" * 60 + "f" + "]" * 60 + "\nv()\n",
        "class A(A, B): pass\nclass B(A, B): pass\n",
    ],
)
def test_deep_and_tangled_code_ends(text: str) -> None:
    assert isinstance(summarise(b"from u import f\n" + text.encode()), Summary)


def test_summaries_can_be_sent() -> None:
    made = summary("from a import b\nclass C(b):\n    def f(self):\n        self.x = b()\n")
    assert pickle.loads(pickle.dumps(made)) == made


def test_what_is_around_a_row_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements that are looked at for a call do not grow with the length of its function."""
    looked = 0
    around = Withs.around

    def counted(self: Withs, row: int) -> list[object]:
        nonlocal looked
        found = around(self, row)
        looked += len(found)
        return list(found)

    monkeypatch.setattr(Withs, "around", counted)
    counts = []
    for size in (50, 100):
        body = "    with torch.autocast('cuda'):\n        f(x)\n" * size
        looked = 0
        made = summary(f"from u import f\ndef g(x):\n{body}")
        calls = [c for c in function(made, "g").calls if c.callee == ("name", "u.f")]
        assert len(calls) == size and all(c.region and c.region.state == "on" for c in calls)
        counts.append(looked)
    assert counts[1] == 2 * counts[0]


def test_withs_around_a_row() -> None:
    made = summary("""
        from u import f
        def g(x):
            with torch.autocast("cuda"):
                with open("a") as a:
                    pass
                with open("b") as b: f(1)
            with open("c") as c:
                f(2)
            f(3)
            with (
                torch.autocast("cuda"),
                open("d") as d,
            ):
                f(4)
            async def h():
                async with torch.autocast("cuda"):
                    f(5)
    """)
    states = {
        call.span[0]: call.region and call.region.state
        for name in ("g", "g.h")
        for call in function(made, name).calls
        if call.callee == ("name", "u.f")
    }
    assert list(states.values()) == ["on", None, None, "on", "on"]
