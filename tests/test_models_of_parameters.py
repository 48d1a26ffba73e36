"""Models that functions are given: which class of the file they are, and what rests on that."""

from __future__ import annotations

import pytest

from precision_lint import lint_source
from precision_lint.api import Diagnostic

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, low=0.0):
        return self.layer(x.to(self.layer.weight.dtype)).float()


"""
RUN = """\
def run(net, x):
    net = net.half()
    y = net({})
    return torch.log(y.sigmoid() + 1e-8)
"""


def lint(text: str, *precision: str, head: str = HEAD) -> list[Diagnostic]:
    if precision:
        text = head + text
        return lint_source(text, isolated=True, confidence="possible", precision=precision)
    return lint_source(head + text, isolated=True, confidence="possible")


def codes(text: str, *precision: str, head: str = HEAD) -> list[str]:
    return [f"{d.code} {d.confidence.value}" for d in lint(text, *precision, head=head)]


def test_what_the_one_model_of_a_file_gives_is_known() -> None:
    assert codes(RUN.format("x")) == []  # it casts what it is given, and gives float32
    assert codes(RUN.format("x"), head=HEAD.replace(".float()", "")) == ["MP301 certain"]


@pytest.mark.parametrize("cast", ["fast = net.eval().half()", "fast = net\n    fast.half()"])
def test_another_name_of_a_model_is_that_model(cast: str) -> None:
    text = RUN.replace("net = net.half()", cast).replace("net({})", "fast(x)")
    assert codes(text) == []  # it casts what it is given, and gives float32


@pytest.mark.parametrize(
    "arguments", ["x, x, x", "", "x, high=1.0"], ids=["too many", "too few", "other names"]
)
def test_a_model_that_cannot_be_called_so_is_another_one(arguments: str) -> None:
    assert "MP301 certain" in codes(RUN.format(arguments).replace("net()", "net(x=x, y=x)"))


@pytest.mark.parametrize("arguments", ["x, low=1.0", "x, 1.0", "*x", "x, **x"])
def test_a_model_that_can_be_called_so_is_that_one(arguments: str) -> None:
    assert codes(RUN.format(arguments)) == []


@pytest.mark.parametrize(
    "beside",
    [
        "class Other(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(4, 4)\n\n"
        "    def forward(self, x):\n"
        "        return self.layer(x)\n",
        "class Whole(nn.Module):\n"
        "    def __init__(self, net):\n"
        "        super().__init__()\n"
        "        self.part, self.scale = Net(), nn.Linear(4, 4)\n\n"
        "    def forward(self, x, y):\n"
        "        return self.scale(self.part(x))\n",
    ],
    ids=["two models", "a wrapper"],
)
def test_where_several_fit_or_none_does_the_class_is_unknown(beside: str) -> None:
    assert "MP301 certain" in codes(RUN.format("x") + "\n\n" + beside)


def test_losses_are_no_models() -> None:
    loss = "class Loss(nn.Module):\n    def forward(self, x):\n        return x.half().mean()\n"
    assert codes(RUN.format("x") + "\n\n" + loss) == []


def test_what_is_only_called_is_no_model() -> None:
    text = "def run(net, x):\n    return torch.log(net(x).sigmoid() + 1e-8)\n"
    assert codes(text, "float16") == ["MP301 likely"]
    assert codes(text.replace("    return", "    net.eval()\n    return"), "float16") == []


def test_each_parameter_is_another_model() -> None:
    text = (
        "def distil(student, teacher, x):\n"
        "    teacher = teacher.half()\n"
        "    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)\n"
        "    scaler = torch.amp.GradScaler('cuda')\n"
        "    with torch.no_grad():\n"
        "        wanted = teacher(x)\n"
        "    loss = F.mse_loss(student(x), wanted)\n"
        "    scaler.scale(loss).backward()\n"
        "    scaler.step(optimizer)\n"
        "    scaler.update()\n"
    )
    assert codes(text) == []
    both = text.replace("teacher.half()", "teacher.half()\n    student = student.half()")
    assert "MP110 certain" in codes(both)


def test_what_is_kept_in_an_attribute_stays_as_it_was_cast() -> None:
    text = (
        "class Runner:\n"
        "    def __init__(self, net):\n"
        "        self.count, self.net = 0, net.half().eval()\n\n"
        "    def run(self, x):\n"
        "        return torch.log(self.net(x).sigmoid() + 1e-8)\n"
    )
    assert codes(text) == []
    head = HEAD.replace(".float()", "")
    assert codes(text, head=head) == ["MP301 certain"]
    assert codes(text.replace("half", "float"), head=head) == ["MP301 possible"]  # under autocast


def test_what_happens_inside_rests_on_the_class() -> None:
    text = (
        "def run(net, x):\n"
        "    net.eval()\n"
        "    with torch.autocast('cuda', dtype=torch.float16):\n"
        "        return net(x)\n"
    )
    head = HEAD.replace(
        "return self.layer(x.to(self.layer.weight.dtype)).float()",
        "return torch.log((self.layer(x).sigmoid() + 1e-8))",
    )
    (found,) = lint(text, head=head)
    assert (found.code, found.confidence.value) == ("MP301", "likely")


def test_a_model_that_is_cast_is_so_in_every_mode() -> None:
    head = HEAD.replace("x.to(self.layer.weight.dtype)", "x")
    text = (
        "class Runner:\n"
        "    def __init__(self, net):\n"
        "        self.net = net.half()\n\n"
        "    def run(self, x):\n"
        "        return self.net(x.half())\n"
    )
    assert codes(text, "bfloat16", head=head) == []
    assert codes(text.replace("x.half", "x.float"), "bfloat16", head=head) != []


def test_a_module_that_holds_a_model_rests_on_its_class_too() -> None:
    head = HEAD.replace(".float()", "").replace(
        "return self", "x = torch.log(x.half().sigmoid() + 1e-8)\n        return self"
    )
    text = (
        "class Holder(nn.Module):\n"
        "    def __init__(self, net):\n"
        "        super().__init__()\n"
        "        self.scale = nn.Linear(4, 4)\n"
        "        self.net = net.eval()\n\n"
        "    def forward(self, x):\n"
        "        return self.scale(self.net(x.float()))\n"
    )
    assert codes(head=head, text="") == ["MP301 certain"]
    assert codes(text, head=head) == ["MP301 certain"]  # nobody is taken for its caller
    inside = head.replace("x.half()", "x")
    assert codes("", "float16", head=inside) == codes(text, "float16", head=inside)
    run = (
        "def run(holder, x):\n    holder.half()\n    return torch.log(holder(x).sigmoid() + 1e-8)\n"
    )
    assert "MP301 certain" in codes(f"{text}\n\n{run}")  # the holder, or what it holds


HOLDER = """\
class Holder(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net.{}()

    def forward(self, x):
        return {}
"""


def test_a_module_does_not_hold_its_own_class() -> None:
    text = HOLDER.format("half", "torch.log(self.net(x).sigmoid() + 1e-8)")
    assert codes(text) == []  # the other model of the file gives float32
    assert codes(text, head=HEAD.replace(".float()", "")) == ["MP301 certain"]


def test_a_wrapper_without_weights_is_a_model() -> None:
    text = HOLDER.format("eval", "self.net(x, x, x).float()")
    run = "def run(net, x):\n    net.half()\n    return torch.log(net(x).sigmoid() + 1e-8)\n"
    assert codes(run) == []
    assert codes(f"{text}\n\n{run}") == ["MP301 certain"]  # the model, or what wraps one


SCORER = """\
import torch
from torch import nn


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def chance(self, x):
        return self.layer(x).float().sigmoid()


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def {}(self, x):
        return self.layer(x).sigmoid()


class Trainer:
    def __init__(self, model):
        self.model = model{}

    def loss(self, x):
        with torch.autocast("cuda", dtype=torch.float16):
            return torch.log(self.model.chance(x) + 1e-8)
"""


@pytest.mark.parametrize(
    ("other", "cast", "expected"),
    [
        ("forward", "", []),  # the only class with such a method, which gives float32
        ("forward", ".train()", []),  # and with what every module has
        ("chance", "", ["MP301 likely"]),  # one of two
    ],
)
def test_the_one_model_with_a_method_is_meant(other: str, cast: str, expected: list[str]) -> None:
    found = lint_source(SCORER.format(other, cast), isolated=True)
    assert [f"{one.code} {one.confidence.value}" for one in found] == expected


def test_attributes_of_the_one_model_are_known() -> None:
    text = (
        "def run(net, x):\n"
        "    net = net.half()\n"
        "    print(net.{})\n"
        "    return torch.log(net(x).sigmoid() + 1e-8)\n"
    )
    assert codes(text.format("layer")) == []
    assert codes(text.format("others")) == ["MP301 certain"]  # another model


def test_what_a_cast_object_holds_are_floats() -> None:
    text = (
        "def run(steps):\n"
        "    for one in steps{}:\n"
        "        yield torch.cat([one, torch.zeros(2)], -1)\n"
    )
    assert "MP401 certain" in codes(text.format(".half()"), head="import torch\n\n\n")


# classes that derive from layers

NORM = """\
class Norm(nn.LayerNorm):
    def forward(self, x):
        return {}


def run(x):
    net = Norm(4){}
    return net(x)
"""
SUPER = "super().forward(x.float()).type_as(x)"
PLAIN = "F.layer_norm(x.float(), (4,), self.weight, self.bias).type_as(x)"


@pytest.mark.parametrize("body", [SUPER, PLAIN])
def test_norms_that_cast_what_they_are_given_keep_their_weights(body: str) -> None:
    assert codes(NORM.format(body, ""), "float16", head=HEAD.replace("class Net", "class _")) == []
    assert "MP502 likely" in codes(NORM.format(body, ".half()"), "float16")


def test_only_weights_of_the_layer_itself_are_kept_so() -> None:
    text = (
        "class Block(nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(4, 4)\n"
        "        self.other = nn.Conv1d(4, 4, 1)\n\n"
        "    def forward(self, x):\n"
        "        return {}\n\n\n"
        "def run(x):\n"
        "    return Block()(x)\n"
    )
    assert codes(text.format("super().forward(x.float())"), "float16") == []
    assert codes(text.format("self.other(x.float())"), "float16") == ["MP502 likely"]


@pytest.mark.parametrize(
    "layer",
    [
        "class Lin(nn.Linear):\n    pass\n",
        "class Lin(nn.Linear):\n    def forward(self, x):\n        return super().forward(x)\n",
        "class Lin(nn.Linear):\n"
        "    def __init__(self, *sizes):\n"
        "        super().__init__(*sizes)\n\n"
        "    def forward(self, x):\n"
        "        return F.linear(x, self.weight)\n",
        "class Lin(nn.Sequential):\n"
        "    def __init__(self, *sizes):\n"
        "        super().__init__(nn.ReLU(), nn.Linear(4, 4))\n",
    ],
)
def test_layers_of_derived_classes_are_cast_with_them(layer: str) -> None:
    text = f"{layer}\n\ndef run(x):\n    return torch.log(Lin(4, 4)(x.half()).sigmoid() + 1e-8)\n"
    assert any(one.startswith("MP502") for one in codes(text))
    cast = text.replace("Lin(4, 4)(", "Lin(4, 4).half()(")
    assert codes(cast) == ["MP301 certain"]


# transforms


def test_a_transform_takes_real_numbers_too() -> None:
    text = "class Mix(nn.Module):\n    def forward(self, x, *_):\n        return torch.fft.fft2(x).real\n"
    assert codes(text, "bfloat16") == ["MP505 likely"]
    assert codes(text.replace("torch.fft.fft2(x)", "x"), "bfloat16") == []


BESIDE = """\
import torch
from torch import nn
from somewhere import adapt


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.log(self.layer(x).sigmoid() + 1e-8)


def build(dtype):
    net = Net().half()
    {}
    return net, other
"""


@pytest.mark.parametrize("built", ["other = Other()", "net.other = other = Other()"])
def test_who_casts_a_model_and_trains_none_says_little_of_others(built: str) -> None:
    text = BESIDE.format(built)
    [one] = lint_source(text, isolated=True, confidence="possible")
    assert (one.code, one.confidence.value) == ("MP301", "possible")
    [one] = lint_source(text, isolated=True, precision=["float16"])
    assert (one.code, one.confidence.value) == ("MP301", "likely")


REGION = "    with torch.autocast('cuda', dtype=torch.float16):\n"
IN_REGION = {
    "in a region": f"def run(net, x):\n{REGION}        return net(x)\n",
    "in a function that is one": (
        "@torch.autocast('cuda', dtype=torch.float16)\ndef run(net, x):\n    return net(x)\n"
    ),
    "in a helper": (
        f"def call(net, x):\n    return net(x)\n\n\ndef run(net, x):\n{REGION}        return call(net, x)\n"
    ),
    "in a helper's region": (
        f"def call(net, x):\n{REGION}        return net(x)\n\n\ndef run(net, x):\n    return call(net, x)\n"
    ),
}


@pytest.mark.parametrize("text", IN_REGION.values(), ids=IN_REGION)
def test_what_runs_in_a_region_is_the_model_of_the_file(text: str) -> None:
    head = HEAD.replace(
        "self.layer(x.to(self.layer.weight.dtype)).float()", "self.layer(x).exp().half()"
    )
    found = [d for d in lint(text, head=head) if d.code == "MP507"]
    assert [d.modes for d in found] == [("code",)]


@pytest.mark.parametrize(
    "text",
    [
        "def run(net, x):\n    return net(x)\n",
        f"def run(net, x):\n    y = net(x)\n{REGION}        return y @ y\n",
    ],
    ids=["nowhere", "before a region"],
)
def test_what_runs_elsewhere_need_not_be(text: str) -> None:
    head = HEAD.replace(
        "self.layer(x.to(self.layer.weight.dtype)).float()", "self.layer(x).exp().half()"
    )
    assert all(d.modes != ("code",) for d in lint(text, head=head) if d.code == "MP507")


PARTS = """\
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode_audio, self.judge = nn.Linear(4, 4).half(), Net()


def run(model, x):
    return model.judge(model.encode_audio({}))
"""


def test_a_model_whose_parts_are_called_is_the_class_that_has_them() -> None:
    assert "MP401" in " ".join(codes(PARTS.format("torch.zeros(2, 4)")))
    other = PARTS.format("torch.zeros(2, 4)").replace("model.judge(", "model.umpire(")
    assert codes(other) == []


def test_of_several_that_are_called_none_is_the_model_of_the_file() -> None:
    head = HEAD.replace(
        "self.layer(x.to(self.layer.weight.dtype)).float()", "self.layer(x).exp().half()"
    )
    text = f"def run(net, loss, x):\n{REGION}        return loss(net(x))\n"
    assert all(d.modes != ("code",) for d in lint(text, head=head) if d.code == "MP507")
    named = text.replace("loss(net(x))", "net(x)")
    assert [d.modes for d in lint(named, head=head) if d.code == "MP507"] == [("code",)]
