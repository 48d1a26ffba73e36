"""Results that are float32 in a half model, and operands that need no dtype of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_lint.api import Care, Confidence, Diagnostic
from precision_lint.project import amp
from tests import projects
from tests.analysis import returned

MEAN = """\
import torch
from torch import nn


def mean(logits, bins):
    return (logits.float().softmax(-1) @ bins.float()).squeeze(-1)


class Head(nn.Module):
    def forward(self, x, mask, bins):
        kept = mask.float()
        {value}
        return (p * kept).sum(-1) / kept


head = Head().half()
"""
GATE = """\
import torch
from torch import nn
{first}

class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(4, 3)

    def forward(self, x):
        self.scores = self.scores.float()
        return self.scores(x.float())
"""
PADDED = """\
import torch
from torch import nn

from kernels import Hash


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 4)

    def forward(self, x):
        query = self.query(x)
        query = torch.cat([query, torch.zeros((2, 4), device=query.device)], dim=-1)
        {last}


layer = Layer().half()
"""
WEIGHTED = """\
import torch
import torch.nn.functional as F
from torch import nn


def criterion(n):
    weight = torch.ones(n)
    return nn.CrossEntropyLoss(weight=weight)


def step(net, x, y):
    with torch.autocast("cuda"):
        weight = torch.ones(10)
        return F.cross_entropy(net(x), y, weight=weight)
"""
MIXED = 'from accelerate import Accelerator\n\naccelerator = Accelerator(mixed_precision="fp16")\n'
HALF = """\
from transformers import AutoModel
import torch

model = AutoModel.from_pretrained("net", torch_dtype=torch.float16)
"""
CONTRACTED = """\
import typing

import torch
from torch import nn


class Encoding(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.rand(8, 32, 32))

    def forward(self, x):
        table = {table}
        with torch.autocast("cuda"):
            return torch.matmul(x.flatten(2), table.flatten(2).transpose(1, 2))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(code: str, texts: dict[str, str]) -> list[Diagnostic]:
    """What a rule finds in net.py, of any confidence."""
    projects.write(Path.cwd(), texts)
    result = projects.check(Path("net.py"), confidence=Confidence.POSSIBLE)
    return [d for d in result.diagnostics if d.code == code]


def rows(code: str, texts: dict[str, str]) -> list[tuple[int, Confidence]]:
    return [(d.start.row, d.confidence) for d in found(code, texts)]


def test_a_product_of_float32_is_half_under_autocast_alone() -> None:
    half = MEAN.format(value="p = self.inner(x)")
    assert [d.start.row for d in found("MP403", {"net.py": half})] == [11]
    wide = MEAN.format(value="p = mean(self.inner(x), bins)")
    assert not found("MP403", {"net.py": wide})


@pytest.mark.parametrize(
    ("run", "confidence"),
    [("model = Net().half()", "possible"), ("with torch.autocast('cuda'):\n    Net()", "likely")],
)
def test_half_models_make_no_product_of_float32_half(run: str, confidence: str) -> None:
    net = """\
import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        return torch.log(F.linear(x.float(), self.w.float()).relu() + 1e-8)
"""
    texts = {"net.py": net, "run.py": f"import torch\nfrom net import Net\n\n{run}\n"}
    assert [(row, c.value) for row, c in rows("MP301", texts)] == [(12, confidence)]


def test_a_module_that_is_cast_in_forward_harms_what_shards_it() -> None:
    (plain,) = rows("MP403", {"net.py": GATE.format(first="")})
    (sharded,) = rows("MP403", {"net.py": GATE.format(first="import deepspeed")})
    assert plain[1] is Confidence.POSSIBLE
    assert sharded[1] is Confidence.LIKELY


def test_what_goes_into_a_custom_kernel_may_be_meant_to_be_float32() -> None:
    layer = PADDED.format(last="return self.query(query)")
    kernel = PADDED.format(last="return Hash.apply(query, 8)")
    assert [c for _, c in rows("MP401", {"net.py": layer})] == [Confidence.LIKELY]
    assert [c for _, c in rows("MP401", {"net.py": kernel})] == [Confidence.POSSIBLE]


def test_the_weight_of_a_loss_meets_half_predictions_outside_of_autocast() -> None:
    assert rows("MP401", {"net.py": WEIGHTED}) == [(7, Confidence.POSSIBLE)]
    both = {"net.py": WEIGHTED, "train.py": MIXED, "infer.py": HALF}
    assert rows("MP401", both) == [(7, Confidence.LIKELY)]


@pytest.mark.parametrize(
    "table",
    [
        "self.table",
        "typing.cast(torch.Tensor, self.table)",
        "torch.jit.annotate(torch.Tensor, self.table)",
    ],
)
def test_an_annotation_is_the_value_that_it_annotates(table: str) -> None:
    (one,) = rows("MP201", {"net.py": CONTRACTED.format(table=table)})
    assert one[1] is Confidence.POSSIBLE  # a buffer, whose size is fixed
    (other,) = rows("MP201", {"net.py": CONTRACTED.format(table="self.other(x)")})
    assert other[1] is Confidence.CERTAIN


