"""Facts that users state: comments, annotations, assertions, and what is said of wrong comments."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from precision_lint import fix_source, lint_source
from precision_lint.api import Applicability, Confidence, Diagnostic
from precision_lint.syntax.stated import Mistake, Stated, insert, read
from tests import projects

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn, Tensor
import jaxtyping as jt
from jaxtyping import BFloat16, Bool, Float, Float16, Float32, Int64
"""
OFFSET = HEAD.count("\n")
LOG = "torch.log({}.sigmoid() + 1e-12)"


def lint(text: str) -> list[Diagnostic]:
    return lint_source(HEAD + text, confidence="possible", isolated=True)


def said(text: str) -> list[str]:
    """The codes of rules in a text, with what they are sure of."""
    return [f"{d.code} {d.confidence.value}" for d in lint(text) if not d.code.startswith("MP00")]


def under_autocast(text: str) -> list[str]:
    """The same of every confidence, where the user says that it runs under autocast to float16."""
    found = lint_source(
        f"{HEAD}{text}", isolated=True, precision=["amp-float16"], confidence="possible"
    )
    return [f"{d.code} {d.confidence.value}" for d in found]


def complaints(text: str) -> list[str]:
    """What is said of facts, by row below ``HEAD`` and column."""
    found = [d for d in lint(text) if d.code == "MP005"]
    return [f"{d.start.row - OFFSET}:{d.start.column} {d.message}" for d in found]


# stating a fact beats silencing an alarm


@pytest.mark.parametrize(
    ("code", "text", "gone", "comes"),
    [
        ("MP301", f"def f(x):  #\n    return {LOG.format('x')}\n", "x float32", "x float16"),
        ("MP301", "def f(x):\n    p = x.half().sigmoid()  #\n    return torch.log(p + 1e-12)\n", "p >= 0.1",
         "p <= 0.9"),
        ("MP305", "def f(x, n):  #\n    return x.half() / (n.half() + 1e-8)\n", "n >= 1", "n <= 5"),
        ("MP306", "def f(x):\n    v = x.half().square()  #\n    return torch.sqrt(v + 1e-12).sum()\n",
         "v >= 0.1", "v <= 3"),
        ("MP310", "def f(x, mask):  #\n    return x.masked_fill(mask, -1e9).softmax(-1)\n", "x float32",
         "x float16"),
        ("MP401",
         "def f(x):  #\n    y = torch.cat([x, torch.ones(x.shape[0], 1)], 1)\n    return nn.Linear(4, 4)(y)\n",
         "x float32", "x float16"),
        ("MP404", "def f(x):  #\n    return torch.arange(100000).to(x.dtype) + x\n", "x float32", "x float16"),
        ("MP406",
         "def f(xs):  #\n    total = 0\n    for x in xs:\n        total = total + x.mean().detach()\n"
         "    return total\n",
         "xs float32", "xs float16"),
        ("MP502", "def f(x):  #\n    return x @ torch.randn(4, 4)\n", "x float32", "x float16"),
        ("MP505", "def f(x):  #\n    return torch.linalg.inv(x)\n", "x double", "x half"),
        ("MP506", "def f(x):  #\n    return x.cpu().numpy()\n", "x float32", "x bfloat16"),
        ("MP203", "def f(q, k):\n    with torch.autocast('cuda', dtype=torch.float16):\n"
         "        with torch.autocast('cuda', enabled=False):  #\n            return q @ k\n",
         "q float32, k float32", "q float16, k float16"),
        ("MP201", "def f(m, x):  #\n    with torch.autocast('cuda', dtype=torch.float16):\n"
         "        return torch.einsum('bqn,bnc->bqc', m.sigmoid(), x)\n", "m double, x double", "m half"),
        ("MP601", "def f(x):\n    x = x.half()  #\n    return x**2\n", "|x| <= 100", "|x| <= 1000"),
        ("MP603", "def f(x):\n    x = x.half()  #\n    return x.exp()\n", "x <= 5", "x <= 20"),
        ("MP604", "def f(x):  #\n    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)\n",
         "x float32", "x float16"),
    ],
)  # fmt: skip
def test_an_alarm_goes_under_one_fact_and_stays_or_comes_under_another(
    code: str, text: str, gone: str, comes: str
) -> None:
    def codes(fact: str) -> set[str]:
        found = said(text.replace("#", f"# precision-lint: assume {fact}", 1))
        return {one for one in found if one.startswith(code)}

    assert codes(gone) == set()
    assert codes(comes), comes
    assert complaints(text.replace("#", f"# precision-lint: assume {gone}", 1)) == []
    if comes.split()[-1] in ("float16", "half", "bfloat16"):
        assert codes(comes) <= {f"{code} certain", f"{code} likely"}


def test_a_fact_holds_for_every_rule_behind_it_and_until_the_name_is_assigned() -> None:
    text = (
        "def f(x, g):\n"
        "    # precision-lint: assume x float32\n"
        f"    a = {LOG.format('x')}\n"
        "    b = x @ torch.randn(4, 4)\n"
        "    x = g(x).half()\n"
        f"    return a, b, {LOG.format('x')}\n"
    )
    assert [d.start.row - OFFSET for d in lint(text)] == [6]


