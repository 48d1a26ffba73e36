"""What the tool does only as often as it must, and what must not grow with the square of the code."""

from __future__ import annotations

import ast
import gc
from pathlib import Path
from typing import Any

import pytest

from precision_lint import changes, gathering, source
from precision_lint.config import Settings
from precision_lint.dataflow import program
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.protocol import Step
from precision_lint.domains import dtypes
from precision_lint.engine import Engine
from precision_lint.events import Place
from precision_lint.project.code import Code
from precision_lint.runner import check
from precision_lint.source import Source
from precision_lint.syntax.tree import Tree, span_of
from precision_lint.typestate import reports

PLACES = '''
@first(lambda x: x)
@second
class A:
    """Words."""

    @property
    def f(self, x=[1, *y], *, z: int = 2) -> "B":
        return f"{x!r:>{z}} and {self.g(i for i in x)}" f"{z}"

    async def g(self):
        async with a as b, c() as (d, e):
            await {k: v for k, v in b if k < v <= 3}
        (x); y
        del x[1:2, ::3]
        try:
            match x:
                case {"a": [A(b=1), *_], **rest} if rest:
                    x = yield
        except (E, F) as error:
            raise error from None
'''


def test_nodes_are_found_by_place_as_a_walk_over_the_file_finds_them() -> None:
    tree = ast.parse(PLACES)
    places: dict[Any, ast.AST] = {}
    parents: dict[int, ast.AST] = {}
    for node in ast.walk(tree):
        parents.update((id(child), node) for child in ast.iter_child_nodes(node))
        span = span_of(node)
        if span is not None and (span not in places or isinstance(places[span], ast.stmt)):
            places[span] = node
    for span, node in places.items():
        fresh = Tree("a.py", tree)  # nothing is known from an earlier question
        assert fresh.node(Place("a.py", *span)) is node
        assert Tree("a.py", tree).parent(node) is parents[id(node)]
    assert Tree("a.py", tree).node(Place("a.py", 1, 0, 99, 0)) is None


LINES = (
    "    y = torch.log(x + 1)\n",
    "y = torch.log((x + 1))\n",
    "    y = (x + 1) * f(\n        x,  # why\n        z)\n",
    "y = [x.exp().exp(), -x, (x)]\r\nz = x\n",
)


@pytest.mark.parametrize("text", LINES)
@pytest.mark.parametrize("change", [changes.Suffix(".float()"), changes.template("(_ - 1)")])
def test_an_edit_of_one_expression_is_that_of_a_visit_of_all(
    text: str, change: changes.Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = changes._parsed(text)
    assert parsed is not None
    for place in parsed[1]:
        changes.edit.cache_clear()
        quick = changes.edit(text, ((place, change),))
        with monkeypatch.context() as patch:
            patch.setattr(changes, "_spliced", lambda *_: None)
            changes.edit.cache_clear()
            assert changes.edit(text, ((place, change),)) == quick
    changes.edit.cache_clear()


def _parsed_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    parse = source.parse

    def counted(text: Source) -> Any:
        names.append(Path(text.filename).name)
        return parse(text)

    monkeypatch.setattr(source, "parse", counted)
    return names


def test_a_file_without_a_finding_is_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "used.py").write_text("import torch\n\n\ndef f(x):\n    return torch.exp(x)\n")
    (tmp_path / "user.py").write_text("import torch\nfrom used import f\ny = f(torch.zeros(2))\n")
    (tmp_path / "wrong.py").write_text("import torch\ndef f(:\n")
    settings = Settings(no_cache=True)
    names = _parsed_names(monkeypatch)
    result = check([tmp_path], lambda _: settings, workers=1)
    assert [one.code for one in result.diagnostics] == ["MP002"]
    assert names.count("used.py") == names.count("user.py") == 1


def _interpreted(monkeypatch: pytest.MonkeyPatch, text: str, name: str) -> tuple[int, Engine]:
    """How often the body of a function is interpreted, and the engine that did it."""
    count = 0
    block = Interpreter.block

    def counted(self: Interpreter, body: Any) -> bool:
        nonlocal count
        function = self.function
        count += function is not None and function.qualname == name and body is function.node.body
        return block(self, body)

    monkeypatch.setattr(Interpreter, "block", counted)
    engine = Engine(Code(Path(), {"a.py"}, texts={"a.py": Source("a.py", text)}))
    engine.facts("a.py")
    return count, engine


def test_a_method_that_nobody_calls_is_interpreted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import torch\n\n\nclass A(torch.nn.Module):\n    def __init__(self, n):\n        self.n = n\n"
    assert _interpreted(monkeypatch, text, "A.__init__")[0] == 1


