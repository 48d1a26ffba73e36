"""Linking: which functions of other files a call leads to, and in which autocast state."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from precision_lint.semantics.program import Program
from tests.projects import called_from, callers, linked, states

ROOT = Path(__file__).parent.parent

# names of other files

TRIED = "try:\n    from pkg.util import loss\nexcept ImportError:\n    loss = None"
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .util import loss\n"
LOSS = "import torch\ndef loss(x):\n    return x\n"


def step(imports: str, call: str = "loss(x)") -> str:
    """A file that makes one call inside of a region."""
    return (
        f"import torch\n{imports}\ndef step(x):\n    with torch.autocast('cuda'):\n        {call}\n"
    )


@pytest.mark.parametrize(
    ("importer", "imports", "call"),
    [
        ("train", "from pkg.util import loss", "loss(x)"),
        ("train", "from pkg.util import loss as criterion", "criterion(x)"),
        ("train", "import pkg.util", "pkg.util.loss(x)"),
        ("train", "import pkg.util as u", "u.loss(x)"),
        ("train", "from pkg import util", "util.loss(x)"),
        ("train", "from pkg import util as u", "u.loss(x)"),
        ("train", "from pkg.util import *", "loss(x)"),
        ("train", "from pkg.util import loss\ncriterion = loss", "criterion(x)"),
        ("train", TRIED, "loss(x)"),
        ("train", "", "from pkg.util import loss; loss(x)"),
        ("train", "if torch.cuda.is_available():\n    from pkg.util import loss", "loss(x)"),
        ("train", "from .pkg.util import loss", "loss(x)"),
        ("pkg__train", "from .util import loss", "loss(x)"),
        ("pkg__train", "from . import util", "util.loss(x)"),
        ("pkg__train", "from util import loss", "loss(x)"),
        ("pkg__", "from .util import loss", "loss(x)"),
        ("pkg__sub__train", "from ..util import loss", "loss(x)"),
        ("pkg__sub__train", "from .. import util", "util.loss(x)"),
        ("pkg__sub__", "from ..util import loss", "loss(x)"),
        ("pkg__sub__train", "from pkg.util import loss", "loss(x)"),
        ("tools__deep__train", "from pkg.util import loss", "loss(x)"),
    ],
)  # fmt: skip
def test_imports_lead_to_files(importer: str, imports: str, call: str) -> None:
    program = linked(**{"pkg__util": LOSS, importer: step(imports, call)})
    assert states(program, "pkg/util.py", "loss") == {"on"}


@pytest.mark.parametrize(
    "texts",
    [
        {"pkg__": "from .util import loss\n", "train": step("from pkg import loss")},
        {"pkg__": "from .util import loss\n", "train": step("import pkg", "pkg.loss(x)")},
        {"pkg__": "from .util import loss as L\n", "train": step("from pkg import L as M", "M(x)")},
        {"pkg__": "from .util import *\n", "train": step("from pkg import *")},
        {"pkg__": "from .util import *\n__all__ = 'loss',", "train": step("from pkg import loss")},
        {"pkg__": "from . import util\n", "train": step("from pkg import util", "util.loss(x)")},
        {"pkg__": "", "train": step("import pkg", "pkg.util.loss(x)")},
        {"pkg__": FOR_TYPES, "train": step("from pkg import loss")},
        {
            "pkg__": "from .util import loss\n",
            "a": "from pkg import *\n",
            "b": "from a import loss\n",
            "train": step("from b import *"),
        },
        {
            "alias": "from pkg.util import loss\nbest = loss\n",
            "train": step("from alias import best", "best(x)"),
        },
    ],
)  # fmt: skip
def test_names_are_followed_to_where_they_are_defined(texts: dict[str, str]) -> None:
    program = linked(pkg__util=LOSS, **texts)
    assert called_from(program, "pkg/util.py", "loss") == {"train.py:step"}


def test_a_source_directory_is_a_root() -> None:
    program = linked(
        src__pkg__util=LOSS,
        src__pkg__train=step("from pkg.util import loss"),
        tests__test_loss=step("from pkg.util import loss"),
    )
    assert len(callers(program, "src/pkg/util.py", "loss")) == 2


def test_the_nearest_of_several_modules_of_one_name() -> None:
    program = linked(
        one__util=LOSS,
        two__util=LOSS,
        two__train=step("from util import loss"),
        a__core__util=LOSS,
        b__core__util=LOSS,
        b__tools__train=step("from core.util import loss"),
    )
    assert called_from(program, "one/util.py", "loss") == set()
    assert called_from(program, "two/util.py", "loss") == {"two/train.py:step"}
    assert called_from(program, "a/core/util.py", "loss") == set()
    assert called_from(program, "b/core/util.py", "loss") == {"b/tools/train.py:step"}


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from elsewhere import loss", "loss(x)"),
        ("from vendor.util import loss", "loss(x)"),
        ("from .... import util", "util.loss(x)"),
        ("import importlib", "importlib.import_module('util').loss(x)"),
        ("", "__import__('util').loss(x)"),
        ("import util", "getattr(util, 'loss')(x)"),
        ("import util", "util.loss.of[3].nothing(x)"),
        ("import util", "util.other(x)"),
        ("from util import *", "other(x)"),
        ("from util import *", "print(x)"),
        ("", "loss(x)"),
    ],
)
def test_what_cannot_be_resolved_leads_nowhere(imports: str, call: str) -> None:
    program = linked(util=LOSS, train=step(imports, call))
    assert program.callers == {}


def test_a_parameter_hides_an_import() -> None:
    text = "import torch\nfrom util import loss\ndef step(loss, x):\n    return loss(x)\n"
    assert linked(util=LOSS, train=text).callers == {}


def test_the_standard_library_is_not_the_project() -> None:
    seed = "import torch\ndef seed(x):\n    return x\n"
    inside = linked(pkg__="", pkg__random=seed, pkg__train=step("import random", "random.seed(x)"))
    assert inside.callers == {}
    script = linked(random=seed, train=step("import random", "random.seed(x)"))
    assert states(script, "random.py", "seed") == {"on"}
    elsewhere = linked(pkg__random=seed, train=step("import random", "random.seed(x)"))
    assert elsewhere.callers == {}


def test_a_module_is_not_what_it_imports_by_its_own_name() -> None:
    program = linked(
        loggers__wandb="import torch\nimport wandb\ndef log(x):\n    return wandb.log(x)\n"
    )
    assert program.resolve("wandb.log", "loggers/wandb.py") is None


def test_names_that_several_star_imports_may_bring() -> None:
    program = linked(
        a="import torch\nEPS = 1e-8\n",
        b="import torch\nfrom a import *\ndef loss(x):\n    return x\n",
        train=step("from a import *\nfrom b import *"),
    )
    assert program.resolve("*.loss", "train.py") == ("b.py", "loss")
    assert program.resolve("*.EPS", "train.py") == ("a.py", "EPS")
    assert program.resolve("*.GAMMA", "train.py") is None


# calls

MODEL = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = Head()

        def forward(self, x):
            return self.head(x)

        def predict(self, x):
            return x

        @staticmethod
        def fixed(x):
            return x

        @classmethod
        def made(cls, x):
            return x

    class Head(nn.Module):
        def forward(self, x):
            return x

    class Loss:
        def __call__(self, x):
            return x

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

    def build(flag):
        model = Net()
        model.to("cuda")
        return model

    def build_all(flag):
        model, criterion = Net(), Head()
        return model, criterion

    def build_any(flag):
        if flag:
            return Net()
        return Head()

    def build_both(flag):
        return build_all(flag)

    def unwrap(model):
        return model.module if hasattr(model, "module") else model

    net = Net()
    table = {"net": Net}
    function = Function.apply
"""