def test_facts_of_attributes_models_and_lists() -> None:
    head = "class M(nn.Module):\n    def forward(self, x):\n        # precision-lint: assume {}\n"
    text = f"{head}        return {LOG.format('self.scale')}\n"
    assert said(text.format("self.scale float16")) == ["MP301 certain"]
    assert said(text.format("self.scale float32")) == []
    text = "def f(net, xs):  # precision-lint: assume {}\n"
    model = f"{text}    y = net(xs)\n    return {LOG.format('y')}\n"
    assert said(model.format("net float32")) == [
        "MP301 possible"
    ]  # autocast makes its results half
    assert said(model.format("net float16")) == ["MP301 certain"]
    each = f"{text}    return [{LOG.format('x')} for x in xs]\n"
    assert said(each.format("xs float32")) == []
    assert said(each.format("xs float16")) == ["MP301 certain"]


def test_a_module_that_the_code_builds_is_cast_as_stated() -> None:
    text = (
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(4, 4)\n"
        "    def forward(self, x):\n"
        "        y = self.head(x)  # precision-lint: assume self.head {}\n"
        f"        return {LOG.format('y')}\n"
    )
    assert "MP301 certain" in said(text.format("float16"))
    assert not {"MP301 certain", "MP301 likely"} & set(said(text.format("float32")))
    assert complaints(text.format("float16")) == []  # what is built here may be cast elsewhere
    head = "def f(x):\n    net = nn.Linear(4, 4).half()\n"
    text = head + "    # precision-lint: assume net float32\n    return net(x)\n"
    assert complaints(text) == [
        "3:30 assumption `net float32`: the code says otherwise: net is float16 here"
    ]


def test_a_fact_of_what_a_call_registers_holds_in_other_methods() -> None:
    text = (
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('t', torch.ones(4, 4))  #\n"
        "    def forward(self, x):  # precision-lint: assume x float16\n"
        "        return x @ self.t\n"
    )
    assert said(text) == ["MP502 possible"]  # the buffer may be cast with its module
    assert said(text.replace("#", "# precision-lint: assume self.t float32", 1)) == [
        "MP502 certain"
    ]


def test_arrays_have_the_stated_dtype() -> None:
    text = "def f(a):  # precision-lint: assume a {}\n    return nn.Linear(3, 3)(torch.from_numpy(a))\n"
    assert said(text.format("float64")) == ["MP402 certain"]
    assert said(text.format("float32")) == []
    text = "def f(a: jt.{}[np.ndarray, 'n']):\n    return nn.Linear(3, 3)(torch.from_numpy(a))\n"
    assert said(text.format("Float64")) == ["MP402 certain"]
    assert said(text.format("Float32")) == []


def test_a_fact_of_one_branch_leaves_the_other_as_it_is() -> None:
    text = (
        "def f(x, flag):\n"
        "    if flag:\n"
        "        pass  # precision-lint: assume x float32\n"
        f"    return {LOG.format('x')}\n"
    )
    assert said(text) == ["MP301 possible"]


def test_what_a_caller_knows_of_a_value_goes_into_the_function() -> None:
    text = (
        "def loss(p):\n"
        "    return torch.log(p + 1e-12)\n"
        "def f(x, y):\n"
        "    x = x.half()\n"
        "    a = loss(x.sigmoid())\n"
        "    p = x.sigmoid()  # precision-lint: assume p >= 0.1\n"
        "    return a, loss({})\n"
    )
    assert said(text.format("p")) == said(text.format("x.sigmoid()")) == ["MP301 certain"]
    assert said(text.replace("a = loss(x.sigmoid())", "a = 0").format("p")) == []


# where comments hold


@pytest.mark.parametrize(
    "text",
    [
        "# precision-lint: assume x float32\ndef f(x):\n    return {}\n",
        "def f(x):  # precision-lint: assume x float32\n    return {}\n",
        "def f(\n    x,  # precision-lint: assume x float32\n):\n    'Doc.'\n    return {}\n",
        "@torch.no_grad()\n# precision-lint: assume x float32\ndef f(x):\n    return {}\n",
        "def f(x):\n    # precision-lint: assume x float32\n    return {}\n",
        "def f(x):\n    return {}  # precision-lint: assume x float32\n",
        "def f(x):\n    return (\n        # precision-lint: assume x float32\n        {}\n    )\n",
        "def f(y):\n    x = y.mean()  # precision-lint: assume x float32\n    return {}\n",
        "def f(xs):\n    for x in xs:  # precision-lint: assume x float32\n        print({})\n",
        "def f(x, y):\n    if y:  # precision-lint: assume x float32\n        return {}\n",
        "def f(x, y):\n    if y:\n        pass\n    else:  # precision-lint: assume x float32\n"
        "        return {}\n",
        "def f(x):\n    try:\n        pass\n    finally:\n        # precision-lint: assume x float32\n"
        "        {}\n",
        "def f(x):\n    match x:\n        case 1:  # precision-lint: assume x float32\n            return {}\n",
        "def f(x): return {}  # precision-lint: assume x float32\n",
        "async def f(x):  # noqa: E501 # precision-lint: assume x float32  # read by cv2\n    return {}\n",
        "class A:\n    def f(self, x):  # precision-lint:assume  x  torch.float32\n        return {}\n",
    ],
)
def test_places(text: str) -> None:
    text = text.format(LOG.format("x"))
    assert said(text) == []
    assert complaints(text) == []
    assert said(text.replace("precision-lint:", "says:")) != []


