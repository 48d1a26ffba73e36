"""How frameworks spell "in half precision" as a setting: a path of keys and a value.

The same keys appear as keyword arguments, attributes, dictionaries and command line options of
Python and in YAML, TOML and JSON, so that one reading of ``("fp16", "enabled"), True`` serves all.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

Kind = Literal["autocast", "half"]
"""Mixed precision (autocast, a loss scale), or tensors and models that are half throughout."""
Strength = Literal["on", "flag", "layer", "local"]
"""Switched on for whoever runs the code; offered by an option or a condition; autocast that a layer
opens around what it calls itself; half tensors are made at a place, which says nothing of the
others."""
STRENGTHS: tuple[Strength, ...] = ("on", "flag", "layer", "local")
"""Strongest first."""
F16, BF16 = "float16", "bfloat16"


class Open:
    """The value of a setting that the program computes."""

    def __repr__(self) -> str:
        return "..."


OPEN: Final = Open()
Value: TypeAlias = bool | int | float | str | Open | None


class Said(NamedTuple):
    """What a setting says."""

    kind: Kind
    dtypes: frozenset[str]
    strength: Strength = "on"


@dataclass(frozen=True)
class Statement:
    """A place that switches half precision on, or offers to."""

    kind: Kind
    strength: Strength
    dtypes: frozenset[str]
    spelling: str
    """For a reader: the framework, and how it is written."""
    row: int
    own: bool = False
    """Said by an object of itself, so of its file and of those beside it that this imports."""
    coined: bool = False
    """By a name of the project's making (``use_amp``), which no framework reads."""


class Entry(NamedTuple):
    """A leaf of nested settings: its keys from the outside in, value, and row in the file."""

    path: tuple[str, ...]
    value: Value
    row: int


DTYPES = {
    "float16": F16, "fp16": F16, "half": F16, "f16": F16, "torch.float16": F16, "torch.half": F16,
    "bfloat16": BF16, "bf16": BF16, "torch.bfloat16": BF16,
}  # fmt: skip
_MIXED = {
    "16": F16, "16-mixed": F16, "fp16": F16, "fp16-mixed": F16, "float16": F16, "amp": F16,
    "amp_fp16": F16, "amp_float16": F16, "mixed": F16, "mixed-16": F16, "mixed_fp16": F16,
    "mixed_float16": F16, "native": F16, "apex": F16, "transformer-engine-float16": F16,
    "bf16": BF16, "bf16-mixed": BF16, "bfloat16": BF16, "amp_bf16": BF16, "amp_bfloat16": BF16,
    "mixed_bf16": BF16, "mixed_bfloat16": BF16, "transformer-engine": BF16,
}  # fmt: skip
_PURE = {
    "16-true": F16, "fp16-true": F16, "half": F16, "pure_fp16": F16, "bf16-true": BF16,
    "pure_bf16": BF16,
}  # fmt: skip
_SWITCHES: dict[str, tuple[Kind, str]] = {
    "fp16": ("autocast", F16), "float16": ("autocast", F16), "amp": ("autocast", F16),
    "bf16": ("autocast", BF16), "bfloat16": ("autocast", BF16), "apex": ("autocast", F16),
    "mixed_precision": ("autocast", F16), "automatic_mixed_precision": ("autocast", F16),
    "auto_mixed_precision": ("autocast", F16), "autocast": ("autocast", F16),
    "grad_scaler": ("autocast", F16), "gradscaler": ("autocast", F16),
    "half": ("half", F16), "half_precision": ("half", F16), "fp16_full_eval": ("half", F16),
    "bf16_full_eval": ("half", BF16), "memory_efficient_fp16": ("half", F16),
    "memory_efficient_bf16": ("half", BF16), "pure_fp16": ("half", F16),
    "pure_bf16": ("half", BF16), "downcast_bf16": ("half", BF16),
}  # fmt: skip
_AMBIGUOUS = {"amp", "half", "autocast", "apex", "grad_scaler", "gradscaler", "float16", "bfloat16"}
"""An amplitude, a half of something, a dtype: only a Boolean makes these a switch."""
_AFFIXES = re.compile(
    r"(?:accelerate_|(?:use|enable|with|do|is|train|training|native|torch|cuda|run)_)*"
    rf"({'|'.join(sorted(_SWITCHES, key=len, reverse=True))})"
    r"(?:_(?:enabled?|run|training|train|type))?"
)
_PRECISION = re.compile(r"(?:trainer_|fabric_|lt_|training_|train_)*precision")
_DTYPE = re.compile(
    r"(?:(?:torch|model|params?|compute|weights?|bnb_4bit_compute|default|train|training|inference"
    r"|unet|amp|autocast|mixed_precision|fp16|half|low|lower|cast|cast_forward_inputs)_)*dtype"
)
_REGIONS = {"amp", "autocast", "mixed_precision"}
_DEEPSPEED = {"fp16", "bf16", "bfloat16"}
"""DeepSpeed's tables: where one is enabled, its engine makes the whole model half."""
_OF_AUTOCAST = re.compile(r"amp|autocast|mixed")
_TRAINING = re.compile(r"train|fabric|lightning|^(?:pl|args|opts?|conf|config|cfg|hparams|params)$")
_CLASSES = {
    "AmpOptimWrapper", "ApexOptimWrapper", "Fp16OptimizerHook",
    "GradientCumulativeFp16OptimizerHook", "MixedPrecisionPlugin", "NativeMixedPrecisionPlugin",
    "AMPTrainer", "GradScaler", "ShardedGradScaler", "NativeScaler", "autocast",
}  # fmt: skip
_OPT_LEVELS = {"opt_level", "amp_opt_level", "apex_opt_level", "apex_level"}
"""Not ``fp16_opt_level``, which needs ``fp16`` as well."""
_LEVELS: dict[str, Kind] = {"O1": "autocast", "O2": "half", "O3": "half"}
_NEGATIVE = re.compile(r"(?:no|not|disable|without)_?(?=amp|fp16|bf16|mixed|half|autocast)")


