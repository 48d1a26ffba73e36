"""What a Python file says of half precision, read off its syntax tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property

from precision_lint.project import modules, options
from precision_lint.project.literals import (
    Names,
    dotted,
    literal,
    on_device,
    on_precision,
    path,
    string,
    text,
)
from precision_lint.project.objects import Objects
from precision_lint.project.options import Found
from precision_lint.project.spellings import (
    BF16,
    DTYPES,
    F16,
    OPEN,
    Kind,
    Said,
    Statement,
    Strength,
    is_setting,
    judge,
    normal,
    offered,
    settings,
)

_OTHERS = {
    "tensorflow", "tf", "jax", "jnp", "paddle", "numpy", "np", "keras", "mindspore", "cupy", "te",
    "transformer_engine",
}  # fmt: skip
"""Roots of calls that are not torch's; Transformer Engine's region is one of float8."""
_TYPES = {"HalfTensor": F16, "BFloat16Tensor": BF16}
_SCALER = re.compile(r"\w*GradScaler|NativeScaler\w*|ApexScaler\w*")
_REGION = re.compile(
    r"(?:(?:maybe|amp|use|get|cuda|torch)?_)?autocast(?:_\w*(?:context|ctx|manager))?"
)
_CALLS: dict[str, tuple[str, Kind, str]] = {
    # last name: whose it is, what it means, dtype
    "AmpOptimWrapper": ("MMEngine's", "autocast", F16),
    "ApexOptimWrapper": ("MMEngine's", "autocast", F16),
    "Fp16OptimizerHook": ("MMCV's", "autocast", F16),
    "AMPTrainer": ("Detectron2's", "autocast", F16),
    "to_fp16": ("fastai's", "autocast", F16),
    "to_native_fp16": ("fastai's", "autocast", F16),
    "to_non_native_fp16": ("fastai's", "autocast", F16),
    "to_bf16": ("fastai's", "autocast", BF16),
    "NonNativeMixedPrecision": ("fastai's", "autocast", F16),
    "NativeMixedPrecision": ("fastai's", "autocast", F16),
    "ModelToHalf": ("fastai's", "half", F16),
    "supervised_training_step_amp": ("Ignite's", "autocast", F16),
    "supervised_training_step_apex": ("Ignite's", "autocast", F16),
    "supervised_evaluation_step_amp": ("Ignite's", "autocast", F16),
    "network_to_half": ("Apex's", "half", F16),
    "FP16_Optimizer": ("Apex's", "half", F16),
    "FP16Optimizer": ("fairseq's", "half", F16),
    "MemoryEfficientFP16Optimizer": ("fairseq's", "half", F16),
    "Float16Module": ("Megatron's", "half", F16),
    "ConstantGradScaler": ("Megatron's", "half", F16),
    "DynamicGradScaler": ("Megatron's", "half", F16),
}
_OFFERS = {"auto_fp16", "force_fp32", "wrap_fp16_model"}
"""MMCV's: half precision in the functions that ``auto_fp16`` decorates, and nowhere else."""
_PLUGIN = re.compile(r"\w*Precision(?:Plugin)?")
_OWNERS = (
    (re.compile(r"\w*TrainingArguments"), "Transformers'"),
    (re.compile(r"Accelerator"), "Accelerate's"),
    (re.compile(r"TrainerConfig"), "Nerfstudio's"),
    (re.compile(r"\w*Trainer|Fabric"), "Lightning's"),
    (re.compile(r"create_supervised_\w+"), "Ignite's"),
    (re.compile(r"\w*Engine"), "Catalyst's"),
)
_LOADER = re.compile(r"from_pretrained|from_single_file|from_config|pipeline|LLM|load_model")
_STORES = re.compile(r"save|serialize|store|dump|checkpoint")
"""Names of what writes weights."""
_MODEL = re.compile(
    r"model|net|module|pipe|encoder|decoder|transformer|backbone|teacher|student|ema|llm|head|vae"
    r"|generator|discriminator|critic|policy|bert|clip|^self$"
)
"""Names of what has parameters, where other names are tensors."""
_STATE = re.compile(r"moment|optim|accum|state")
"""Names of an optimizer's memory, whose dtype is no model's."""
_TRAINS = re.compile(r"^(backward|zero_grad)$|[Ss]caler|[Oo]ptimizer")
_STEPS = re.compile(r"^(training|train|validation|test)_step$|^(fit|train_one_epoch)$")
"""Methods of what runs a training, other than by itself being a layer."""
_DEEPSPEED = {"fp16", "bf16", "bfloat16", "torch_autocast"}
_OPTION = re.compile(r"`-*([\w-]+)(?:=|`)")
_DEFAULTS = {"_C", "_c", "__C", "C"}
"""Roots of yacs' tables of defaults: a False there is an option that exists."""