def test_the_head_of_a_compound_statement_is_no_place_for_what_follows_it() -> None:
    text = (
        "def f(x, y):\n"
        "    for y in x:  # precision-lint: assume y float32\n"
        "        print(y)\n"
        "    y = x.mean()\n"
        f"    return {LOG.format('y')}\n"
    )
    assert said(text) == ["MP301 possible"]


def test_lines_of_all_kinds() -> None:
    text = f"def f(x):\n    return {LOG.format('x')}  # precision-lint: assume x float32\n"
    for other in (text.replace("\n", "\r\n"), text.replace("\n", "\r"), text[:-1]):
        assert said(other) == [], repr(other)
    assert said("s = 'é'; y = 1  # precision-lint: assume y float32\n") == []
    (found,) = lint("s = 'é'; y = 1  # precision-lint: assume y float32\n")
    assert (found.start.column, found.end.column) == (42, 51)


def test_a_comment_in_a_string_or_in_quotes_states_nothing() -> None:
    text = f"def f(x):\n    '# precision-lint: assume x float32'\n    return {LOG.format('x')}\n"
    assert said(text) == ["MP301 possible"]
    text = f"def f(x):\n    # as in `# precision-lint: assume x float32`\n    return {LOG.format('x')}\n"
    assert said(text) == ["MP301 possible"]
    assert complaints(text) == []


def test_a_tree_without_such_comments_is_left_alone() -> None:
    tree = ast.parse("x = 1  # precision-lint: ignore[MP301]\n")
    insert(tree, "x = 1  # precision-lint: ignore[MP301]\n")
    assert len(tree.body) == 1
    assert read(tree, "x = 1\n") == ([], [])


# the language of facts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x float32", ("x", "float32", None, None, False)),
        ("self.a.b torch.half", ("self.a.b", "half", None, None, False)),
        ("0 <= x <= 1", ("x", "", 0, 1, False)),
        ("1 >= x >= -2.5e-3", ("x", "", -0.0025, 1, False)),
        ("x > 0", ("x", "", 0, None, True)),
        ("0 < x < 1", ("x", "", 0, 1, True)),
        ("1e-3 < x", ("x", "", 0.001, None, False)),
        ("|x| <= 10", ("x", "", -10, 10, False)),
        ("| x | < 10", ("x", "", -10, 10, False)),
        ("10 >= |x.y|", ("x.y", "", -10, 10, False)),
        ("x != 0", ("x", "", None, None, True)),
    ],
)
def test_a_fact(text: str, expected: tuple[str, str, float | None, float | None, bool]) -> None:
    whole = f"x = 1  # precision-lint: assume {text}\n"
    (fact,), mistakes = read(ast.parse(whole), whole)
    assert mistakes == []
    assert isinstance(fact, Stated)
    name, kind, lo, hi, nonzero = expected
    assert (fact.name, fact.kind, fact.nonzero, fact.text) == (name, kind, nonzero, text)
    assert fact.lo == (-float("inf") if lo is None else lo)
    assert fact.hi == (float("inf") if hi is None else hi)


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "x is float32", "x >= y", "x == 1", "|x| >= 1", "|x <= 1", "x != 1", "2 <= x <= 1",
        "lambda float32", "x[0] float32", "x float32 y", "|x| != 0", "x >= 1e", "not float32",
    ],
)  # fmt: skip
def test_what_cannot_be_read(text: str) -> None:
    whole = f"x = 1  # precision-lint: assume {text}\n"
    facts, (mistake,) = read(ast.parse(whole), whole)
    assert facts == []
    assert isinstance(mistake, Mistake)
    assert whole.encode()[mistake.place.column : mistake.place.end_column].decode() == text


# what is wrong with a comment


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(x):  # precision-lint: assume x floot16\n    return x\n",
         "1:37 assumption `x floot16`: floot16 is no dtype; write float16, bfloat16, float32, float64, "
         "int or bool"),
        ("def f(x):  # precision-lint: assume x is half\n    return x\n",
         "1:37 assumption cannot read 'x is half'; write `assume x float32`, `assume 0 <= x <= 1`, "
         "`assume |x| <= 10` or `assume x != 0`"),
        ("def f(x):\n    # precision-lint: assume y.z float32\n    return x\n",
         "2:30 assumption `y.z float32`: nothing is called y here"),
        ("def f(x):\n    x = x.float()  # precision-lint: assume x float16\n    return x\n",
         "2:45 assumption `x float16`: the code says otherwise: x is float32 here"),
        ("def f(x):\n    x = x.sigmoid()  # precision-lint: assume x >= 2\n    return x\n",
         "2:47 assumption `x >= 2`: the code says otherwise: x is in [0, 1] here"),
        ("def f():\n    n = 3  # precision-lint: assume n <= 2\n    return n\n",
         "2:37 assumption `n <= 2`: the code says otherwise: n is 3 here"),
        ("def f(x):\n    x = x.float()  # precision-lint: assume x float32\n    return x\n",
         "2:45 assumption `x float32`: the code shows it already; remove it"),
        ("def f(x):\n    x = x.sigmoid()  # precision-lint: assume x <= 1\n    return x\n",
         "2:47 assumption `x <= 1`: the code shows it already; remove it"),
        ("def f():\n    n = 3  # precision-lint: assume n float32\n    return n\n",
         "2:37 assumption `n float32`: n is nothing that has a dtype"),
        ("def f():\n    n = 'a'  # precision-lint: assume n >= 1\n    return n\n",
         "2:39 assumption `n >= 1`: n is nothing that has bounds"),
        ("def f(x):\n    return x\n    # precision-lint: assume x float32\n    y = x\n",
         "3:30 assumption `x float32`: the analysis does not come here, so that it adds nothing; remove it"),
        ("def f(x):\n    return x\n# precision-lint: assume x float32\n",
         "3:26 assumption stands before no statement"),
    ],
)  # fmt: skip
def test_wrong_comments_are_reported(text: str, expected: str) -> None:
    assert complaints(text) == [expected]