def train(prepared: str, call: str, names: str = "Net, Head") -> str:
    return f"""
import torch
from functools import partial
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from model import {names}

def train(x, flag):
    {prepared}
    with torch.autocast("cuda"):
        {call}
"""


@pytest.mark.parametrize(
    ("prepared", "call", "reached"),
    [
        ("m = Net()", "m(x)", "Net.forward"),
        ("m = Net()", "m.forward(x)", "Net.forward"),
        ("m = Net()", "m.predict(x)", "Net.predict"),
        ("m = Net()", "m.head(x)", "Head.forward"),
        ("m = Net().to(x.device).eval()", "m(x)", "Net.forward"),
        ("m = Net(); m = m.cuda(); m = torch.compile(m)", "m(x)", "Net.forward"),
        ("m = DDP(Net(), device_ids=[0])", "m(x)", "Net.forward"),
        ("m = nn.DataParallel(Net())", "m.module.predict(x)", "Net.predict"),
        ("m = torch.compile(Net())", "m._orig_mod.predict(x)", "Net.predict"),
        ("m, o = accelerator.prepare(Net(), 1)", "m(x)", "Net.forward"),
        ("m = Net() if flag else Head()", "m(x)", "Head.forward"),
        ("m = [Net(), Head()]", "[layer(x) for layer in m]", None),
        ("m = partial(Net, 1)", "m()(x)", "Net.forward"),
        ("m = Net()", "checkpoint(m.predict, x)", "Net.predict"),
        ("m = Net()", "list(map(m.predict, x))", "Net.predict"),
        ("m = Net()", "torch.vmap(m.predict)(x)", "Net.predict"),
        ("pass", "Net.fixed(x)", "Net.fixed"),
        ("pass", "Net.made(x)", "Net.made"),
        ("pass", "Net()(x)", "Net.forward"),
    ],
)
def test_calls_lead_to_methods(prepared: str, call: str, reached: str | None) -> None:
    program = linked(model=MODEL, train=train(prepared, call))
    found = {f for (file, f), c in program.callers.items() if any(x.flow.state == "on" for x in c)}
    assert found - {"Net.__init__"} == ({reached} if reached else set()) or (
        reached in found and "if flag" in prepared
    )