@pytest.mark.parametrize(
    ("again", "confidence"),
    [
        ("fn(x)", Confidence.LIKELY),
        ("fn.backward_pass(x, grad)", Confidence.LIKELY),
        ("fn.on_commit_backward(grad)", Confidence.POSSIBLE),
        ("fn.graph.replay()", Confidence.POSSIBLE),
    ],
)
def test_hooks_of_a_backward_compute_nothing(again: str, confidence: Confidence) -> None:
    text = f"""\
import torch


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        fn = ctx.fn
        return None, {again}
"""
    assert [c for _, c in rows("MP207", {"net.py": text, "train.py": MIXED})] == [confidence]


def test_a_method_of_ones_own_is_no_operation_of_torch() -> None:
    text = """\
import torch
from torch import nn


class Loss(nn.Module):
    def normalize(self, x):
        return (x - self.mean) / self.scale

    def forward(self, x):
        return {call}
"""
    own = text.format(call="self.normalize(self.layer(x))")
    torchs = text.format(call="nn.functional.normalize(self.layer(x))")
    assert not found("MP307", {"net.py": own, "infer.py": HALF})
    assert len(found("MP307", {"net.py": torchs, "infer.py": HALF})) == 1


@pytest.mark.parametrize(("group", "known"), [("(h w)", True), ("(h d)", False)])
def test_heads_and_their_width_are_no_rows_and_columns(group: str, known: bool) -> None:
    text = f"""\
import torch
from einops import rearrange
from torch import nn


class Mix(nn.Module):
    def forward(self, x, y):
        with torch.autocast("cuda"):
            x = rearrange(self.layer(x), "b c h w -> b c {group}")
            return torch.einsum("bcn,bdn->bcd", x, self.other(y))
"""
    assert bool(found("MP201", {"net.py": text})) == known


FORGOTTEN = """\
import torch
import ext


class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b, g{more}):
        w = w.{cast}
        b = b.{cast}
        {call}

    @staticmethod
    def backward(ctx, grad):
        none = None
        return grad, grad, grad, {gradient}
"""


def forgotten(text: str) -> list[Diagnostic]:
    """Operands that are not cast as the others are."""
    return [d for d in found("MP505", {"net.py": text}) if "is not cast to" in d.message]


SHAPE = {"more": "", "cast": "type_as(x)", "call": "return ext.fwd(x, w, b, g)", "gradient": "grad"}


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        ({}, 1),
        ({"cast": "to(x.dtype)"}, 1),
        ({"cast": "to(x)"}, 0),  # a device, perhaps
        ({"cast": "type_as(x.dtype)"}, 0),
        ({"gradient": "None"}, 0),
        ({"gradient": "none"}, 0),
        ({"call": "print(x, w, b, g)"}, 0),
        ({"call": "return torch.cat([x], w, b, g)"}, 0),
        ({"call": "assert g.dtype == x.dtype; return ext.fwd(x, w, b, g)"}, 0),
        ({"call": "return ext.fwd(x, w, b, g.half())"}, 0),
    ],
)
def test_the_operand_that_is_not_cast(changed: dict[str, str], count: int) -> None:
    text = FORGOTTEN.format(**{**SHAPE, **changed})
    assert len(forgotten(text)) == count


@pytest.mark.parametrize(
    "cast", ["to(x.dtype)", "to( x.dtype )", "to(\n            x.dtype\n        )"]
)
def test_a_cast_may_be_written_with_spaces(cast: str) -> None:
    text = FORGOTTEN.format(**{**SHAPE, "cast": cast}).replace("ext", "kernels")
    assert len(forgotten(text)) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(torch.autograd.Function)", "(torch.nn.Module)"),
        ("    @staticmethod\n    def forward", "    @staticmethod\n    @cast\n    def forward"),
        ("return grad, grad, grad, grad", "return None, grad, grad, grad"),
    ],
)
def test_where_no_operand_is_forgotten(old: str, new: str) -> None:
    text = FORGOTTEN.format(**SHAPE)
    assert old in text
    assert not forgotten(text.replace(old, new))


def test_a_tensor_that_may_be_none_is_not_cast_by_a_fix() -> None:
    (plain,) = forgotten(FORGOTTEN.format(**SHAPE))
    given = FORGOTTEN.format(**SHAPE).replace("g):", "g: torch.Tensor | None):")
    (optional,) = forgotten(given)
    assert plain.fix is not None
    assert optional.fix is None


@pytest.mark.parametrize(
    "text",
    [
        "def criterion(n):\n    return nn.CrossEntropyLoss(weight=torch.ones(n)).half()",
        "def criterion(n, x, y):\n    w = torch.ones(n)\n"
        "    return F.cross_entropy(x.float(), y, weight=w)",
        "def criterion(n, x, y):\n    loss = nn.CrossEntropyLoss(weight=torch.ones(n))\n"
        "    return loss(x.float(), y)",
    ],
)
def test_a_loss_that_is_cast_as_its_predictions_are(text: str) -> None:
    texts = {
        "net.py": f"import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n{text}\n"
    }
    assert not found("MP401", {**texts, "infer.py": HALF})


