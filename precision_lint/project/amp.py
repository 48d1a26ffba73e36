"""Does this project run half precision, and where does it say so?

The answer is evidence with a place, never a guess.  It is read off syntax trees (``code``) and
configuration files (``configs``); a regular expression over the bytes keeps most files from being
parsed, and so does evidence that cannot get better.

Evidence speaks of the code around it: of the directory above its own, which is the package that a
training script or a helper belongs to, and an example also of the packages that it imports.  In a
repository of many projects, one that runs half precision says nothing of the others, and what an
object makes half no more than of its file and of those beside it that this imports.  A program
hears also what its project's packages say that it imports and is no part of.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path, PurePath

from precision_lint import notebook, progress
from precision_lint.api import Evidence, Position
from precision_lint.cache import Cache, digest
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
_USERS = {
    "example", "examples", "doc", "docs", "demo", "demos", "tutorial", "tutorials", "notebook",
    "notebooks", "third_party", "thirdparty", "vendor", "external", "contrib", "template",
    "templates", "research_projects", "sandbox", "projects",
}  # fmt: skip
"""Directories of what uses a project, or stands beside it."""
_ENDS = _USERS | {"data", "dataset", "datasets"}
"""Directories of things that are independent of each other: what one of them does ends there."""
_SETTINGS = {"config", "configs", "conf", "confs", "cfg", "cfgs", "recipes", "hparams"}
"""Directories of settings for the code beside them."""
_RUNS = re.compile(
    r"(?:^|_)(?:(?:pre)?train|tool|script|run|launch|engine|exp|apps?$|main|cli$)|^src$"
)
"""Directories of programs."""
_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
_RELATIVE = re.compile(rb"^[ \t]*from[ \t]+\.", re.MULTILINE)
_PROGRAM = re.compile(rb"^(?:for|with|while|if __name__)\b", re.MULTILINE)
"""Code of a module that runs when the file does, other than definitions."""
_MODULE = re.compile(rb"^class \w+\([^)]*Module\b", re.MULTILINE)
MAX_BYTES = 2_000_000
MAX_DATA = 300
"""So many configuration files of one kind in one directory are data."""
MANY = 40
"""So many files of Python in one directory are a collection, as of models."""
_VERBS = {"on": "uses", "flag": "offers", "layer": "uses", "local": "makes"}
_NOUNS = {"autocast": "mixed precision", "half": "half precision tensors"}

Area = tuple[str, ...]
"""A directory below the root of a project, by its parts."""
Reader = Callable[[str, bytes], list[Statement]]
"""What a file of a name and contents says."""
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
    """The least release of torch that the project allows, where that is known."""
    pinned: Release | None = None
    """The newest release of torch that the project pins exactly; None: it allows others."""

    def has_torch(self, *release: int) -> bool:
        """Whether every torch that the project allows is at least this release."""
        return self.torch is not None and (*self.torch, 0, 0) >= release

    def with_file(self, filename: str, data: bytes) -> Project:
        """This project with the evidence that one more file's bytes give."""
        said = statements(filename, data) if self._may_gain(filename, data) else ()
        return self._with_statements(said, filename, PurePath(filename))

    def __or__(self, other: Project) -> Project:
        """The better evidence of two, where both speak of the same code."""
        project = replace(
            self,
            dtypes=self.dtypes | other.dtypes,
            half_dtypes=self.half_dtypes | other.half_dtypes,
        )
        if other.autocast_rank < self.autocast_rank:
            rank = other.autocast_rank
            project = replace(project, autocast=other.autocast, autocast_rank=rank)
        if other.half_rank < self.half_rank:
            project = replace(project, half=other.half, half_rank=other.half_rank)
        return project

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return tuple(e for e in (self.autocast, self.half) if e is not None)

    @property
    def half_instead(self) -> bool:
        """Whether models are half wherever autocast is chosen, as by the levels of apex's amp."""
        places = [(e.filename, e.start) for e in self.evidence]
        return len(places) == 2 and places[0] == places[1]

    @property
    def mixed(self) -> Evidence | None:
        """Where mixed precision is on for more than functions that say so themselves."""
        return None if self.autocast_strength == "local" else self.autocast

    @property
    def ambient(self) -> Evidence | None:
        """Where mixed precision is on around whole models, other than by layers of their own."""
        return None if self.autocast_strength in ("layer", "local") else self.autocast

    @property
    def autocast_strength(self) -> Strength | None:
        """How strong the evidence for mixed precision is; None: there is none."""
        return _strength(self.autocast_rank)

    @property
    def half_strength(self) -> Strength | None:
        """The same for pure half precision."""
        return _strength(self.half_rank)

    def _with_statements(
        self, said: Iterable[Statement], filename: str, place: PurePath
    ) -> Project:
        aside = place.name.startswith("test_") or not _ASIDE.isdisjoint(
            part.lower() for part in place.parts[:-1]
        )
        project = self
        for statement in said:
            project = project._with_statement(statement, filename, aside)
        return project

    def _may_gain(self, filename: str, data: bytes) -> bool:
        """Whether a file may say more than is known."""
        if configs.is_config(filename):
            return True
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