@pytest.mark.parametrize(
    ("prepared", "call", "names", "reached"),
    [
        ("m = build(flag)", "m(x)", "build", {"Net.forward"}),
        ("m, c = build_all(flag)", "c(x)", "build_all", {"Head.forward"}),
        ("m, c = build_both(flag)", "m(x)", "build_both", {"Net.forward"}),
        ("m = build_any(flag)", "m(x)", "build_any", {"Net.forward", "Head.forward"}),
        ("m = unwrap(Net())", "m(x)", "Net, unwrap", {"Net.forward"}),
        ("m = DDP(Net())", "unwrap(m).predict(x)", "Net, unwrap", {"Net.predict"}),
        ("pass", "net(x)", "net", {"Net.forward"}),
        ("m = table['net']()", "m(x)", "table", {"Net.forward"}),
        ("pass", "function(x)", "function", {"Function.forward"}),
        ("pass", "Function.apply(x)", "Function", {"Function.forward"}),
        ("c = Loss()", "c(x)", "Loss", {"Loss.__call__"}),
    ],
)
def test_calls_lead_through_factories(
    prepared: str, call: str, names: str, reached: set[str]
) -> None:
    program = linked(model=MODEL, train=train(prepared, call, names))
    found = {
        name
        for (file, name), sites in program.callers.items()
        if file == "model.py" and any(site.flow.state == "on" for site in sites)
    }
    assert found - {"unwrap", "Net.__init__"} == reached