def test_what_contradicts_the_code_is_not_applied() -> None:
    text = f"def f(x):\n    x = x.float()  # precision-lint: assume x float16\n    return {LOG.format('x')}\n"
    assert said(text) == []


def test_a_fact_that_some_caller_needs_is_used(tmp_path: Path) -> None:
    texts = {
        "loss.py": "import torch\n\n\ndef loss(x):  # precision-lint: assume x float32\n"
        f"    return {LOG.format('x')}\n",
        "train.py": "import torch\nfrom loss import loss\n\n\ndef step(x, y):\n    {}\n",
    }
    for call, expected in (
        ("return loss(y)", []),
        ("return loss(y.float())", []),
        ("return loss(y.float()), loss(y.half())", ["loss.py:4 MP005", "loss.py:5 MP301"]),
    ):
        projects.write(tmp_path, texts | {"train.py": texts["train.py"].format(call)})
        found = projects.found(projects.check(tmp_path, confidence=Confidence.POSSIBLE))
        assert found == expected, call


def test_facts_are_judged_anew_from_the_cache(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\ndef f(x):  # precision-lint: assume x float16, y half\n    return {}\n"
    )
    text = text.format(LOG.format("x"))
    projects.write(tmp_path / "a", {"m.py": text})
    runs = [
        projects.found(projects.check(tmp_path / "a", cache_dir=tmp_path / "cache"))
        for _ in range(2)
    ]
    assert runs[0] == runs[1] == ["m.py:4 MP005", "m.py:5 MP301"]


def test_a_file_without_tensors_may_state_nothing(tmp_path: Path) -> None:
    projects.write(tmp_path, {"a.py": "x = 1  # precision-lint: assume x >= 0, x is 1\n"})
    result = projects.check(tmp_path)
    assert [d.code for d in result.diagnostics] == ["MP005", "MP005"]


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("    x = x.float()  # precision-lint: assume x float32\n", "    x = x.float()\n"),
        ("    x = x.float()\n    # precision-lint: assume x float32\n", "    x = x.float()\n"),
        ("    x = x.float()  # precision-lint: assume x float32, x >= 1\n",
         "    x = x.float()  # precision-lint: assume x >= 1\n"),
        ("    x = x.float()  # precision-lint: assume x >= 1, x float32\n",
         "    x = x.float()  # precision-lint: assume x >= 1\n"),
        ("    x = x.float()  # precision-lint: assume x float32  # so be it\n", None),
        ("    x = x.float()  # precision-lint: assume x >= 1 # precision-lint: assume x float32\n",
         "    x = x.float()  # precision-lint: assume x >= 1\n"),
    ],
)  # fmt: skip
def test_what_adds_nothing_is_removed(comment: str, expected: str | None) -> None:
    text = f"{HEAD}def f(x):\n{{}}    return x\n"
    fixed = fix_source(text.format(comment), isolated=True)
    assert fixed.text == text.format(comment if expected is None else expected)


def test_a_complaint_can_be_silenced_and_has_no_fix_where_it_needs_a_decision() -> None:
    text = "def f(x):\n    x = x.float()  # precision-lint: assume x half # noqa: MP005\n    return x\n"
    assert lint(text) == []
    (found,) = lint(text.replace(" # noqa: MP005", ""))
    assert found.fix is None
    (found,) = lint("def f():\n    x = torch.ones(3)  # precision-lint: assume x float32\n")
    assert found.fix is not None and found.fix.applicability is Applicability.SAFE


# annotations