def normal(key: str) -> str:
    return key.lower().replace("-", "_")


@functools.lru_cache(4096)
def switch(key: str) -> str | None:
    """The switch that a normalised key names, without what projects put around it."""
    match = _AFFIXES.fullmatch(key)
    return match[1] if match else None


def is_coined(key: str) -> bool:
    """Whether a switch has a name that a project puts around one that frameworks know."""
    key = normal(key)
    return switch(key) not in (None, key)


@functools.lru_cache(4096)
def is_setting(key: str) -> bool:
    """Whether a normalised key may say something of the precision."""
    return (
        switch(key) is not None
        or _PRECISION.fullmatch(key) is not None
        or _DTYPE.fullmatch(key) is not None
        or key in {"enabled", "enable", "loss_scale", "type", "_target_", "class_path", "amp_mode"}
        or key in _OPT_LEVELS
    )


def names_dtype(key: str) -> bool:
    """Whether a key says which dtype something is made in, not how a model is run."""
    return _DTYPE.fullmatch(normal(key)) is not None


def judge(path: tuple[str, ...], value: Value, *, code: bool = False) -> Said | None:
    """What one setting says; None: nothing, or that half precision is off.

    ``code``: the setting is one of Python, where ``path`` may start with the name of a call and
    words such as ``amp`` have other meanings.
    """
    names = tuple(map(normal, path))
    key, parents = names[-1], names[:-1]
    parent = parents[-1] if parents else ""
    if parent in _DEEPSPEED and key in ("enabled", parent):
        engine = _switched(parent, value, strict=False)
        return engine._replace(kind="half") if engine else None
    if key in ("enabled", "enable"):
        inner = switch(parent)
        return _switched(inner, value, strict=False) if inner and parent != "half" else None
    if key == "loss_scale" or parent == "loss_scale":  # MMCV: fp16 = dict(loss_scale=512.)
        return _said("autocast", F16, "local") if "fp16" in parents else None
    if key in ("type", "_target_", "class_path"):
        known = value.rpartition(".")[2] if isinstance(value, str) else ""
        strength: Strength = "local" if known.endswith("Fp16OptimizerHook") else "on"
        return _said("autocast", F16, strength) if known in _CLASSES else None
    if key == "amp_mode":
        return _said("autocast", F16) if value in ("amp", "apex") else None
    if key in _OPT_LEVELS:
        level = _LEVELS.get(value) if isinstance(value, str) else None
        return _said(level, F16) if level else None
    if _DTYPE.fullmatch(key):
        return _dtype(key, parent, value)
    if _PRECISION.fullmatch(key):
        return _precision(value, not code if not parents else bool(_TRAINING.search(parent)))
    name = switch(key)
    said = _switched(name, value, strict=code and key == name) if name else None
    if said is not None and names[0] == "model" and any(map(str.isdigit, parents)):
        return said._replace(strength="local")  # of one part, as in attn_cfgs=[dict(fp16=True)]
    return said