HOLDERS = {
    "self.inner = Head()": "self.inner(x)",
    "self.inner = Head().to('cuda')": "self.inner(x)",
    "self.inner: nn.Module = Head()": "self.inner(x)",
    "self.inner, self.other = Head(), 1": "self.inner(x)",
    "self.inner = Head() if flag else None": "self.inner(x)",
    "self.inner = None; self.inner = Head()": "self.inner(x)",
    "self.inner = nn.Sequential(nn.ReLU(), Head())": "self.inner(x)",
    "self.inner = nn.Sequential(*[Head() for _ in x])": "self.inner(x)",
    "self.inner = nn.ModuleList([Head() for _ in x])": "self.inner[0](x)",
    "self.inner = nn.ModuleDict({'a': Head()})": "self.inner['a'](x)",
    "self.inner = nn.ModuleList(); self.inner.append(Head())": "self.inner[-1](x)",
    "layers = []; layers.append(Head()); self.inner = nn.Sequential(*layers)": "self.inner(x)",
    "self.add_module('inner', Head())": "self.inner(x)",
    "self.inner = layer(1)": "self.inner(x)",
    "self.inner = partial(Head, 1)()": "self.inner(x)",
}


@pytest.mark.parametrize("stored", HOLDERS)
def test_attributes_lead_to_their_classes(stored: str) -> None:
    statements = "\n        ".join(stored.split("; "))
    text = f"""
import torch
from functools import partial
from torch import nn
from model import Head

class Outer(nn.Module):
    def __init__(self, x, flag, layer=Head):
        super().__init__()
        {statements}

    @torch.autocast("cuda")
    def forward(self, x):
        return {HOLDERS[stored]}
"""
    program = linked(model=MODEL, outer=text)
    assert called_from(program, "model.py", "Head.forward") >= {"outer.py:Outer.forward"}
    assert states(program, "model.py", "Head.forward") == {"on"}


@pytest.mark.parametrize(
    "loop",
    [
        "for layer in self.layers:",
        "for i, layer in enumerate(self.layers):",
        "for layer, y in zip(self.layers, x):",
        "for i, (layer, y) in enumerate(zip(self.layers, x)):",
        "for layer in reversed(self.layers):",
        "for layer in self.layers.children():",
        "for name, layer in self.layers.items():",
    ],
)
def test_loops_over_layers(loop: str) -> None:
    text = f"""
import torch
from torch import nn
from model import Head

class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Head() for _ in range(3)])

    @torch.autocast("cuda")
    def forward(self, x):
        {loop}
            x = layer(x)
        return x
"""
    program = linked(model=MODEL, outer=text)
    assert states(program, "model.py", "Head.forward") == {"on"}


def test_every_branch_that_stores_an_attribute_counts() -> None:
    program = linked(
        model=MODEL,
        outer="""
            import torch
            from model import Head, Net

            class Outer(torch.nn.Module):
                def __init__(self, flag):
                    if flag:
                        self.inner = Net()
                    else:
                        self.inner = Head()

                @torch.autocast("cuda")
                def forward(self, x):
                    return self.inner(x)
        """,
    )
    assert states(program, "model.py", "Net.forward") == {"on"}
    assert states(program, "model.py", "Head.forward") == {"on"}


def test_properties_give_what_they_return() -> None:
    program = linked(
        model=MODEL,
        outer="""
            import torch
            from model import Net

            class Outer:
                def __init__(self):
                    self._net = Net()

                @property
                def net(self):
                    return self._net

                @torch.autocast("cuda")
                def step(self, x):
                    return self.net(x)
        """,
    )
    assert states(program, "model.py", "Net.forward") == {"on"}