@pytest.mark.parametrize(
    ("text", "half"),
    [
        ("def f(x: {0}[Tensor, 'b n']):\n    return {1}\n", "Float16"),
        ("def f(x: jt.{0}[torch.Tensor, 'b n'] | None = None):\n    return {1}\n", "Float16"),
        ("def f(x: 'jt.{0}[Tensor, \"b n\"]'):\n    return {1}\n", "Float16"),
        ("def f(a, *, x: 'Optional[{0}[Tensor, \"\"]]'):\n    return {1}\n", "Float16"),
        (
            "def f(xs: 'list[{0}[Tensor, \"n\"]]'):\n    for x in xs:\n        print({1})\n",
            "Float16",
        ),
        (
            "def g(y) -> {0}[Tensor, 'n']:\n    return load(y)\ndef f(y):\n    x = g(y)\n    return {1}\n",
            "Float16",
        ),
        (
            "def g(y) -> 'tuple[{0}[Tensor, \"n\"], Tensor]':\n    return load(y)\n"
            "def f(y):\n    x, _ = g(y)\n    return {1}\n",
            "Float16",
        ),
        (
            "class P:\n    def g(self, y) -> {0}[Tensor, 'n']: ...\n"
            "def f(p: P, y):\n    x = p.g(y)\n    return {1}\n",
            "Float16",
        ),
        (
            "class N(nn.Module):\n    x: {0}[Tensor, 'n']\n    def forward(self):\n        x = self.x\n"
            "        return {1}\n",
            "Float16",
        ),
        (
            "class B:\n    x: {0}[Tensor, 'n']\ndef f(b: B):\n    x = b.x\n    return {1}\n",
            "Float16",
        ),
        ("def f(y):\n    x: {0}[Tensor, 'n'] = load(y)\n    return {1}\n", "Float16"),
        ("def f(x: torch.{0}):\n    return {1}\n", "HalfTensor"),
        ("def f(x: torch.cuda.{0}):\n    return {1}\n", "HalfTensor"),
    ],
)
def test_annotations_state_dtypes(text: str, half: str) -> None:
    wide = {"HalfTensor": "DoubleTensor"}.get(half, "Float32")
    assert said(text.format(half, LOG.format("x"))) == ["MP301 certain"]
    assert said(text.format(wide, LOG.format("x"))) == []
    assert said(text.format("Whatever", LOG.format("x"))) != ["MP301 certain"]


def test_what_a_caller_passes_is_of_the_annotated_dtype() -> None:
    text = (
        "def loss(x: {}[Tensor, 'n']):\n    return {}\ndef f(batch):\n    return loss(batch['y'])\n"
    )
    assert said(text.format("Float32", LOG.format("x"))) == []
    assert said(text.format("Float16", LOG.format("x"))) == ["MP301 certain"]


def test_an_annotation_does_not_hold_against_the_code() -> None:
    text = "def g(y) -> Float32[Tensor, 'n']:\n    return y.half()\ndef f(y):\n    x = g(y)\n    return {}\n"
    assert said(text.format(LOG.format("x"))) == ["MP301 certain"]


def test_a_class_of_the_project_is_no_annotation_of_jaxtyping() -> None:
    text = f"class Float16(dict):\n    pass\ndef f(x: Float16['a', 'b']):\n    return {LOG.format('x')}\n"
    assert "MP301 certain" not in said(text)


def test_some_float_and_a_classic_float_tensor_say_no_dtype() -> None:
    for annotation in ("Float[Tensor, 'n']", "torch.FloatTensor", "Float[Tensor, 'n'] | None"):
        assert said(f"def f(x: {annotation}):\n    return {LOG.format('x')}\n") == [
            "MP301 possible"
        ]


def test_a_declared_attribute_of_some_float_is_assumed_to_follow_the_model() -> None:
    text = f"class Box:\n    x: {{}}\n    def f(self):\n        return {LOG.format('self.x')}\n"
    assert (
        said(text.format("Float[Tensor, 'n']")) == said(text.format("Tensor")) == ["MP301 possible"]
    )


def test_integers_and_masks_are_no_floats() -> None:
    for annotation in ("Int64[Tensor, 'n']", "Bool[Tensor, 'n']", "torch.LongTensor"):
        assert said(f"def f(x: {annotation}):\n    return x.sum() / (x.sum() + 1e-12)\n") == []


# assertions


@pytest.mark.parametrize(
    ("test", "dtype"),
    [
        ("assert x.dtype == torch.{0}", "float32"),
        ("assert x.dtype is torch.{0}, 'message'", "float32"),
        ("assert x.dtype in (torch.{0}, torch.float64)", "float32"),
        ("assert torch.{0} == x.dtype and x.ndim == 2", "float32"),
        ("assert isinstance(x, torch.{0})", "DoubleTensor"),
        ("torch._check(x.dtype == torch.{0})", "float32"),
        ("torch._check(x.dtype == torch.{0}, lambda: 'message')", "float32"),
        ("torch._assert(x.dtype == torch.{0}, 'message')", "float32"),
        ("if x.dtype != torch.{0}:\n        raise TypeError(x.dtype)", "float32"),
        ("if not x.dtype == torch.{0}:\n        raise TypeError(x.dtype)", "float32"),
        ("if x.dtype == torch.{0}:\n        y = 1\n    else:\n        raise TypeError", "float32"),
    ],
)
def test_assertions_state_dtypes(test: str, dtype: str) -> None:
    text = f"def f(x):\n    {test}\n    return {LOG.format('x')}\n"
    half = {"float32": "float16", "DoubleTensor": "HalfTensor"}[dtype]
    assert said(text.format(dtype)) == []
    if " in " not in test:
        assert said(text.format(half)) == ["MP301 certain"]


def test_an_asserted_dtype_holds_where_another_was_assumed() -> None:
    """What autocast makes of a float32 tensor is half all the same."""
    text = (
        "def f(x, w):\n"
        "    assert x.dtype == torch.float32\n"
        "    with torch.autocast('cuda', dtype=torch.float16):\n"
        "        y = x @ w\n"
        f"    return {LOG.format('y')}\n"
    )
    assert said(text) == ["MP301 certain"]