def offered(key: str) -> Said | None:
    """What an option of this normalised name would switch on."""
    key = _NEGATIVE.sub("", key)
    name = switch(key)
    if name is None:
        return None
    kind, dtype = _SWITCHES[name]
    return Said(kind, frozenset({dtype}), "flag")


def settings(
    entries: Iterable[Entry], *, code: bool = False, weak: bool = False
) -> Iterator[tuple[Entry, Said]]:
    """What the leaves of one file or dictionary say, heeding ``enabled: false`` beside them.

    ``weak``: a dtype describes data as likely as it asks for a model of that type.
    """
    entries = list(entries)
    switches = {
        entry.path[:-1]: entry.value
        for entry in entries
        if normal(entry.path[-1]) in ("enabled", "enable")
    }
    off = {path for path, value in switches.items() if _is_off(value)}
    for entry in entries:
        said = judge(entry.path, entry.value, code=code)
        outer = [entry.path[:length] for length in range(1, len(entry.path))]
        if said is None or not off.isdisjoint(outer):
            continue
        if "loss_scale" in entry.path and not switches.keys().isdisjoint(outer):
            continue  # DeepSpeed's, where "enabled" decides
        if weak and names_dtype(entry.path[-1]):
            said = said._replace(strength="flag")
        yield entry, said


def _is_off(value: Value) -> bool:
    if isinstance(value, str):
        return value.lower() in ("false", "no", "off", "n", "0", "none", "null")
    return value in (False, None)


def _said(kind: Kind, dtype: str, strength: Strength = "on") -> Said:
    return Said(kind, frozenset({dtype}), strength)


def _switched(name: str, value: Value, *, strict: bool) -> Said | None:
    kind, dtype = _SWITCHES[name]
    if isinstance(value, Open):
        if name in _AMBIGUOUS and strict:
            return None
        return Said(kind, frozenset({dtype} if "16" in name else ()), "flag")
    if value is True:
        return _said(kind, dtype)
    if isinstance(value, (bool, float)) or value is None or (strict and isinstance(value, int)):
        return None
    text = str(value).strip()
    if text in _LEVELS:
        return _said(_LEVELS[text], F16)
    text = text.lower()
    if text in ("true", "yes", "on", "y", "t", "1", "dynamic"):
        return _said(kind, dtype)
    if text == "auto":
        return _said(kind, dtype, "flag")
    if "16" in name:  # {"fp16": "float16"} is a table of names
        return _said(kind, dtype) if text in ("amp", "apex", "native") else None
    return _precision(text, True) if kind == "autocast" else None


def _precision(value: Value, plain: bool) -> Said | None:
    """``plain``: whether a bare 16 is a precision of training rather than a count of digits."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    text = str(value).strip().lower().removeprefix("precision.")
    if text == "16" and not plain:
        return None
    if text in _PURE:
        return _said("half", _PURE[text])
    return _said("autocast", _MIXED[text]) if text in _MIXED else None


def _dtype(key: str, parent: str, value: Value) -> Said | None:
    dtype = DTYPES.get(value.strip().lower()) if isinstance(value, str) else None
    if dtype is None:
        return None
    if _OF_AUTOCAST.search(key) or switch(parent) in _REGIONS:
        return _said("autocast", dtype, "flag")  # it chooses the dtype, and switches nothing on
    return _said("half", dtype)