def test_inheritance_across_files() -> None:
    program = linked(
        base="""
            import torch

            class Base(torch.nn.Module):
                def forward(self, x):
                    return self.loss(x) + self.extra(x)

                def loss(self, x):
                    raise NotImplementedError

                def shared(self, x):
                    return x
        """,
        sub="""
            import torch
            from base import Base

            class Sub(Base):
                def loss(self, x):
                    return super().shared(x)

                def extra(self, x):
                    return super(Sub, self).shared(x)

            class Other(Base):
                pass
        """,
        train="""
            import torch
            from sub import Other, Sub

            def train(x):
                sub, other = Sub(), Other()
                with torch.autocast("cuda"):
                    sub(x)
        """,
    )
    assert called_from(program, "base.py", "Base.forward") == {"train.py:train"}
    assert called_from(program, "sub.py", "Sub.loss") == {"base.py:Base.forward"}
    assert called_from(program, "sub.py", "Sub.extra") == {"base.py:Base.forward"}
    assert called_from(program, "base.py", "Base.shared") == {"sub.py:Sub.loss", "sub.py:Sub.extra"}
    assert states(program, "base.py", "Base.shared") == {"on"}


def test_attributes_of_base_classes() -> None:
    program = linked(
        model=MODEL,
        base="""
            import torch
            from model import Head

            class Base(torch.nn.Module):
                def __init__(self, model):
                    self.head = Head()
                    self.model = model.to("cuda")
        """,
        trainer="""
            import torch
            from base import Base

            class Trainer(Base):
                def __init__(self, model, rate):
                    super().__init__(model)

                def fit(self, x):
                    with torch.autocast("cuda"):
                        self.model(x)
                        self.head(x)
        """,
        train="""
            import torch
            from model import Net
            from trainer import Trainer

            def main(x):
                Trainer(Net(), rate=1).fit(x)
        """,
    )
    assert states(program, "model.py", "Net.forward") == {"on"}
    assert "trainer.py:Trainer.fit" in called_from(program, "model.py", "Head.forward")


@pytest.mark.parametrize(
    ("signature", "call"),
    [
        ("model, x", "epoch(net, 1)"),
        ("x, *, model=None", "epoch(1, model=net)"),
        ("x, model: Net", "pass"),
        ("x, model=Net()", "pass"),
    ],
)
def test_models_are_passed_as_arguments(signature: str, call: str) -> None:
    program = linked(
        model=MODEL,
        engine=f"""
            import torch
            from model import Net

            def epoch({signature}):
                with torch.autocast("cuda"):
                    model(x)
        """,
        train=f"""
            import torch
            from model import Net
            from engine import epoch

            def main():
                net = Net()
                {call}
        """,
    )
    assert states(program, "model.py", "Net.forward") == {"on"}


def test_functions_are_passed_as_arguments() -> None:
    program = linked(
        model=MODEL,
        util=LOSS,
        engine="""
            import torch

            def epoch(criterion, x):
                with torch.autocast("cuda"):
                    criterion(x)
        """,
        train="""
            import torch
            from model import Net
            from util import loss
            from engine import epoch

            def main(x):
                epoch(loss, x)
                net = Net()
                epoch(net.predict, x)
        """,
    )
    assert states(program, "util.py", "loss") == {"on"}
    assert states(program, "model.py", "Net.predict") == {"on"}


def test_bound_methods_in_a_table() -> None:
    program = linked(
        util=LOSS,
        criterion="""
            import torch
            from util import loss

            class Criterion(torch.nn.Module):
                def pick(self, name, x):
                    table = {"labels": self.loss_labels, "boxes": self.loss_boxes}
                    return table[name](x)

                def loss_labels(self, x):
                    return loss(x)

                def loss_boxes(self, x):
                    return x

                def forward(self, x):
                    return self.pick("labels", x)
        """,
        train=step("from criterion import Criterion\nc = Criterion()", "c(x)"),
    )
    assert states(program, "util.py", "loss") == {"on"}


@pytest.mark.parametrize(
    "decorator", ["torch.no_grad()", "torch.jit.script", "wrapped", "functools.lru_cache(None)"]
)
def test_decorated_functions_are_not_lost(decorator: str) -> None:
    util = f"import torch\n@{decorator}\ndef loss(x):\n    return x\n"
    program = linked(util=util, train=step("from util import loss"))
    assert states(program, "util.py", "loss") == {"on"}