def test_the_dtype_of_an_attribute_is_asserted() -> None:
    text = (
        "class N(nn.Module):\n    def forward(self, x):\n"
        "        assert self.scale.dtype == torch.{}\n"
        f"        return {LOG.format('self.scale')}\n"
    )
    assert said(text.format("float16")) == ["MP301 certain"]
    assert said(text.format("float32")) == []


@pytest.mark.parametrize(
    "test",
    [
        "assert p.min() >= 0.1",
        "assert p.amin().item() >= 0.1",
        "assert 0.1 <= torch.min(p)",
        "assert (p > 0.1).all()",
        "assert torch.all(p >= 0.1)",
        "assert ((p >= 0.1) & (p <= 1)).all().item()",
        "assert not (p < 0.1).any()",
        "torch._check((p >= 0.1).all())",
        "torch._assert(p.min() >= 0.1, 'message')",
        "if (p < 0.1).any():\n        raise ValueError",
        "if p.min() < 0.1:\n        raise ValueError",
        "if p.min() < 0.1:\n        return p",
    ],
)
def test_assertions_state_bounds(test: str) -> None:
    text = f"def f(x):\n    p = x.half().sigmoid()\n    {test}\n    return torch.log(p + 1e-12)\n"
    assert said(text) == []
    assert said(text.replace("0.1", "-0.1")) == ["MP301 certain"]


def test_bounds_of_a_magnitude_are_asserted() -> None:
    for test in ("x.abs().max() <= {}", "torch.abs(x).amax() < {}", "(x.abs() <= {}).all()"):
        text = f"def f(x):\n    x = x.half()\n    assert {test}\n    return x**2\n"
        assert said(text.format(100)) == []
        assert said(text.format(1000)) == ["MP601 likely"]


def test_bounds_of_numbers_are_asserted() -> None:
    text = "def f(x, eps: float = 1e-12):\n    assert {}\n    return torch.log(x.half().sigmoid() + eps)\n"
    assert said(text.format("eps > 0")) == ["MP301 certain"]
    assert said(text.format("eps >= 1e-3")) == []
    assert said(text.format("1e-3 <= eps <= 1")) == []
    assert said(text.format("1 >= eps > 1e-3")) == []


def test_numbers_have_magnitudes_and_are_rounded() -> None:
    text = "def f(x, name):\n    limit = {}\n    return x.half().clamp(max=limit).exp()\n"
    for limit in (
        "abs({'a': -9, 'b': -3}.get(name, -5))",
        "abs(-9)",
        "round(11.4)",
        "round(9.55, 1)",
    ):
        assert said(text.format(limit)) == [], limit
    for limit in ("abs({'a': -30, 'b': -20}.get(name, -25))", "abs(-20)", "round(11.6)"):
        assert said(text.format(limit)) == ["MP603 likely"], limit
    assert said("def f(x, d):\n    return x / abs({'a': -3.0}.get(d, -2.0))\n") == []


def test_the_least_element_says_nothing_of_the_largest() -> None:
    text = "def f(x):\n    x = x.half()\n    assert x.min() <= 3\n    return x.exp()\n"
    assert said(text) == ["MP603 likely"]


# autocast


MASKS = "torch.einsum('bqn,bnc->bqc', m.sigmoid(), x)"


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("if torch.is_autocast_enabled():\n        return m\n    return {}", []),
        ("if not torch.is_autocast_enabled():\n        return {}", []),
        ("if torch.is_autocast_enabled():\n        return {}", ["MP201 possible"]),
        ("assert not torch.is_autocast_enabled()\n    return {}", []),
        ("assert torch.is_autocast_enabled('cuda')\n    return {}", ["MP201 possible"]),
        ("if torch.is_autocast_enabled():\n        raise ValueError\n    return {}", []),
    ],
)
def test_autocast_is_on_or_off_where_the_code_asks(test: str, expected: list[str]) -> None:
    text = (
        f"def f(m, x):  # precision-lint: assume m float32, x float32\n    {test.format(MASKS)}\n"
    )
    assert [one for one in said(text) if one.startswith("MP201")] == expected
    plain = f"def f(m, x):  # precision-lint: assume m float32, x float32\n    return {MASKS}\n"
    assert said(plain) == []
    assert under_autocast(plain) == ["MP201 possible"]
    assert complaints(text) == []


def test_the_state_of_an_arm_ends_with_it() -> None:
    text = (
        "def f(m, x):  # precision-lint: assume m float32, x float32\n"
        "    if torch.is_autocast_enabled():\n"
        "        m = m * 2\n"
        "    else:\n"
        "        m = m / 2\n"
        f"    return {MASKS}\n"
    )
    assert said(text) == []
    assert under_autocast(text) == ["MP201 possible"]


def test_the_dtype_of_autocast_is_asked_for() -> None:
    for name in ("torch.get_autocast_dtype('cuda')", "torch.get_autocast_gpu_dtype()"):
        text = f"def f(x):\n    if {name} == torch.{{}}:\n        return {LOG.format('x')}\n"
        assert "MP301 possible" in said(text.format("float16"))
        assert "MP301 possible" not in said(text.format("bfloat16"))


