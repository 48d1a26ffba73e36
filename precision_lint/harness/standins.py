"""Stand-ins for the models, losses, optimizers and scalers of a training step."""

from __future__ import annotations

import ast
import contextlib
import re

from precision_lint.harness.inplace import Block, calls
from precision_lint.harness.scope import Scope, dotted, last_word, stored
from precision_lint.harness.slicing import NAME

TURNS = 4
"""How often a step is made."""
TEXT = f'''
class Model(nn.Module):
    """Stands for a model and for each of its parts that has no stand-in of its own."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)
        if not parts:
            self.weight = nn.Parameter(torch.linspace(1.0, 2.0, 4))
            self.bias = nn.Parameter(torch.linspace(-1.0, 0.5, 2))

    def __getattr__(self, name):
        made = self.__dict__["_parameters"]
        if name in made or name in ("parts", "weight", "bias"):
            return super().__getattr__(name)
        return self

    def __getitem__(self, index):
        return self


def _weights(models):
    return [one for model in models for one in model.parameters()]


def _objective(models):
    """Stands for the loss; the true gradient of a parameter is the parameter."""
    return sum(one.square().sum() for one in _weights(models)) / 2


def _norm(models):
    found = [one.grad.norm() for one in _weights(models) if one.grad is not None]
    return torch.stack(found).norm() if found else torch.zeros(())


@torch.enable_grad()
def {NAME}():
    ...
'''
"""What a step is made with."""
OVERFLOW = """
def _objective(models):
    \"\"\"Stands for the loss, whose gradient is infinite in the second batch.\"\"\"
    _batches.append(models)
    factor = float("inf") if len(_batches) == 2 else 0.5
    return sum(one.square().sum() for one in _weights(models)) * factor


_batches = []
"""


class Roles:
    """By text, the names of what stands for the parts of a step."""

    def __init__(self, scope: Scope, body: Block) -> None:
        self.scope = scope
        self.scalers: dict[str, str] = {}
        self.optimizers: dict[str, str] = {}
        self.models: dict[str, str] = {}
        self.losses: dict[str, str] = {}
        module = ast.Module(body, [])
        self.turns = {
            name
            for one in ast.walk(module)
            if isinstance(one, ast.For)
            for name in stored(one.target)
        }
        self._find_scalers(module)
        self._find_optimizers(module)
        self._find_models(module)
        for call in calls(module, "backward"):
            if text := dotted(scaled(call)):
                self.losses[text] = _name(text)

    @property
    def names(self) -> dict[str, str]:
        """All of them."""
        return {**self.losses, **self.models, **self.optimizers, **self.scalers}

    @property
    def all_models(self) -> list[str]:
        """The stand-ins of models; there is one in any case."""
        return list(dict.fromkeys(self.models.values())) or ["model"]

    def _receiver(self, call: ast.Call) -> str:
        text = dotted(call.func.value)  # type: ignore[attr-defined]
        return "" if self.scope.qualified(call.func) else text

    def _find_scalers(self, module: ast.Module) -> None:
        found = {self._receiver(call) for call in calls(module, "scale", "unscale_")}
        updated = {self._receiver(call) for call in calls(module, "update")}
        for call in calls(module, "step"):
            text = self._receiver(call)
            if (call.args and text in updated) or self._class(text).endswith("GradScaler"):
                found.add(text)
        self.scalers = {text: _name(text) for text in sorted(found - {""})}

    def _find_optimizers(self, module: ast.Module) -> None:
        found = []
        for call in calls(module, "step", "unscale_"):
            if self._receiver(call) in self.scalers and call.args:
                found.append(dotted(call.args[0]))
        for call in calls(module, "step", "zero_grad"):
            name = self._class(self._receiver(call))
            if name.startswith("torch.optim.") and "lr_scheduler" not in name:
                found.append(self._receiver(call))
        self.optimizers = {text: _name(text) for text in found if text and text not in self.turns}

    def _find_models(self, module: ast.Module) -> None:
        found = [
            self._receiver(call)
            for call in calls(module, "parameters", "named_parameters", "zero_grad", "modules")
        ]
        for text in self.optimizers:
            for call in calls(self.made(text) or ast.Pass(), "parameters", "named_parameters"):
                found.append(self._receiver(call))
        for node in ast.walk(module):
            if isinstance(node, ast.Attribute) and node.attr == "grad":
                whole = dotted(node.value).rpartition(".")[0]
                known = any(whole == one or whole.startswith(f"{one}.") for one in found if one)
                if not known and whole.partition(".")[0] not in self.turns:
                    found.append(whole)
        apart = {"", "self", *self.optimizers, *self.turns}
        self.models = {text: _name(text) for text in found if text not in apart}

    def made(self, text: str) -> ast.Call | None:
        """The call that the file builds something with."""
        for node in ast.walk(self.scope.tree):
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(text and dotted(one) == text for one in targets):
                    return node.value
        return None

    def _class(self, text: str) -> str:
        built = self.made(text)
        return self.scope.qualified(built.func) if built is not None else ""

    # what builds them

    def built(self) -> Block:
        """The statements that build all but the losses, and note how things are at the start."""
        parts = self._parts()
        longest = sorted(self.models.items(), key=lambda item: -len(item[0]))
        names = list(dict.fromkeys(name for _, name in longest)) or self.all_models
        lines = [f"{one} = Model({', '.join(parts.get(one, ()))})" for one in names]
        inner = {part for each in parts.values() for part in each}
        whole = [one for one in self.all_models if one not in inner]
        lines.append(f"_models = [{', '.join(whole)}]")
        built: set[str] = set()
        for number, (text, name) in enumerate(self.optimizers.items()):
            if name not in built:
                lines.append(f"{name} = {self._optimizer(text, number)}")
                built.add(name)
        lines += [f"{name} = {self._scaler(text)}" for text, name in self.scalers.items()]
        lines += ["_start = [w.detach().clone() for w in _weights(_models)]", "_norms = []"]
        return ast.parse("\n".join(lines)).body

    def _parts(self) -> dict[str, list[str]]:
        """By stand-in of a model those of its parts, which are named behind it."""
        texts = {name: text for text, name in self.models.items()}
        found: dict[str, list[str]] = {}
        for name, text in texts.items():
            whole = [one for one in texts if text.startswith(f"{texts[one]}.")]
            if whole:
                found.setdefault(max(whole, key=lambda one: len(texts[one])), []).append(name)
        return found

    def _optimizer(self, text: str, number: int) -> str:
        """The user's own, with what is written of its settings, over the models that it names."""
        built = self.made(text)
        own = [
            self.models[self._receiver(call)]
            for call in calls(built or ast.Pass(), "parameters", "named_parameters")
            if self._receiver(call) in self.models
        ]
        if not own:
            alike = len(self.optimizers) == len(self.all_models)
            own = [self.all_models[number]] if alike else self.all_models
        name = self._class(text)
        given = _literals(built, ("lr", "momentum", "weight_decay", "betas", "eps"))
        if not name.startswith("torch.optim.") or name.endswith(("LBFGS", "SparseAdam")):
            name, given = "torch.optim.SGD", {}
        words = ", ".join(f"{key}={value}" for key, value in {"lr": "0.1", **given}.items())
        return f"{name}(_weights([{', '.join(own)}]), {words})"

    def _scaler(self, text: str) -> str:
        kept = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
        given = {"init_scale": "65536.0", **_literals(self.made(text), kept)}
        words = ", ".join(f"{key}={value}" for key, value in given.items())
        return f'torch.amp.GradScaler("cuda", {words})'