@dataclass(frozen=True)
class Survey:
    """What all files of a project say, by the directories that they speak of."""

    root: Path
    areas: Mapping[Area, Project] = field(default_factory=dict)
    torch: Release | None = None
    """The least release of torch that the project's metadata, or its settings, allow."""
    pinned: Release | None = None
    """The newest that the metadata pin exactly."""

    @classmethod
    def scan(cls, root: Path, files: Iterable[Path], cache: Cache | None = None) -> Survey:
        """Read the Python and configuration files of a project, those of the root first.

        Unreadable and huge files are passed over, and so are tests and collections of data.
        What a file of the same contents said before comes from the cache.
        """
        new: dict[bytes, list[Statement]] = {}

        def read(filename: str, data: bytes) -> list[Statement]:
            kind = PurePath(filename).name.encode() if configs.is_config(filename) else b"py"
            key = digest(b"statements", kind, data)
            known = cache.get([key]).get(key) if cache else None
            if isinstance(known, list) and all(isinstance(said, Statement) for said in known):
                return known
            new[key] = statements(filename, data)
            return new[key]

        members = sorted(set(files), key=lambda path: (len(path.parts), path))
        crowd = Counter((path.parent, path.suffix) for path in members if path.suffix != ".py")
        survey = cls(root, torch=requirements.minimum(root), pinned=requirements.newest(root))
        progress.begin("Looking around", len(members))
        for path in members:
            progress.step()
            is_config = configs.is_config(path.name)
            if not survey.asks(path):
                continue
            if crowd[path.parent, path.suffix] > MAX_DATA or configs.is_data(path.name):
                continue
            try:
                status = path.stat()
                limit = configs.MAX_BYTES if is_config else MAX_BYTES
                if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                    continue  # reading a pipe would wait for ever
                data = notebook.python(path.name, path.read_bytes())
            except OSError:
                continue
            if not survey.asks(path, data):
                continue
            survey = survey._with_file(path, _shown(path), data, read)
        if cache:
            cache.put(new)
        return survey

    def asks(self, path: Path, data: bytes = b"") -> bool:
        """Whether a file of this name, and with these bytes, counts: tests do not."""
        is_code = path.suffix in (".py", notebook.SUFFIX)
        if _TESTS & set(self._relative(path).parts[:-1]):
            return False
        if path.name.startswith("test_") and (b"pytest" in data or b"unittest" in data):
            return False
        return is_code or configs.is_config(path.name)

    def with_file(
        self, path: Path, filename: str, data: bytes, read: Reader | None = None
    ) -> Survey:
        """This survey with what the bytes of one more file say, which need not be saved yet.

        ``read``: how to find out what they say, instead of reading them.
        """
        return self._with_file(path, filename, data, read or statements)

    def _with_file(self, path: Path, filename: str, data: bytes, read: Reader) -> Survey:
        place = self._relative(path)
        if not _around(self.areas, _area(place))._may_gain(filename, data):
            return self
        said = read(filename, data)
        if not said:
            return self
        areas = dict(self.areas)
        own, around = _files(place, self.root, data), _areas(place, self.root, data)
        half = any(one.kind == "half" for one in said)
        one_of_many = half and _is_one_of_many(place, self.root, data)
        for area in own | around:
            heard = [
                one
                for one in said
                if area in (own if one.own or (one_of_many and one.kind == "half") else around)
            ]
            if heard:
                areas[area] = areas.get(area, Project())._with_statements(heard, filename, place)
        return replace(self, areas=areas)

    def around(self, path: Path, text: str = "") -> Project:
        """What is known of the project around an absolute path with this text."""
        place = self._relative(path)
        home = place.parts[:-1]
        found = _around(self.areas, place.parts)
        homes = {(), ("src",)} | (set() if _names_package(self.root, home, text) else {home})
        packages = [area for area in self.areas if area and area[:-1] in homes]
        if any(f"{area[-1]}." in text or f" {area[-1]}" in text for area in packages):
            names = _imported(text)
            for area in sorted(area for area in packages if area[-1] in names):
                found |= self.areas[area]
        return replace(found, torch=self.torch, pinned=self.pinned)

    def _relative(self, path: Path) -> PurePath:
        return path.relative_to(self.root) if path.is_relative_to(self.root) else path


def _around(areas: Mapping[Area, Project], place: Area) -> Project:
    """What the areas around a file or directory say of it; of equals, the nearest."""
    project = Project()
    for length in reversed(range(len(place) + 1)):
        area = areas.get(place[:length])
        project = project | area if area is not None else project
    return project


def _area(place: PurePath) -> Area:
    """The directory that the statements of a file speak of."""
    parts = place.parts[:-1]
    end = max(len(parts) - 1, 0)
    for i, part in enumerate(parts):
        if part.lower() in _ENDS:
            end = max(end, min(i + 2, len(parts)))
        elif part.lower() in _SETTINGS:
            return parts[:i]
    return parts[:end]