def statements(tree: ast.Module, tensors: bool = True) -> list[Statement]:
    """Every distinct statement of a file (kind, strength, dtypes), where it stands first.

    ``tensors``: whether ``x.half()`` is a tensor's or module's, not one of another library.
    """
    found: dict[tuple[Kind, Strength, frozenset[str], bool], Statement] = {}
    reader = _Reader(tree, tensors)
    told = list(reader.read())
    if all(_switch(found) in reader.of_half for found, _, _ in told if _is_autocast(found)):
        told = [(_pure(found), gated, owned) for found, gated, owned in told]
    for (said, node, spelling), gated, owned in told:
        strength: Strength = "flag" if gated and said.strength == "on" else said.strength
        if owned and not reader.trains and said.kind == "autocast" and strength != "local":
            strength = "layer"
        if "fp16" in spelling and reader.names.imports(_OFFERS):
            strength = "local"  # ``fp16_enabled``, ``--fp16``: what the decorators heed
        own = strength != "local" and reader.objects.keep(node, reader.trains)
        field = isinstance(node, ast.AnnAssign)
        own |= field and reader.layers and not reader.trains and strength != "local"
        own &= said.kind == "half" or field or isinstance(node, ast.arg)
        own |= strength == "layer"
        key = (said.kind, strength, said.dtypes, own)
        if key not in found:
            shown = spelling if len(spelling) <= 90 else f"{spelling[:87]}..."
            row: int = getattr(node, "lineno", 1)
            found[key] = Statement(said.kind, strength, said.dtypes, shown, row, own)
    return list(found.values())


def _said(kind: Kind, *dtypes: str, optional: bool = False, local: bool = False) -> Said:
    return Said(kind, frozenset(dtypes), "local" if local else "flag" if optional else "on")


def _is_autocast(found: Found) -> bool:
    return found.said.kind == "autocast"


def _switch(found: Found) -> str:
    """The name of the option or parameter that was found."""
    name = _OPTION.search(found.spelling)
    return normal(name[1]) if name is not None else ""


def _pure(found: Found) -> Found:
    """An option that is called as one for mixed precision, and makes the model half."""
    if not _is_autocast(found):
        return found
    return found._replace(said=found.said._replace(kind="half"))


def _options(node: ast.AST) -> frozenset[str]:
    """The names that what is inside depends on if that is a choice of precision, or ``""`` where it
    depends on Apex being there."""
    if isinstance(node, ast.Try):
        tries = any(isinstance(inner, (ast.Import, ast.ImportFrom)) for inner in node.body)
        return frozenset({""} if tries else ())
    if not isinstance(node, (ast.If, ast.IfExp)) or not on_precision(node.test):
        return frozenset()
    parts = (part for part in ast.walk(node.test) if isinstance(part, (ast.Name, ast.Attribute)))
    return frozenset({""} | {normal(dotted(part)[-1]) for part in parts})