def test_nested_functions() -> None:
    program = linked(
        util=LOSS,
        train="""
            import torch
            from util import loss

            def train(x):
                def closure():
                    return loss(x)
                with torch.autocast("cuda"):
                    closure()
        """,
    )
    (site,) = callers(program, "util.py", "loss")
    assert (site.function, site.flow.state) == ("train.closure", "on")


# states


def region(options: str) -> str:
    return f"""
        import torch
        from util import loss

        def step(x, flag):
            with torch.autocast("cuda"{options}):
                loss(x)
    """


@pytest.mark.parametrize(
    ("options", "state", "dtype"),
    [
        ("", "on", "float16"),
        (", dtype=torch.bfloat16", "on", "bfloat16"),
        (", dtype=flag", "on", "low"),
        (", enabled=True", "on", "float16"),
        (", enabled=flag", "on", "float16"),
        (", enabled=False", "off", "float16"),
    ],
)
def test_regions_are_carried(options: str, state: str, dtype: str) -> None:
    (site,) = callers(linked(util=LOSS, train=region(options)), "util.py", "loss")
    assert (site.flow.state, site.flow.dtype, site.flow.device) == (state, dtype, "cuda")
    assert (site.flow.file, site.flow.span[0]) == ("train.py", 6)


def test_states_of_several_callers() -> None:
    program = linked(
        util=LOSS,
        on=region(""),
        off=region(", enabled=False"),
        plain="import torch\nfrom util import loss\ndef evaluate(x):\n    return loss(x)\n",
    )
    assert [site.flow.state for site in callers(program, "util.py", "loss")] == [
        "on", "off", "inherited",
    ]  # fmt: skip


def test_a_script_says_nothing_of_training() -> None:
    program = linked(util=LOSS, script="import torch\nfrom util import loss\nloss(1)\n")
    assert states(program, "util.py", "loss") == {"inherited"}


def test_a_region_passes_through_calls_and_keeps_them() -> None:
    between = "import torch\nfrom {0} import {1}\ndef {2}(x):\n    return {1}(x)\n"
    program = linked(
        util=LOSS,
        a=between.format("util", "loss", "inner"),
        b=between.format("a", "inner", "outer"),
        train=step("from b import outer", "outer(x)"),
    )
    (site,) = callers(program, "util.py", "loss")
    assert (site.file, site.flow.state, site.flow.file) == ("a.py", "on", "train.py")
    assert [(file, name) for file, _, name in site.flow.via] == [
        ("train.py", "outer"), ("b.py", "inner"),
    ]  # fmt: skip


def test_a_caller_that_nobody_calls_has_no_known_state() -> None:
    program = linked(
        util=LOSS,
        middle="""
            import torch
            from util import loss

            def middle(x):
                return loss(x)

            def called(x):
                with torch.autocast("cuda"):
                    middle(x)

            def uncalled(x):
                middle(x)
        """,
    )
    assert states(program, "util.py", "loss") == {"on", "inherited"}


def test_a_region_of_its_own_wins_over_the_callers() -> None:
    program = linked(
        util=LOSS,
        a="""
            import torch
            from util import loss

            @torch.autocast("cuda", enabled=False)
            def careful(x):
                return loss(x)

            def careless(x):
                with torch.autocast("cuda", enabled=False):
                    return loss(x)
        """,
        train=step("from a import careful, careless", "careful(x); careless(x)"),
    )
    assert states(program, "util.py", "loss") == {"off"}


def test_many_callers_keep_the_unknown_one() -> None:
    texts = {f"on{i}": region("") for i in range(20)}
    plain = "import torch\nfrom util import loss\ndef f(x):\n    return loss(x)\n"
    program = linked(util=LOSS, plain=plain, **texts)
    sites = callers(program, "util.py", "loss")
    assert len(sites) == 12
    assert [site.flow.state for site in sites].count("inherited") == 1


# hostile shapes end