def scaled(call: ast.Call) -> ast.expr:
    """What a call of ``backward`` starts from, without a scaler and factors."""
    given: ast.expr = call.func.value  # type: ignore[attr-defined]
    if isinstance(given, ast.Call) and given.args and last_word(given) == "scale":
        given = given.args[0]
    while isinstance(given, ast.BinOp):
        given = given.left
    return given


def _name(text: str) -> str:
    return re.sub(r"\W+", "_", text.removeprefix("self."))


def _literals(built: ast.Call | None, names: tuple[str, ...]) -> dict[str, str]:
    """Keyword arguments of these names that are written out."""
    found: dict[str, str] = {}
    for one in built.keywords if built is not None else ():
        with contextlib.suppress(ValueError):
            ast.literal_eval(one.value)
            if one.arg in names:
                found[one.arg] = ast.unparse(one.value)
    return found


def guess(name: str, body: Block) -> ast.expr:
    """What may stand for a value that is not known, by its use."""

    def given(call: ast.Call) -> bool:
        return bool(call.args) and getattr(call.args[0], "id", "") == name

    for node in (node for one in body for node in ast.walk(one)):
        if isinstance(node, ast.Call) and dotted(node.func) == "len" and given(node):
            return ast.parse(f"range({TURNS})", mode="eval").body
        clips = isinstance(node, ast.Call) and "clip_grad" in last_word(node) and given(node)
        if clips or (isinstance(node, ast.For) and getattr(node.iter, "id", "") == name):
            return ast.parse("_weights(_models)", mode="eval").body
        counts = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.FloorDiv))
        counts |= isinstance(node, ast.Call) and last_word(node) == "range"
        if counts and any(getattr(one, "id", "") == name for one in ast.walk(node)):
            return ast.Constant(2)
    return ast.Constant(1.0)