def test_a_context_manager_that_is_autocasts_is_on() -> None:
    text = (
        "from contextlib import nullcontext\n"
        "def f(m, x, amp):\n"
        "    context = torch.autocast('cuda', dtype=torch.float16) if amp else nullcontext()\n"
        "    if isinstance(context, {}):\n"
        "        with context:\n"
        f"            return {MASKS}\n"
    )
    assert said(text.format("torch.autocast")) == ["MP201 likely"]
    assert "MP201 likely" not in said(text.format("nullcontext"))


@pytest.mark.parametrize("cast", ["self.half() if fast else self.float()", "self.float()"])
def test_a_cast_on_one_way_of_an_expression(cast: str) -> None:
    """What the same choice casts agrees with it; where nothing does, a stated mode shows that it may not."""
    found = lint_source(
        f"{HEAD}class Net(nn.Module):\n    def __init__(self, fast):\n        super().__init__()\n"
        f"        self.fast, self.layer = fast, nn.Linear(8, 2)\n        {cast}\n\n"
        "    def forward(self, x):\n"
        "        return self.layer(x.to(torch.float16 if self.fast else torch.float32))\n\n\n"
        "def run(x, fast):\n    return Net(fast)(x)\n",
        isolated=True,
        precision=["float16"],
    )
    assert [d.code for d in found] == ([] if " if " in cast else ["MP502"])


CHOSEN = """\
def f(x, w):
    with torch.autocast("cuda", dtype=torch.float16):
        y = F.linear(x, w)
    y = y.float() if {} else y
    return torch.log(y.sigmoid() + 1e-12)
"""


@pytest.mark.parametrize(
    "test",
    [
        "torch.is_tensor(y)",
        "torch.is_floating_point(y)",
        "torch.is_tensor(y) and y.is_floating_point()",
        "isinstance(y, Tensor)",
    ],
)
def test_what_is_surely_a_tensor_of_floats_is_cast_up(test: str) -> None:
    assert said(CHOSEN.format(test)) == []
    assert said(CHOSEN.format("y.requires_grad")) == ["MP301 certain"]


WHERE = """\
def f(x, w):
    y = F.linear(torch.ones(2, 4, device="{}").half(), w.half())
    y = y.float() if y.device.type {} "cpu" else y
    return torch.log(y.sigmoid() + 1e-12)
"""


@pytest.mark.parametrize(("device", "test"), [("cpu", "=="), ("cuda", "!="), ("xpu", "!=")])
def test_the_device_of_a_tensor_decides_what_is_asked_of_it(device: str, test: str) -> None:
    assert "MP301" not in " ".join(said(WHERE.format(device, test)))
    other = {"==": "!=", "!=": "=="}[test]
    assert "MP301" in " ".join(said(WHERE.format(device, other)))


@pytest.mark.parametrize(("period", "found"), [("200", []), ("5000", ["MP404 certain"])])
def test_a_remainder_is_below_what_divides(period: str, found: list[str]) -> None:
    steps = f"torch.arange(9000, device=x.device) % {period}"
    assert said(f"def f(x, k):\n    return ({steps}).half() == k.half()\n") == found


LAYER = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        y = y.float() if {} else y
        return torch.log(y.sigmoid() + 1e-12)
"""


@pytest.mark.parametrize("test", ["torch.is_tensor(y)", "isinstance(y, Tensor)"])
def test_what_a_layer_gives_is_a_tensor_whatever_its_dtype_rests_on(test: str) -> None:
    assert under_autocast(LAYER.format(test)) == []
    assert under_autocast(LAYER.format("y.requires_grad")) == ["MP301 likely"]


TIMED = """\
import contextlib
import torch

@contextlib.contextmanager
def timed():
    yield

def evaluate(model, batch):
    with torch.autocast("cuda"), timed():
        return model(batch)

def train(model, batch, scaler):
    with torch.autocast("cuda"):
        loss = model(batch).mean()
        with timed():
            scaler.scale(loss).backward()
"""


def test_a_manager_that_opens_no_region_leaves_the_one_around() -> None:
    (found,) = [one for one in lint_source(TIMED) if one.code == "MP211"]
    assert [link.start.row for link in found.evidence if link.start] == [13]


HANDED_ON = """\
import torch

def finish(step, optimizer):
    step(optimizer)

def train(model, scaler: torch.amp.GradScaler, optimizer, loss):
    scaler.scale(loss).backward()
    {}
    finish(scaler.step, optimizer)
"""


@pytest.mark.parametrize(("between", "found"), [("pass", []), ("model.zero_grad()", ["MP109"])])
def test_a_scaler_steps_where_its_method_is_called(between: str, found: list[str]) -> None:
    assert [one.code for one in lint_source(HANDED_ON.format(between))] == found


FILLED = """\
class Pool(nn.Module):
    LEAST = torch.finfo(torch.float32).min

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(8, 8)

    def forward(self, x, mask):
        return self.key(x).masked_fill(mask, self.LEAST).softmax(-1)