def test_recursion_ends() -> None:
    program = linked(
        a="""
            import torch
            from b import pong

            def ping(x):
                with torch.autocast("cuda"):
                    pong(x)
                ping(x)
        """,
        b="""
            import torch
            from a import ping

            def pong(x):
                return ping(pong(x))
        """,
    )
    assert states(program, "b.py", "pong") == {"on"}
    assert states(program, "a.py", "ping") == {"on"}


@pytest.mark.parametrize(
    "texts",
    [
        {"a": "from b import x\nimport torch\nx(1)", "b": "from a import x\nimport torch\nx(1)"},
        {"a": "from a import x\nimport torch\nx(1)\n"},
        {"a": "from .a import *\nimport torch\nx(1)\n"},
        {"a": "from b import *\nimport torch\nx(1)", "b": "from a import *\nimport torch\nx(1)"},
        {"a": "import torch\nclass A(A):\n    def f(self):\n        self.g()\n"},
        {"a": "import torch\nfrom b import B\nclass A(B):\n    def f(self):\n        super().f()\n",
         "b": "import torch\nfrom a import A\nclass B(A):\n    def f(self):\n        self.f()\n"},
        {"a": "import torch\nx = y\ny = x\nx(1)\n"},
        {"a": "import torch\nclass A:\n    def f(self):\n        self.x = self.x(self.x)\n"},
        {"a": "import torch\ndef f():\n    return f()\nf()()()\n"},
        {"a": "import torch\nfrom . import *\nfrom .. import *\nfrom ... import a\nx()\n"},
        {"__": "from . import *\nimport torch\nx()\n"},
        {"a": "import torch\nf(*a, **b)(*a)\nf(x=1)(y=2)[0]()\n(lambda: 1)()\n"},
    ],
)  # fmt: skip
def test_cycles_lead_nowhere(texts: dict[str, str]) -> None:
    program = linked(**texts)
    assert all(c.flow.state == "inherited" for sites in program.callers.values() for c in sites)


def test_work_grows_with_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files that star-import each other, names that are nowhere cost each file the same."""
    counts = []
    looked: list[str] = []
    starred = Program._starred

    def counted(self: Program, name: str, file: str, depth: int) -> tuple[str, str] | None:
        looked.append(name)
        return starred(self, name, file, depth)

    monkeypatch.setattr(Program, "_starred", counted)
    for size in (20, 40):
        texts = {}
        for i in range(size):
            stars = "\n".join(f"from m{(i * 7 + k) % size} import *" for k in range(6))
            texts[f"m{i}"] = f"import torch\n{stars}\ndef f{i}(x):\n    return missing(x)\n"
        looked.clear()
        linked(**texts)
        counts.append(len(looked))
    assert 0 < counts[1] <= 2 * counts[0]


# the program as a value


def test_a_program_can_be_sent() -> None:
    program = linked(util=LOSS, train=step("from util import loss"))
    program.resolve("util.loss", "train.py")
    again = pickle.loads(pickle.dumps(program))
    assert again == program
    assert again.resolve("util.loss", "train.py") == ("util.py", "loss")


@pytest.mark.parametrize(
    ("path", "name"), [("/project/a/b.py", "a/b.py"), ("/elsewhere/b.py", ""), ("b.py", "")]
)
def test_names_of_files(path: str, name: str) -> None:
    assert Program("/project").relative(Path(path)) == name


def test_the_order_of_sets_does_not_matter() -> None:
    code = (
        "import pickle\n"
        "from tests.test_program import *\n"
        "texts = {f'p{i}__util': LOSS for i in range(9)}\n"
        "texts |= {f'q{i}__t': step('from util import loss') for i in range(9)}\n"
        "texts |= {'model': MODEL, 'train': train('m = Net() if flag else Head()', 'm(x)')}\n"
        "program = linked(**texts)\n"
        "print(sorted(program.callers.items()))\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1
    assert b"p0/util.py" in said.pop()
