"""Which files are worth parsing: words that are quick to find, and what their lines look like."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from precision_lint.project.spellings import Kind

_NOT_CODE = (b"#", b">>>", b"...", b"-", b"|", b"*")
_HINTS: dict[Kind, tuple[tuple[bytes, ...], re.Pattern[bytes]]] = {
    # words that are quick to find, and what a line with one looks like if it says something
    "autocast": (
        (
            b"autocast", b"Scaler", b"grad_scaler", b"force_fp32", b"amp", b"AMP", b"Amp", b"fp16",
            b"FP16", b"Fp16", b"bf16", b"BF16", b"apex", b"recision", b"PRECISION", b"opt_level",
            b"opt-level", b"OPT_LEVEL",
        ),
        re.compile(
            rb"autocast\s*\((?!.*enabled\s*=\s*False)"
            rb"|(?:[=(,]|return|import)\s*[\w.]*\bautocast\s*(?:[,)]|$|if|as)"
            rb"|(?:Grad|Native|Apex)Scaler\w*\(|\bamp\.(?:initialize|scale_loss)"
            rb"|(?:Amp|Apex)OptimWrapper|Fp16OptimizerHook|AMPTrainer|auto_fp16|wrap_fp16_m"
            rb"|force_fp32"
            rb"|\.to_(?:native_|non_native_)?(?:fp|bf)16\(|_step_a(?:mp|pex)\b"
            rb"|Precision(?:Plugin)?\(|set_autocast_enabled"
            # a setting with a value
            rb"|(?<![A-Za-z])(?i:[bf]p?f?16|amp|apex|mixed_precision|autocast|grad_?scaler"
            rb"|opt_level)(?![a-z])\w*[\"']?\]?\s*(?::[^=]+)?"
            rb"(?:=(?!=)(?!\s*(?:None|[\w.]+\()[,)\s])|:\s*[\"'{T1])"
            rb"|(?i:precision)[\"']?\]?\s*(?::[^=]+)?[=:]\s*[\"']?"
            rb"(?:16|[bf]p?f?16|amp|mixed|transf)"
            rb"|AMP\.ENABLED|AMP_[BF]|amp\.enabled\s*="
            # an option of the command line
            rb"|[\"']--[\w.-]*(?<![a-z])(?:amp|fp16|bf16|precision|apex|opt.level)"
            rb"|DEFINE_\w+\(\s*[\"']\w*(?:amp|fp16|bf16|precision)"
        ),
    ),
    "half": (
        (
            b".half()", b"bfloat16", b"float16", b"torch.half", b"half=", b"half =", b"--half",
            b'half"', b"HalfTensor", b"BFloat16Tensor", b"full_eval", b"16-true", b"fp16", b"bf16",
            b"network_to_half", b"FP16_Optimizer", b"FP16Optimizer", b"Float16Module",
            b"ModelToHalf", b"opt_level", b"opt-level", b"OPT_LEVEL",
        ),
        re.compile(
            rb"\.(?:half|bfloat16)\(\)|HalfTensor|BFloat16Tensor|set_default_dtype"
            rb"|dtype[\"']?\]?\s*(?::[^=]+)?[=:](?!=)[^,]*(?:float16|fp16|bf16|half\b)"
            rb"|\.(?:to|type)\([^()]*(?:float16|\.half\b|HalfT)"
            rb"|^\s*torch\.(?:half|b?float16)(?:,?\s*\)?$|\s+if\b)"
            rb"|full_eval|\bhalf[\"']?\]?\s*(?::[^=]+)?=(?!=)\s*T|[\"']--half|16-true|downcast_bf16"
            rb"|network_to_half|FP16_?Optimizer|Float16Module|ModelToHalf|pure_[bf]|opt_level"
            rb"|memory_efficient_[bf]|[bf]p?f?16[\"']?\s*[:=]\s*(?:\{|dict)"
        ),
    ),
}  # fmt: skip
_KEYS = (
    b"fp16", b"FP16", b"float16", b"FLOAT16", b"bf16", b"BF16", b"amp", b"AMP", b"apex", b"APEX",
    b"recision", b"PRECISION", b"half", b"HALF", b"autocast", b"caler", b"dtype", b"DTYPE",
    b"opt_level", b"OPT_LEVEL",
)  # fmt: skip
_VALUE = (
    rb"(?i:\w*[\"']?[ \t]*(?:\]?[ \t\r]*(?:\n|#|\Z)|[:=][ \t\r]*(?:\n|\Z|[#{&!]|[\"'\[]?\s*"
    rb"(?:true|yes|on\b|auto|y\b|1|[bf]p?f?(?:loat)?16|torch\.|half|amp|o[123]\b|mixed|pure|apex"
    rb"|native|dynamic|transformer))))"
)
"""What follows the word in a key: a value that may switch on, or a table."""
_SETTINGS = {
    word: re.compile(
        word + (rb"(?<![A-Za-z]%b)" % word if len(word) < 5 and word.isalpha() else b"") + _VALUE
    )
    for word in _KEYS
}
"""Short words have no letter before them: sample, stamp, behalf."""
_CLASSES = (b"Amp", b"Apex", b"AMP", b"Fp16", b"Precision", b"Scaler", b"autocast")
_CLASS = re.compile(rb"(?:type|_target_|class_path)[\"']?\s*[:=]\s*[\"']?[\w.]*\Z")
"""What stands before the word in the name of a class."""
_LONGEST = 4_096
"""Bytes of a line that are looked at."""


def says(kind: Kind, data: bytes) -> bool:
    """Whether a line of code, rather than of a comment or a doctest, may say something."""
    words, pattern = _HINTS[kind]
    return any(
        pattern.search(line) and not line.lstrip().startswith(_NOT_CODE) and b"``" not in line
        for line in _lines(words, data)
    )


def spoken(data: bytes) -> dict[int, bytes]:
    """The lines of code that have one of the words, by their number from 0."""
    words = {word for some, _ in _HINTS.values() for word in some}
    starts = sorted({data.rfind(b"\n", 0, at) + 1 for word in words for at in _places(word, data)})
    found, row, counted = {}, 0, 0
    for start in starts:
        row += data.count(b"\n", counted, start)
        counted = start
        end = data.find(b"\n", start)
        found[row] = data[start : end if end >= 0 else len(data)]
    return found


def configures(data: bytes) -> bool:
    """Whether a key and value of a configuration file may say something."""
    if any(word in data and pattern.search(data) for word, pattern in _SETTINGS.items()):
        return True
    return any(
        _CLASS.search(data, max(at - 100, 0), at) for word in _CLASSES for at in _places(word, data)
    )


def _places(word: bytes, data: bytes) -> Iterator[int]:
    at = data.find(word)
    while at >= 0:
        yield at
        at = data.find(word, at + len(word))


def _lines(words: Iterable[bytes], data: bytes) -> Iterator[bytes]:
    """The lines with one of the words; a line with several comes several times."""
    for word in words:
        at = data.find(word)
        while at >= 0:
            end = data.find(b"\n", at)
            end = end if end >= 0 else len(data)
            start = data.rfind(b"\n", 0, at) + 1
            yield data[start : min(end, start + _LONGEST)].rstrip()
            at = data.find(word, end)
