"""Does this project run half precision, and where does it say so?

The answer is evidence with a place, never a guess.  It is read off syntax trees (``code``) and
configuration files (``configs``); a regular expression over the bytes keeps most files from being
parsed, and so does evidence that cannot get better.
"""

from __future__ import annotations

import re
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from precision_lint.api import Evidence, Position
from precision_lint.project import code, configs, hints, requirements
from precision_lint.project.requirements import Release
from precision_lint.project.spellings import BF16, F16, STRENGTHS, Kind, Statement, Strength
from precision_lint.source import Failure, decode, parse

_FOREIGN = re.compile(rb"\b(?:tensorflow|jax|flax|keras|paddle|mxnet|mindspore|oneflow|tinygrad)\b")
_TESTS = {"test", "tests"}
_ASIDE = {
    "example", "examples", "script", "scripts", "doc", "docs", "demo", "demos", "tutorial",
    "tutorials", "notebook", "notebooks", "benchmark", "benchmarks", "third_party", "thirdparty",
    "vendor", "external", "contrib", "template", "templates", "research_projects", "sandbox",
}  # fmt: skip
"""Directories beside the code of a project proper."""
MAX_BYTES = 2_000_000
MAX_DATA = 300
"""So many configuration files of one kind in one directory are data."""
_VERBS = {"on": "uses", "flag": "offers", "local": "makes"}
_NOUNS = {"autocast": "mixed precision", "half": "half precision tensors"}

Rank = tuple[int, int, int]
"""Strength, place, dtype of evidence; less is better."""
_BEST: Rank = (0, 0, 0)
_NONE: Rank = (9, 9, 9)


@dataclass(frozen=True)
class Project:
    """What is known of the project around a file.

    autocast, half: where mixed precision (autocast, GradScaler, a framework's setting) and pure
    half precision (``.half()``, ``dtype=torch.float16``) are switched on or offered; None: nowhere.
    dtypes: the half dtypes that the places found name, or imply (CUDA's autocast: float16).
    """

    autocast: Evidence | None = None
    half: Evidence | None = None
    dtypes: frozenset[str] = frozenset()
    half_dtypes: frozenset[str] = frozenset()
    """Those of ``dtypes`` that pure half precision names."""
    autocast_rank: Rank = _NONE
    half_rank: Rank = _NONE
    """How good the evidence is, for the next file to be compared with."""
    torch: Release | None = None
    """The least release of torch that the project's metadata, or its settings, allow."""

    def has_torch(self, *release: int) -> bool:
        """Whether every torch that the project allows is at least this release."""
        return self.torch is not None and (*self.torch, 0, 0) >= release

    @classmethod
    def scan(cls, root: Path, files: Iterable[Path]) -> Project:
        """Read the Python and configuration files of a project, in the order of their paths.

        Unreadable and huge files are passed over, and so are tests and collections of data.
        """
        project = cls(torch=requirements.minimum(root))
        members = sorted(set(files))
        crowd = Counter((path.parent, path.suffix) for path in members if path.suffix != ".py")
        for path in members:
            relative = path.relative_to(root) if path.is_relative_to(root) else path
            is_config = configs.is_config(path.name)
            if _TESTS & set(relative.parts[:-1]) or not (is_config or path.suffix == ".py"):
                continue
            if crowd[path.parent, path.suffix] > MAX_DATA or configs.is_data(path.name):
                continue
            try:
                status = path.stat()
                limit = configs.MAX_BYTES if is_config else MAX_BYTES
                if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                    continue  # reading a pipe would wait for ever
                data = path.read_bytes()
            except OSError:
                continue
            if path.name.startswith("test_") and (b"pytest" in data or b"unittest" in data):
                continue
            project = project._with(_shown(path), relative, data)
        return project

    def with_file(self, filename: str, data: bytes) -> Project:
        """This project with the evidence that one more file's bytes give."""
        return self._with(filename, PurePath(filename), data)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return tuple(e for e in (self.autocast, self.half) if e is not None)

    @property
    def autocast_strength(self) -> Strength | None:
        """How strong the evidence for mixed precision is; None: there is none."""
        return _strength(self.autocast_rank)

    @property
    def half_strength(self) -> Strength | None:
        """The same for pure half precision."""
        return _strength(self.half_rank)

    def _with(self, filename: str, place: PurePath, data: bytes) -> Project:
        if configs.is_config(filename):
            said = configs.statements(filename, data)
        elif self._may_say(data):
            said = _read(filename, data)
        else:
            return self
        aside = place.name.startswith("test_") or not _ASIDE.isdisjoint(
            part.lower() for part in place.parts[:-1]
        )
        project = self
        for statement in said:
            project = project._with_statement(statement, filename, aside)
        return project

    def _may_say(self, data: bytes) -> bool:
        """Whether a Python file may say more than is known."""
        if b"torch" not in data and _FOREIGN.search(data):
            return False
        kinds: tuple[Kind, ...] = ("autocast", "half")
        return any(not self._complete(kind) and hints.says(kind, data) for kind in kinds)

    def _complete(self, kind: Kind) -> bool:
        rank, dtypes = (
            (self.autocast_rank, self.dtypes)
            if kind == "autocast"
            else (self.half_rank, self.half_dtypes)
        )
        return rank == _BEST and len(dtypes) == 2

    def _with_statement(self, said: Statement, filename: str, aside: bool) -> Project:
        dtype = 0 if F16 in said.dtypes else 1 if BF16 not in said.dtypes else 2
        rank = (STRENGTHS.index(said.strength), int(aside), dtype)
        known = self.autocast_rank if said.kind == "autocast" else self.half_rank
        project = replace(self, dtypes=self.dtypes | said.dtypes)
        if said.kind == "half":
            project = replace(project, half_dtypes=self.half_dtypes | said.dtypes)
        if rank >= known:
            return project
        text = f"the project {_VERBS[said.strength]} {_NOUNS[said.kind]}: {said.spelling}"
        evidence = Evidence(text, Position(said.row, 1), None, filename)
        if said.kind == "autocast":
            return replace(project, autocast=evidence, autocast_rank=rank)
        return replace(project, half=evidence, half_rank=rank)


def _strength(rank: Rank) -> Strength | None:
    return None if rank == _NONE else STRENGTHS[rank[0]]


def _read(filename: str, data: bytes) -> list[Statement]:
    source = decode(data, filename)
    tree = source if isinstance(source, Failure) else parse(source)
    if isinstance(tree, Failure):
        return []
    try:
        return code.statements(tree, tensors=b"torch" in data)
    except RecursionError:
        return []


def _shown(path: Path) -> str:
    """A path as a reader of a report wants it: relative to where the tool runs, if it can be."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