@pytest.mark.parametrize(("base", "sure"), [("nn.Module", "possible"), ("object", "likely")])
def test_the_weight_of_a_loss_that_a_model_holds_is_cast_with_it(base: str, sure: str) -> None:
    text = (
        f"import torch\nfrom torch import nn\n\n\nclass Net({base}):\n    def __init__(self, n):\n"
    )
    text += "        self.loss = nn.CrossEntropyLoss(weight=torch.ones(n)).cuda()\n"
    assert [c.value for _, c in rows("MP401", {"net.py": text, "infer.py": HALF})] == [sure]


@pytest.mark.parametrize(("name", "confidence"), [("value", "likely"), ("turn", "possible")])
def test_the_matrix_that_a_helper_is_given_may_be_float32(name: str, confidence: str) -> None:
    text = f"""\
from torch import nn


class Mix(nn.Module):
    def mix(self, x, {name}):
        y = x.float()
        return (y @ {name}).to(x.dtype)
"""
    (one,) = rows("MP502", {"net.py": text, "infer.py": HALF})
    assert one[1].value == confidence


def test_what_is_drawn_in_half_for_a_kernel_is_meant_to_be_half() -> None:
    text = """\
import torch


def inputs(n):
    x = torch.randn(n, dtype=torch.bfloat16)
    bound = x.float().abs().max()
    return {last}
"""
    assert len(found("MP403", {"net.py": text.format(last="bound")})) == 1
    assert not found("MP403", {"net.py": text.format(last="run(x, bound)")})


def test_bits_that_are_read_as_integers_are_no_bfloat16() -> None:
    text = """\
import torch


def dump(x):
    x = x.bfloat16().cpu()
    return {}.numpy()
"""
    assert len(found("MP506", {"net.py": text.format("x")})) == 1
    assert not found("MP506", {"net.py": text.format("x.view(dtype=torch.uint16)")})


def test_an_integer_that_no_float_holds() -> None:
    value = returned(f"def f(x):\n    return {'9' * 400}\n")
    assert (value.kind, value.dtype, value.const) == ("number", "int", None)


def test_a_guard_of_a_case_is_looked_at() -> None:
    text = """\
import torch


@torch.autocast("cuda")
def f(a, kind):
    match kind:
        case _ if torch.log(torch.sigmoid(a @ a) + 1e-8).sum() > 0:
            return a
"""
    assert [row for row, _ in rows("MP301", {"net.py": text})] == [7]


@pytest.mark.parametrize(
    ("kind", "dtype"), [("x.type()", "~x"), ("x.dtype", "~x"), ("torch.float64", "float64")]
)
def test_a_type_that_is_asked_for_is_followed(kind: str, dtype: str) -> None:
    assert returned(f"def f(x):\n    return torch.zeros(2, 4).type({kind})\n").dtype == dtype


@pytest.mark.parametrize("name", ["lens", "cu_seqlens", "lengths", "x"])
def test_lengths_in_the_plural_are_integers(name: str) -> None:
    assert Care.is_activation(name) == (name == "x")


@pytest.mark.parametrize(
    ("gate", "half"),
    [
        ("logits = F.linear(x.float(), self.w.float())", False),
        ("logits = F.linear(x, self.w)", True),
        ("logits, kept = F.linear(x, self.w).topk(2)", False),
    ],
)
def test_a_router_whose_product_is_float32_takes_its_sigmoid_in_float32(
    gate: str, half: bool
) -> None:
    text = f"""\
import torch
import torch.nn.functional as F
from torch import nn


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, 4))

    def forward(self, x, softmax):
        {gate}
        if softmax:
            scores = torch.softmax(logits, dim=-1, dtype=torch.float32)
        else:
            scores = torch.sigmoid(logits)
        return scores


router = Router().half()
"""
    assert bool(found("MP606", {"net.py": text})) == half


def test_a_constructor_is_called_by_those_of_derived_classes_alone() -> None:
    text = """\
import torch


class Base(torch.nn.Module):
    def __init__(self, x):
        self.p = torch.log(torch.sigmoid(x @ x) + 1e-8)


class Other(torch.nn.Module):
    def __init__(self, x):
        self.p = torch.log(torch.sigmoid(x @ x) + 1e-8)


class Derived(Base):
    def __init__(self, x):
        with torch.autocast("cuda"):
            super().__init__(x)
"""
    shown = [
        row for row, sure in rows("MP301", {"net.py": text}) if sure is not Confidence.POSSIBLE
    ]
    assert shown == [6]


def test_megatrons_scalers_mean_half_models() -> None:
    for name in ("ConstantGradScaler", "DynamicGradScaler"):
        (said,) = amp.statements("a.py", f"import torch\nscaler = {name}(1.0)\n".encode())
        assert said.kind == "half"