def test_nothing_keeps_functions_of_files_that_were_interpreted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = (
        "import torch\n\n\ndef f(model, x, optimizer):\n    with torch.no_grad():\n        model(x)\n"
        "    for _ in x:\n        loss = model(x).sum()\n        loss.backward()\n"
        "        optimizer.step()\n"
    )
    _, engine = _interpreted(monkeypatch, text, "f")
    it = engine.program.interpreter
    assert not it.quiet
    assert not any(isinstance(key, tuple) and len(key) != 2 for key in it.notes)


def test_a_file_that_others_refer_to_is_not_loaded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "KEPT", 1)
    head = "import torch\nfrom base import Base\n\n\nclass A(Base):\n"
    head += "    def forward(self, x):\n        return torch.exp(x)\n"
    texts = {
        "base.py": "import torch\n\n\nclass Base(torch.nn.Module):\n    pass\n",
        **dict.fromkeys(("a.py", "b.py"), head),
    }
    names = _parsed_names(monkeypatch)
    engine = Engine(
        Code(Path(), set(texts), texts={name: Source(name, text) for name, text in texts.items()})
    )
    engine.facts("a.py")
    first = engine.program.load("a.py")
    engine.facts("b.py")
    assert first is not None
    assert names.count("base.py") == 1
    engine.forget("base.py")
    engine.facts("b.py")
    assert names.count("base.py") == 2


def test_who_takes_all_names_of_a_file_is_loaded_anew_with_it() -> None:
    texts = {
        "base.py": "import torch\n\n\ndef lowered(x):\n    return x.half()\n",
        "all.py": "from base import *\n",
        "use.py": "import torch\nfrom all import lowered\n\n\ndef loss(x):\n"
        "    return torch.log(lowered(x.sigmoid()) + 1e-8)\n",
    }
    held = {name: Source(name, text) for name, text in texts.items()}
    engine = Engine(Code(Path(), set(texts), texts=held))
    assert "log-guard" in engine.facts("use.py").events["use.py"]
    changed = texts["base.py"].replace("return x", "return x.detach().clamp(min=0.5)")
    engine.code.texts["base.py"] = Source("base.py", changed)
    engine.forget("base.py")
    assert "log-guard" not in engine.facts("use.py").events.get("use.py", "")


def test_a_name_of_python_that_torch_exports_is_that_of_torch() -> None:
    texts = {
        "use.py": "from torch import *\nfrom other import *\n",
        "other.py": "def rest(x):\n    return x\n",
    }
    held = {name: Source(name, text) for name, text in texts.items()}
    found = Engine(Code(Path(), set(texts), texts=held)).program
    module = found.load("use.py")
    assert module is not None
    named = {name: found.global_of(found.interpreter, module, name) for name in ("abs", "len")}
    assert [getattr(value, "name", "") for value in named.values()] == ["torch.abs", "builtins.len"]


def test_trees_of_files_that_are_let_go_of_need_no_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program, "KEPT", 0)
    body = "import torch\nfrom torch import nn\n\n\nclass Alone(nn.Module):\n"
    body += (
        "    def __init__(self):\n        super().__init__()\n        self.a = nn.Linear(2, 2)\n\n"
    )
    body += "    def forward(self, x):\n        return torch.log(self.a(x).sigmoid() + 1e-8)\n"
    texts = {f"{name}.py": body for name in "abc"}
    engine = Engine(
        Code(Path(), set(texts), texts={name: Source(name, text) for name, text in texts.items()})
    )
    gc.collect()
    with gathering.collector_off():
        for name in texts:
            engine.facts(name)
            assert name not in engine.program.modules
        left = [
            one for one in gc.get_objects() if type(one) is ast.ClassDef and one.name == "Alone"
        ]
    assert not left
    assert engine.facts("a.py").events


def test_tables_of_dtypes_stay_small() -> None:
    for number in range(dtypes.REMEMBERED + 10):
        vector = (dtypes.symbol(number), *dtypes.V_FLOAT32[1:])
        dtypes.floating(vector)
        dtypes.modes_of(vector, dtypes.FLOAT16)
    assert len(dtypes._floating) <= dtypes.REMEMBERED
    assert len(dtypes._modes) <= dtypes.REMEMBERED


def test_the_collector_is_as_it_was_after_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "COLLECT_EVERY", 2)
    for name in "abcd":
        (tmp_path / f"{name}.py").write_text("import torch\n")
    collected: list[tuple[bool, tuple[int, ...]]] = []
    monkeypatch.setattr(gc, "collect", lambda *which: collected.append((gc.isenabled(), which)))
    settings = Settings(no_cache=True)
    before = gc.isenabled()
    check([tmp_path], lambda _: settings, workers=1)
    assert (False, ()) in collected
    assert gc.isenabled() is before


def test_what_several_functions_call_is_looked_at_once() -> None:
    node, place = ast.Pass(), Place("a.py", 1, 0, 1, 4)
    trace: list[Step] = [Step("zero", node, place)]
    for _ in range(80):  # twice each: a walk over all ways would not end
        call = Step("call", node, place, (), (trace,))
        trace = [call, call]
    assert not reports._speaks(trace)