def run(x, mask):
    model = Pool().to({dtype})
    return model(x.to({dtype}), mask)
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_message_names_the_dtype_of_the_code(dtype: str) -> None:
    found = [d for d in lint(FILLED.format(dtype=f"torch.{dtype}")) if d.code == "MP310"]
    assert [d.message.rpartition(" ")[2] for d in found] == [dtype]


SETTINGS = """\
import dataclasses


@dataclasses.dataclass
class Settings:
    dtype: torch.dtype = torch.float16


def f(settings: Settings):
    return nn.Linear(4, 4).to(settings.dtype)(torch.zeros(2, 4))
"""


def test_the_default_of_a_field_is_assumed() -> None:
    assert said(SETTINGS) == ["MP401 likely"]


PENALTY = """\
def penalty(model, x, parameters, scaler, amp):
    outputs = model(x) * {}
    found = torch.autograd.grad(outputs, parameters, create_graph=True)
    return sum((one / scaler.get_scale()).norm() for one in found)
"""


@pytest.mark.parametrize(
    ("factor", "found"),
    [
        ("2.0", True),
        ("scaler.get_scale()", False),
        ("(scaler.get_scale() if amp else 1.0)", False),
        ("min(scaler.get_scale(), 4096.0)", False),
    ],
)
def test_a_factor_that_is_computed_of_the_loss_scale_multiplies(factor: str, found: bool) -> None:
    assert ("MP101 possible" in said(PENALTY.format(factor))) is found


def test_the_cast_of_an_unknown_object_rests_on_what_its_dtype_does() -> None:
    text = "def f(x, dtype=torch.float16):\n    y = x.to(dtype)\n    return torch.log(y.sigmoid() + 1e-8)\n"
    assert [one.assumptions for one in lint(text)] == [
        ("the caller leaves an argument at its default",)
    ]


def test_a_choice_of_dtypes_rests_on_what_each_of_them_does() -> None:
    text = (
        "def f(x: Tensor, fast: bool):\n    work = x.dtype if fast else torch.float32\n"
        "    return torch.log(x.sigmoid().to(work) + 1e-8)\n"
    )
    (found,) = [one for one in lint(text) if one.code == "MP301"]
    assert "float arguments of this function have the model's dtype" in found.assumptions


def test_each_call_of_a_wrapper_has_a_message_of_its_own() -> None:
    text = (
        "def region(*args, **kwargs):\n    return torch.autocast(*args, **kwargs)\n\n\n"
        "def wide(net, x):\n    with region('cuda', dtype=torch.float32):\n        return net(x)\n\n\n"
        "def wrong(net, x):\n    with region(torch.device('cuda')):\n        return net(x)\n"
    )
    found = {one.message: one.confidence for one in lint(text) if one.code == "MP210"}
    assert found["a device where its type, a text, is expected"] is Confidence.CERTAIN
    assert all(one is not Confidence.CERTAIN for text, one in found.items() if "float32" in text)


def test_a_model_that_is_cast_to_a_default_rests_on_it() -> None:
    text = (
        "def f(net, x, dtype=torch.float16):\n    net = net.to(dtype)\n    y = net(x)\n"
        "    return torch.log(y.sigmoid() + 1e-8)\n"
    )
    (found,) = [one for one in lint(text) if one.code == "MP301"]
    assert "the caller leaves an argument at its default" in found.assumptions


WIDTHS = """\
class Rotary(nn.Module):
    def __init__(self, width, base=10000):
        super().__init__()
        self.width = width
        self.register_buffer("table", 1.0 / base ** (torch.arange(0, width, 2).float() / {0}))

class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.rotary = Rotary({1})
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x):
        return self.out(x)

def load(config):
    return Attention(config).half()
"""


@pytest.mark.parametrize("used", ["width", "self.width"])
@pytest.mark.parametrize("given", ["config.width", "config.width // config.heads"])
def test_what_the_end_of_a_range_is_computed_of_is_a_number(used: str, given: str) -> None:
    text = WIDTHS.format(used, given)
    found = lint_source(HEAD + text, isolated=True, precision=["float16"], confidence="possible")
    assert "MP403" not in {one.code for one in found}


KEPT_WIDTH = """\
class Table(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width, self.places = width, torch.arange(0, {})
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x), torch.arange(0, {}, 2).float() / self.width

def run(config, x):
    return Table(config.width // config.heads).half()(x)
"""


@pytest.mark.parametrize(
    ("first", "end", "found"),
    [("8", "self.width", []), ("width", "8", []), ("8", "8", ["MP403 possible"])],
)
def test_a_number_stays_one_when_the_call_that_kept_it_has_ended(
    first: str, end: str, found: list[str]
) -> None:
    text = KEPT_WIDTH.format(first, end)
    said = lint_source(HEAD + text, isolated=True, precision=["float16"], confidence="possible")
    assert [f"{one.code} {one.confidence.value}" for one in said] == found


RAISED = """\
def angles(places, base):
    table = 1.0 / base ** (torch.arange(0, 8, 2).float() / 8)
    return torch.einsum("i,j->ij", places, table), torch.arange(4).float() / base
"""


def test_what_is_raised_to_a_tensor_of_powers_is_no_tensor_for_that() -> None:
    said = lint_source(HEAD + RAISED, isolated=True, precision=["float16"], confidence="possible")
    assert {one.confidence for one in said if one.code == "MP403"} == {Confidence.POSSIBLE}