def _is_layer(node: ast.AST) -> bool:
    """Whether a class is a layer, by its methods."""
    if not isinstance(node, ast.ClassDef):
        return False
    methods = {inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return "forward" in methods and not any(_STEPS.search(name) for name in methods)


def _is_variable(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)


def _false(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and not node.value


class _Reader:
    """One pass over a tree, without recursion over its depth."""

    def __init__(self, tree: ast.Module, tensors: bool) -> None:
        self.tree = tree
        self.tensors = tensors
        self.names = Names()
        self.trains = False
        """Whether the file runs a backward pass."""
        self.layers = False
        """Whether the file defines layers, so that the fields of a class are one model's."""
        self.of_half: set[str] = set()
        """Names of settings on which a model is made half."""
        self.of_autocast: set[str] = set()
        """Names that the dtype of an autocast region is read from."""
        self.objects = Objects()

    @cached_property
    def _module_casts(self) -> frozenset[int]:
        return modules.casts(self.tree)

    def read(self) -> Iterator[tuple[Found, bool, bool]]:
        """What is said, whether under a condition on precision, and whether by a layer."""
        nodes: list[tuple[ast.AST, frozenset[str], bool]] = []
        stack: list[tuple[ast.AST, frozenset[str], bool, bool, bool]] = [
            (self.tree, frozenset(), False, False, False)
        ]
        while stack:  # in the order of the text
            node, gated, layer, local, held = stack.pop()
            nodes.append((node, gated, layer or (local and _is_variable(node))))
            if isinstance(node, ast.Assign):
                self.names.add_table(node)
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.names.add(node)
            elif isinstance(node, ast.Call) and "autocast" in dotted(node.func)[-1]:
                dtypes = [k.value for k in node.keywords if k.arg == "dtype"] + node.args[1:2]
                self.of_autocast.update(dotted(dtype)[-1] for dtype in dtypes)
            elif local and held and isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr)):
                self.objects.add(node)
            elif not local and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.objects.add_parameters(node, of_method=held)
            elif isinstance(node, ast.ClassDef):
                self.layers |= _is_layer(node)
            elif isinstance(node, (ast.Name, ast.Attribute)):
                self.trains |= _TRAINS.search(dotted(node)[-1]) is not None
            inside = (
                gated | _options(node),
                layer or _is_layer(node),
                local or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)),
                held or isinstance(node, ast.ClassDef),
            )
            stack.extend((n, *inside) for n in reversed(list(ast.iter_child_nodes(node))))
        for node, gated, owned in nodes:
            for found in self._node(node):
                if found.said.kind == "half" and found.said.strength != "local":
                    self.of_half |= gated - {""}
                yield found, bool(gated), owned

    def _node(self, node: ast.AST) -> Iterator[Found]:
        if isinstance(node, ast.Call):
            if self.names.home(node.func)[0] not in _OTHERS:
                yield from self._call(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            yield from self._assign(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from options.signature(node)
            for decorator in node.decorator_list:
                yield from self._reference(decorator)
        elif isinstance(node, ast.ClassDef):
            yield from options.fields(node)
        elif isinstance(node, ast.Return) and node.value is not None:
            yield from self._reference(node.value)

    # calls

    def _call(self, node: ast.Call) -> Iterator[Found]:
        home = self.names.home(node.func)
        last = home[-1]
        if last == "partial" and node.args and self.names.home(node.args[0])[-1] == "autocast":
            inner = ast.Call(node.args[0], node.args[1:], node.keywords)
            yield from self._autocast(inner, node)
            return
        if _REGION.fullmatch(last):
            yield from self._autocast(node, node)
            return
        if isinstance(node.func, ast.IfExp):  # (AMPTrainer if cfg.amp else Trainer)(...)
            yield from self._reference(node.func)
        said = self._known(node, home)
        if home[-2:] == ["amp", "initialize"] and said is not None and said.strength == "flag":
            # O1 is mixed precision, O2 and O3 make the model half
            yield Found(_said("half", F16, optional=True), node, f"`{text(node)}`")
        if said is None and self.tensors and isinstance(node.func, ast.Attribute):
            said = self._cast(node, last)
        if said is not None:
            owner = f"{_CALLS[last][0]} " if last in _CALLS else ""
            yield Found(said, node, f"{owner}`{text(node)}`")
            return
        offers = list(options.option(node))
        yield from offers
        if last == "update" and node.args:
            yield from self._table(tuple(dotted(node.func)[:-1]), node.args[0])
        if not offers and last != "dict":  # a dictionary is read where it is assigned or passed
            for keyword in node.keywords:
                if keyword.arg is not None:
                    yield from self._keyword(keyword.arg, keyword.value, last)

    def _autocast(self, node: ast.Call, at: ast.Call) -> Iterator[Found]:
        """``at`` is the call to show: ``node``, or ``partial`` with its parts."""
        home = self.names.home(node.func)
        given = {k.arg: k.value for k in node.keywords}
        first = node.args[0] if node.args else None
        enabled = given.get("enabled")
        if enabled is None and ("cuda" in home or isinstance(literal(first), bool)):
            enabled = first  # torch.cuda.amp.autocast(enabled, dtype)
        if home[0] in _OTHERS or _false(enabled):
            return
        named = given.get("dtype") or (node.args[1] if len(node.args) > 1 else None)
        dtypes = self.names.dtypes(named)
        if dtypes == []:
            return  # float32: the region is there to be wide
        if named is None:
            wide = "cpu" in home or any(
                string(device) in ("cpu", "hpu", "xla")
                for device in (given.get("device_type"), first)
            )
            # that of an accelerator runs in what it was made with
            own = home[0] == "torch" or home[:-1] in ([], ["amp"])
            dtypes = [BF16] if wide else [F16] if own else []
        optional = enabled is not None and literal(enabled) is OPEN and not on_device(enabled)
        optional |= home[-1] != "autocast"  # a helper, which may decide otherwise
        yield Found(_said("autocast", *(dtypes or ()), optional=optional), at, f"`{text(at)}`")

    def _known(self, node: ast.Call, home: list[str]) -> Said | None:
        """Calls that mean half precision by their name."""
        last, outer = home[-1], home[-2] if len(home) > 1 else ""
        given = {k.arg: k.value for k in node.keywords}
        first = node.args[0] if node.args else None
        if last in _CALLS:
            return _said(*_CALLS[last][1:], local=last == "Fp16OptimizerHook")
        if last in _OFFERS:
            return _said("autocast", F16, local=True)
        if _SCALER.fullmatch(last) and not _false(given.get("enabled")):
            return _said("autocast", F16, optional=literal(given.get("enabled")) is OPEN)
        if outer == "amp" and last == "scale_loss":
            return _said("autocast", F16)
        if outer == "amp" and last == "initialize":  # Apex
            level = given.get("opt_level")
            if literal(level) is OPEN or level is None:
                return _said("autocast", F16, optional=level is not None)
            return judge(("opt_level",), literal(level))
        if last in ("set_default_dtype", "set_default_tensor_type"):
            return self._default_type(first)
        if last == "set_autocast_enabled" and node.args and literal(node.args[-1]) is True:
            return _said("autocast")
        if last in _TYPES:
            return _said("half", _TYPES[last], local=True)
        if _PLUGIN.fullmatch(last) and first is not None:
            return judge(("trainer", "precision"), literal(first), code=True)
        if last == "MixedPrecision" and home[0] == "fastai" and not node.args:
            return _said("autocast", F16)
        return None

    def _default_type(self, node: ast.AST | None) -> Said | None:
        found = self._type(node) if node is not None else []
        return _said("half", *found) if found else None

    def _type(self, node: ast.AST) -> list[str]:
        """Half dtypes of a dtype or of a type such as ``torch.cuda.HalfTensor``."""
        last = (string(node) or self.names.home(node)[-1]).rpartition(".")[2]
        return [_TYPES[last]] if last in _TYPES else self.names.dtypes(node) or []

    def _cast(self, node: ast.Call, name: str) -> Said | None:
        """``.half()``, ``.to(torch.float16)``."""
        assert isinstance(node.func, ast.Attribute)
        owner = modules.moved(node.func.value)
        named = modules.makes(owner) or _MODEL.search(dotted(owner)[-1].lower())
        local = not (named or id(node) in self._module_casts)
        if name in ("half", "bfloat16") and not node.args and not node.keywords:
            return _said("half", DTYPES[name], local=local)
        if name not in ("to", "type"):
            return None
        optional, found = False, list[str]()
        for argument in (*node.args, *(k.value for k in node.keywords if k.arg == "dtype")):
            arms = [argument.body, argument.orelse] if isinstance(argument, ast.IfExp) else []
            found += [dtype for arm in arms or [argument] for dtype in self._type(arm)]
            optional |= bool(arms) and not on_device(argument.test)  # type: ignore[attr-defined]
        return _said("half", *found, optional=optional, local=local) if found else None

    # settings

    def _keyword(self, name: str, value: ast.expr, callee: str) -> Iterator[Found]:
        key = normal(name)
        if key == "half" and _STORES.search(callee.lower()):
            return  # how weights lie in a file
        yield from self._table((callee, name), value)
        if not is_setting(key) or isinstance(value, ast.Dict):
            return
        if key.endswith("dtype"):
            words = string(value) is not None and key == "dtype"
            if callee in ("finfo", "iinfo", "custom_fwd") or (words and not _LOADER.match(callee)):
                return  # numpy and data frames spell dtypes as strings
        values = self.names.values(value)
        verdicts = [
            (judge((callee, name), found, code=True), found, sure) for found, sure in values
        ]
        always = all(said is not None for said, _, _ in verdicts)
        for said, found, sure in verdicts:
            if said is None:
                continue
            if isinstance(found, str) and found.startswith("amp_"):
                owner = "Composer's "
            else:
                owner = next((f"{own} " for known, own in _OWNERS if known.fullmatch(callee)), "")
            model = _LOADER.match(callee) or _MODEL.search(callee.lower())
            if key == "dtype" and not model:
                said = said._replace(strength="local")  # torch.zeros(n, dtype=torch.float16)
            elif not (sure or always):
                said = said._replace(strength="flag")
            yield Found(said, value, f"{owner}`{callee}({name}={text(value)})`")

    def _table(self, at: tuple[str, ...], node: ast.expr) -> Iterator[Found]:
        """A nested dictionary of settings, as of DeepSpeed, MMEngine or Lightning."""
        for entry, said in settings(self.names.entries(at, node), code=True):
            *_, last = entry.path
            shown = f"`{'.'.join(entry.path)}: {entry.value}`"
            if last in ("type", "_target_"):
                shown = f"`{last}={entry.value!r}`"
            elif last == "enabled" and entry.path[-2] in _DEEPSPEED:
                shown = f"DeepSpeed config: {'.'.join(entry.path[-2:])}"
            elif last == "dtype" and "factory" in entry.path[-2]:
                said = said._replace(strength="local")  # factory_kwargs: tensors that a part makes
            yield Found(said, ast.Pass(lineno=entry.row), shown)

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> Iterator[Found]:
        if node.value is None:
            return
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            keys = path(target)
            if not keys:
                continue
            yield from self._table(keys, node.value)
            key = normal(keys[-1])
            if self.names.table(node.value) is not None or (
                key.endswith("dtype") and _STATE.search(key) is None
            ):
                yield from self._dtype(keys, key, node.value)
            elif is_setting(key):
                yield from self._set(keys, key, node.value)
        yield from self._reference(node.value)

    def _dtype(self, keys: tuple[str, ...], key: str, value: ast.expr) -> Iterator[Found]:
        """``weight_dtype = torch.float16``: an offer, for it is used elsewhere."""
        region = keys[-1] in self.of_autocast or any(w in key for w in ("amp", "autocast", "mixed"))
        for dtype, _ in self.names.values(value):
            if isinstance(dtype, str) and dtype in DTYPES and dtype.startswith("torch."):
                said = _said("autocast" if region else "half", DTYPES[dtype], optional=True)
                yield Found(said, value, f"`{'.'.join(keys)} = {text(value)}`")

    def _set(self, keys: tuple[str, ...], key: str, value: ast.expr) -> Iterator[Found]:
        shown = f"`{'.'.join(keys)} = {text(value)}`"
        for found, sure in self.names.values(value):
            if found is OPEN or (isinstance(found, str) and found.lower() == key):
                continue  # AMP = "amp" is the name of a key
            said = judge(keys if len(keys) > 1 else ("args", *keys), found, code=True)
            if said is not None and keys == ("half",):
                said = said._replace(strength="local")  # of what it is passed to
            if said is not None:
                yield Found(said if sure else said._replace(strength="flag"), value, shown)
            elif keys[0] in _DEFAULTS and found is False:
                weak = offered(normal(keys[-2]) if key in ("enabled", "enable") else key)
                if weak is not None:
                    yield Found(weak, value, f"{shown}, the default")

    def _reference(self, node: ast.expr) -> Iterator[Found]:
        """``amp_autocast = torch.autocast``, ``AMPTrainer if cfg.amp else Trainer``."""
        arms = [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]
        optional = isinstance(node, ast.IfExp) and on_precision(node.test)
        for arm in arms:
            if not isinstance(arm, (ast.Name, ast.Attribute)):
                continue
            *outer, last = self.names.home(arm)
            if last == "autocast" and outer[:1] == ["torch"]:
                yield Found(_said("autocast", optional=optional), arm, f"`{text(arm)}`")
            elif last in _CALLS and last[0].isupper():
                owner, kind, dtype = _CALLS[last]
                said = _said(kind, dtype, optional=optional)
                yield Found(said, arm, f"{owner} `{text(arm)}`")