def _of_its_own(place: PurePath, root: Path, data: bytes) -> bool:
    """Whether a program in a directory of the root imports modules of that directory only, or none
    of the project at all, so that the others of the project are none of its."""
    if len(place.parts) != 2 or (root / place.parts[0] / "__init__.py").is_file():
        return False
    home = root / place.parts[0]
    names = set(_IMPORT.findall(data.decode("utf8", "replace"))) - {place.parts[0]}
    own = {name for name in names if _is_module(home / name)}
    around = (root, root / "src")
    if any(_is_module(d / n) for n in names - own for d in around):
        return False
    if own or not _PROGRAM.search(data) or _RELATIVE.search(data) or b"sys.path" in data:
        return bool(own)
    return not any(_is_module(d / n) for d in root.iterdir() if d.is_dir() for n in names)


def _of_a_part(place: PurePath, root: Path) -> bool:
    """Whether settings stand among the modules of a directory, rather than in one of settings."""
    parts = place.parts[:-1]
    if not parts or not _SETTINGS.isdisjoint(part.lower() for part in parts):
        return False
    if _RUNS.search(parts[-1].lower()):
        return False  # it runs what lies elsewhere
    return any(root.joinpath(*parts).glob("*.py"))


def _is_one_of_many(place: PurePath, root: Path, data: bytes) -> bool:
    """Whether a file of modules is one of a collection, of which it makes no other half."""
    if _MODULE.search(data) is None:
        return False
    home = root.joinpath(*place.parts[:-1])
    with contextlib.suppress(OSError), os.scandir(home) as entries:  # one that is not saved yet
        files = (entry for entry in entries if entry.name.endswith(".py"))
        return sum(1 for _ in islice(files, MANY + 1)) > MANY
    return False


def _files(place: PurePath, root: Path, data: bytes) -> set[Area]:
    """What an object of a file speaks of: that file, and those beside it whose parts it imports."""
    home, text = place.parts[:-1], data.decode("utf8", "replace")
    found = {place.parts}
    package = re.escape(".".join(home[home[:1] == ("src",) :]))
    alone = "" if _names_package(root, home, text) else "?"
    beside = re.compile(
        rf"^[ \t]*from[ \t]+(?:\.|{package})[ \t]+import[ \t]+\(?([\w, \n]+)"
        rf"|^[ \t]*from[ \t]+(?:\.|{package}\.){alone}([A-Za-z_]\w*)(?:\.\w+)*[ \t]+import\b",
        re.MULTILINE,
    )
    for names, module in beside.findall(text):
        for name in (module, *re.findall(r"\w+", names)):
            if name and root.joinpath(*home, f"{name}.py").is_file():
                found.add((*home, f"{name}.py"))
            elif name and root.joinpath(*home, name).is_dir():
                found.add((*home, name))
    return found


def _imported(text: str) -> set[str]:
    """First names of what a program imports where it runs, other than relatively."""
    found: set[str] = set()
    nodes: list[ast.AST] = []
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        nodes.append(ast.parse(text))
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            nodes.extend(ast.iter_child_nodes(node))
    return found


def _names_package(root: Path, home: Area, text: str) -> bool:
    """Whether a file names those beside it relatively, or with the package that it is part of."""
    if not root.joinpath(*home, "__init__.py").is_file():
        return False
    first = home[1 if home[:1] == ("src",) else 0 :][:1]
    own = "|".join((r"\.", *(rf"{re.escape(name)}\b" for name in first)))
    return re.search(rf"^[ \t]*(?:from|import)[ \t]+(?:{own})", text, re.MULTILINE) is not None


def _is_module(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").is_file()


def _areas(place: PurePath, root: Path, data: bytes) -> set[Area]:
    """Those directories: an example also speaks of the packages of the project it imports."""
    code = not configs.is_config(place.name)
    if not code and _of_a_part(place, root):
        return {place.parts[:-1]}
    areas = {place.parts[:1] if code and _of_its_own(place, root, data) else _area(place)}
    if not _USERS.isdisjoint(part.lower() for part in place.parts[:-1]):
        for name in set(_IMPORT.findall(data.decode("utf8", "replace"))):
            homes: tuple[Area, ...] = ((name,), ("src", name))
            areas.update(
                home
                for home in homes
                if place.parts[: len(home)] != home  # a part of the package is no example of it
                and root.joinpath(*home, "__init__.py").is_file()
            )
    return areas


def _strength(rank: Rank) -> Strength | None:
    return None if rank == _NONE else STRENGTHS[rank[0]]


def statements(filename: str, data: bytes) -> list[Statement]:
    """What one file says, which depends on its contents alone."""
    if configs.is_config(filename):
        return configs.statements(filename, data)
    source = decode(data, filename.removesuffix(notebook.SUFFIX))  # it is Python already
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
