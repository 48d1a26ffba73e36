"""Does this project run half precision, and where does it say so?

One pass of regular expressions over the bytes of the project's Python files.  The answer is
evidence with a place, never a guess: the first statement of each kind is kept.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from precision_lint.api import Evidence, Position

SPELLINGS: tuple[tuple[str, str], ...] = (
    # what it shows, regular expression; the first group, if any, names the dtype
    ("autocast", r"\bautocast\s*\([^#\n]*\b(bfloat16|float16|half)\b"),
    ("autocast", r"(?:with|@)[^#\n]*\bautocast\s*\("),
    ("autocast", r"\bpartial\(\s*(?:torch\.)?(?:amp\.|cuda\.amp\.)?autocast\b"),
    ("autocast", r"\b(?:Sharded)?GradScaler\s*\("),
    ("autocast", r"\bprecision\s*=\s*[\"']?(16|bf16)(?:-mixed)?[\"']?\s*[,)\n]"),
    ("autocast", r"\bmixed_precision\s*=\s*[\"'](fp16|bf16)[\"']"),
    ("autocast", r"\b(fp16|bf16)\s*=\s*True\b"),
    ("autocast", r"\bAmpOptimWrapper\b|\bFp16OptimizerHook\b|@auto_fp16\b|\bAMPTrainer\b"),
    (
        "autocast",
        r"\bprecision\s*=\s*[\"']amp_(fp16|bf16)[\"']|\.to_fp16\(\)|\bamp_mode\s*=\s*[\"']amp",
    ),
    ("half", r"[\w)\]]\.(half|bfloat16)\(\)"),
    ("half", r"\bprecision\s*=\s*[\"'](16|bf16)-true[\"']|\b(?:fp|bf)16_full_eval\s*=\s*True"),
    ("half", r"\b(?:torch_)?dtype\s*=\s*torch\.(float16|half|bfloat16)\b"),
    ("half", r"\.to\([^#\n]*\btorch\.(float16|half|bfloat16)\b"),
)
_DTYPES = {
    b"float16": "float16", b"half": "float16", b"fp16": "float16", b"16": "float16",
    b"bfloat16": "bfloat16", b"bf16": "bfloat16",
}  # fmt: skip
_HINT = re.compile(
    rb"autocast|GradScaler|half|float16|fp16|bf16|precision|AmpOptim|AMPTrainer|amp_mode"
)
_PATTERNS = tuple((shows, re.compile(text.encode())) for shows, text in SPELLINGS)
MAX_BYTES = 2_000_000


@dataclass(frozen=True)
class Project:
    """What is known of the project around a file.

    autocast, half: where mixed precision (autocast, GradScaler, a framework's setting) and pure
    half precision (``.half()``, ``dtype=torch.float16``) are switched on; None: nowhere.
    dtypes: the half dtypes that those places name, or imply (CUDA's autocast: float16).
    """

    autocast: Evidence | None = None
    half: Evidence | None = None
    dtypes: frozenset[str] = frozenset()
    half_dtypes: frozenset[str] = frozenset()
    """Those of ``dtypes`` that pure half precision names."""

    @classmethod
    def scan(cls, root: Path, files: Iterable[Path]) -> Project:
        """Read the Python files of a project; unreadable ones are passed over."""
        project = cls()
        for path in files:
            relative = path.relative_to(root) if path.is_relative_to(root) else path
            if path.suffix != ".py" or {"test", "tests"} & set(relative.parts[:-1]):
                continue
            try:
                status = path.stat()
                if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                    continue  # reading a pipe would wait for ever
                data = path.read_bytes()
            except OSError:
                continue
            project = project.with_file(_shown(path), data)
        return project

    def with_file(self, filename: str, data: bytes) -> Project:
        """This project with the evidence that one more file's bytes give."""
        if b"torch" not in data or not _HINT.search(data):
            return self
        found = {"autocast": self.autocast, "half": self.half}
        dtypes, half_dtypes = set(self.dtypes), set(self.half_dtypes)
        for shows, pattern in _PATTERNS:
            match = next((m for m in pattern.finditer(data) if _says(shows, data, m)), None)
            if match is None:
                continue
            names = [group for group in match.groups() if group]
            dtype = _DTYPES.get(names[0]) if names else None
            if dtype is None and shows == "autocast":
                dtype = _implied(_line(data, match))
            named = half_dtypes if shows == "half" else dtypes
            first = dtype == "float16" and dtype not in named  # it says more than bfloat16
            if dtype:
                dtypes.add(dtype)
            if dtype and shows == "half":
                half_dtypes.add(dtype)
            if found[shows] is None or first:
                row = data.count(b"\n", 0, match.end()) + 1
                text = _line(data, match).strip().decode("utf8", "replace")
                what = "mixed precision" if shows == "autocast" else "half precision tensors"
                found[shows] = Evidence(
                    f"the project uses {what}: `{text[:80]}`", Position(row, 1), None, filename
                )
        return Project(found["autocast"], found["half"], frozenset(dtypes), frozenset(half_dtypes))

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return tuple(e for e in (self.autocast, self.half) if e is not None)


def _shown(path: Path) -> str:
    """A path as a reader of a report wants it: relative to where the tool runs, if it can be."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _line(data: bytes, match: re.Match[bytes]) -> bytes:
    """The line in which a match ends."""
    end = data.find(b"\n", match.end() - 1)
    return data[data.rfind(b"\n", 0, match.end() - 1) + 1 : end if end >= 0 else None]


def _implied(line: bytes) -> str:
    """The dtype of a region whose line names none in so many words: the device's default."""
    wide = re.search(rb"bfloat16|bf16|\bcpu\b|\bhpu\b|\bxla\b", line)
    return "bfloat16" if wide and not re.search(rb"\bfloat16|fp16", line) else "float16"


def _says(shows: str, data: bytes, match: re.Match[bytes]) -> bool:
    """Whether a match is code, and not a region's dtype taken for a tensor's."""
    line = _line(data, match)
    if line.lstrip().startswith((b"#", b">>>")) or b"`" in line:
        return False  # a comment, or documentation
    if b"print" in line:
        return False  # digits to print
    return b"autocast" not in line if shows == "half" else b"enabled=False" not in line
