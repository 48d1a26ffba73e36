"""The laws of the rooms, held by reading imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENGINE = sorted((ROOT / "precision_lint").rglob("*.py"))
RULES = sorted((ROOT / "rules").glob("*.py"))
FIXTURES = sorted((ROOT / "fixtures").rglob("*.py"))
OTHERS = sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")])
LONGEST, LONGEST_FUNCTION, LONGEST_CHECK = 800, 60, 40
"""Lines; ruff (C901) limits what counts, complexity."""
LIBRARY = ("precision_lint.api", "precision_lint.remedies")
"""What rules share."""

ROOMS: dict[str, set[str]] = {
    "__init__": set(),
    "__main__": {"cli"},
    "events": set(),
    "api": {"events"},
    "cache": set(),
    "display": set(),
    "catalogue": {"api", "registry"},
    "patterns": set(),
    "pool": {"progress"},
    "hosts": {"pool"},
    "progress": set(),
    "registry": {"api"},
    "notebook": {"api"},
    "source": {"api", "notebook", "registry"},
    "composing": {"api", "source"},
    "fixer": {"composing", "display", "api", "notebook", "registry", "source"},
    "fingerprint": {"api", "source"},
    "report": {"display", "api", "catalogue", "fingerprint", "registry", "source"},
    "suppress": {"api", "registry", "source"},
    "config": {"api", "cache", "patterns", "precision", "registry", "report"},
    "baseline": {"api", "config", "fingerprint", "source"},
    "changes": {"api"},
    "slices": {"api", "changes", "source"},
    "call_edits": {"api", "slices"},
    "asserted": {"api", "slices", "syntax"},
    "remedies": {"api"},
    # the engine
    "syntax": {"events"},
    "torchmodel": {"domains"},
    "domains": {"syntax"},
    "dataflow": {"domains", "events", "project", "syntax", "torchmodel"},
    "typestate": {"dataflow", "domains", "events", "syntax", "torchmodel"},
    "hazards": {"dataflow", "domains", "events", "syntax", "torchmodel", "typestate"},
    "precision": {"api", "domains", "events", "syntax"},
    "context": {"api", "asserted", "call_edits", "domains", "slices", "source", "syntax"},
    "analysis": {"api", "context", "domains", "precision", "source"},
    "project": {"cache", "domains", "events", "notebook", "patterns", "source", "syntax"},
    "assumed": {"api", "events", "registry", "source", "syntax"},
    "engine": {
        "analysis", "api", "assumed", "dataflow", "domains", "events", "hazards", "precision", "project",
        "registry", "source",
    },
    "observing": {
        "api", "dataflow", "domains", "engine", "events", "precision", "project", "source", "syntax",
    },
    # what uses it
    "gathering": {
        "cache", "config", "engine", "events", "pool", "progress", "project", "source",
    },
    "harness": {
        "display", "api", "engine", "fixer", "observing", "progress", "project", "registry", "source",
    },
    "jobs": {"api", "baseline", "project", "registry", "source"},
    "judging": {
        "api", "assumed", "baseline", "cache", "config", "engine", "events", "fixer", "gathering", "jobs",
        "notebook", "plain", "precision", "pool", "progress", "project", "registry", "source", "suppress",
    },
    "plain": {"api", "jobs"},
    "runner": {
        "api", "baseline", "cache", "config", "jobs", "judging", "notebook", "plain", "project",
        "registry", "source",
    },
    "inspection": {
        "api", "config", "engine", "fixer", "gathering", "jobs", "judging", "observing", "project",
        "source",
    },
    "stating": set(),
    "evidence": {
        "api", "config", "events", "gathering", "precision", "project", "runner", "source", "stating",
        "syntax",
    },
    "init": {"config", "display", "evidence", "fixer", "progress", "shell", "source", "stating"},
    "summary": {"api", "catalogue", "jobs", "precision", "runner"},
    "shell": {"display", "api", "config", "registry"},
    "schema": {"api", "config", "registry", "report"},
    "library": {"api", "config", "jobs", "runner", "source"},
    "pytest_plugin": {"display", "config", "registry", "report", "runner"},
    "silence": {"project", "source", "api", "fixer", "report", "runner", "shell", "suppress"},
    "show": {"display", "config", "project", "registry", "shell"},
    "branch": {
        "baseline", "cache", "config", "fingerprint", "jobs", "patterns", "project", "runner",
    },
    "adopt": {"display", "baseline", "config", "fingerprint", "progress", "report", "runner", "shell"},
    "lsp": {
        "api", "catalogue", "config", "engine", "fixer", "gathering", "jobs", "judging", "observing",
        "project", "registry", "report", "shell", "source", "suppress",
    },
    "cli": {
        "adopt", "api", "branch", "cache", "catalogue", "config", "harness", "hosts", "init", "inspection",
        "jobs", "lsp", "progress", "project", "registry", "report", "runner", "shell", "show", "silence",
        "source", "summary",
    },
}  # fmt: skip
"""What a room may import of the others, itself aside; a new room states its arrows here."""


@dataclass(frozen=True)
class Import:
    """A module that a file imports; ``late``: inside a function; ``typing``: for types only."""

    module: str
    row: int
    late: bool
    typing: bool


def imports(path: Path, root: Path = ROOT) -> list[Import]:
    """Every import of a file by absolute name, ``from a import b`` as both ``a`` and ``a.b``."""
    package = path.relative_to(root).with_suffix("").parts[:-1]
    return list(_imports(ast.parse(path.read_bytes()), package))


def _imports(
    node: ast.AST, package: tuple[str, ...], late: bool = False, typing: bool = False
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, late, typing)
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) - child.level + 1] if child.level else ()
            module = ".".join([*base, *([child.module] if child.module else [])])
            yield Import(module, child.lineno, late, typing)
            for alias in child.names:
                yield Import(f"{module}.{alias.name}", child.lineno, late, typing)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for part in child.body:
                yield from _imports(ast.Module([part], []), package, late, True)
            for part in child.orelse:
                yield from _imports(ast.Module([part], []), package, late, typing)
        else:
            inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, package, late or inner, typing)


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def where(path: Path, found: Import) -> str:
    return f"{path.relative_to(ROOT)}:{found.row}: imports {found.module}"


def room(path: Path) -> str:
    return path.relative_to(ROOT / "precision_lint").with_suffix("").parts[0]


def test_nobody_imports_a_rule_statically() -> None:
    assert [
        where(path, found)
        for path in (*ENGINE, *RULES, *FIXTURES, *OTHERS)
        for found in imports(path)
        if within(found.module, "precision_lint.rules", "rules")
    ] == []


def test_only_the_registry_names_the_package_of_rules() -> None:
    assert [
        str(path.relative_to(ROOT))
        for path in ENGINE
        if "precision_lint.rules" in path.read_text() and path.name != "registry.py"
    ] == []


def test_rules_import_the_api_and_the_standard_library() -> None:
    allowed = sys.stdlib_module_names - {"ast", "re", "symtable", "tokenize"}
    assert [
        where(path, found)
        for path in RULES
        for found in imports(path)
        if not within(found.module, *LIBRARY, *allowed) and found.module != "precision_lint"
    ] == []


def test_nobody_but_the_precision_room_says_how_sure_a_finding_is() -> None:
    reading = {"analysis", "api", "precision"}  # a finding's confidence, its type, and who decides
    engine = ("context", "dataflow", "domains", "hazards", "remedies", "syntax", "typestate")
    assert reading.isdisjoint(engine)
    assert [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (*(path for path in ENGINE if room(path) in engine), *RULES)
        for name in re.findall(r"\bConfidence\b|confidence\s*=", path.read_text())
    ] == []


def test_the_analysis_asks_nothing_of_the_text() -> None:
    rooms = ("dataflow", "domains", "hazards", "typestate")
    assert [
        where(path, found)
        for path in ENGINE
        for found in imports(path)
        if room(path) in rooms
        and path.name
        != "geometry.py"  # what cameras and points are called is all that tells (MP501)
        and within(found.module, "re", "tokenize", "precision_lint.source", "precision_lint.slices")
    ] == []


def test_functions_fit_a_screen() -> None:
    long = []
    for path in (*ENGINE, *RULES):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                check = path in RULES and node.name == "check"
                if lines > (LONGEST_CHECK if check else LONGEST_FUNCTION):
                    long.append(f"{path.relative_to(ROOT)}: {node.name}: {lines} lines")
    assert long == []


def test_torch_is_imported_only_by_the_harness() -> None:
    heavy = ("torch", "numpy")
    assert [
        where(path, found)
        for path in (*ENGINE, *RULES)
        for found in imports(path)
        if within(found.module, *heavy) and room(path) != "harness"
    ] == []


def test_libcst_is_imported_late() -> None:
    assert [
        where(path, found)
        for path in (*ENGINE, *RULES)
        for found in imports(path)
        if within(found.module, "libcst") and not (found.late or found.typing)
    ] == []


def test_every_room_states_its_arrows() -> None:
    assert {room(path) for path in ENGINE} - set(ROOMS) == set()


def test_arrows_go_one_way() -> None:
    assert set(TopologicalSorter(ROOMS).static_order()) == set(ROOMS)


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_arrows(name: str) -> None:
    files = [path for path in ENGINE if room(path) == name]
    allowed = [f"precision_lint.{other}" for other in (name, *ROOMS[name])]
    assert [
        where(path, found)
        for path in files
        for found in imports(path)
        if within(found.module, "precision_lint")
        and found.module != "precision_lint"
        and not (found.typing or within(found.module, *allowed))
        # Context is the engine's class; rules get its name from the interface, late; and hazards,
        # which look at dataflow, register themselves with it
        and not (name in ("api", "dataflow") and found.late)
    ] == []


def test_modules_are_short() -> None:
    lengths = {path: path.read_bytes().count(b"\n") for path in (*ENGINE, *RULES)}
    assert [
        f"{path.relative_to(ROOT)}: {lines} lines"
        for path, lines in lengths.items()
        if lines > LONGEST
    ] == []


def test_no_path_of_somebodys_machine() -> None:
    machine = re.compile(r"(?<![\w.])/(?:work|root|home|Users|tmp)/\w")
    texts = [
        path
        for pattern in ("*.md", "*.toml", "Makefile", "MANIFEST.in", ".*.yaml", ".ci/run")
        for path in ROOT.glob(pattern)
    ]
    assert [
        f"{path.relative_to(ROOT)}:{row}: {line.strip()}"
        for path in (*ENGINE, *RULES, *FIXTURES, *OTHERS, *texts)
        for row, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if machine.search(line)
    ] == []


def test_linting_needs_neither_torch_nor_libcst(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("import torch\n\n\ndef double(x):\n    return torch.add(x, x)\n")
    code = (
        "import sys\n"
        "from precision_lint.cli import main\n"
        "try:\n"
        "    main(['check', '--isolated', '--jobs', '1', sys.argv[1]])\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "print(sorted({'torch', 'libcst', 'numpy', 'rich'} & set(sys.modules)))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "[]"


def test_what_is_known_is_told_without_the_interpreter(tmp_path: Path) -> None:
    text = "import torch\n\n\ndef double(x):\n    return torch.add(x, x)\n"
    paths = [tmp_path / name for name in ("a.py", "b.py")]
    for path in paths:
        path.write_text(text)
    code = (
        "import sys\n"
        "from precision_lint.cli import main\n"
        "main(['check', '--isolated', '--jobs', '1', '--cache-dir', 'kept', *sys.argv[1:]])\n"
        "print(any(name.startswith('precision_lint.dataflow') for name in sys.modules))\n"
    )
    said = []
    for named in (paths, paths[:1]):
        run = subprocess.run(
            [sys.executable, "-c", code, *named], capture_output=True, text=True, cwd=tmp_path
        )
        assert run.returncode == 0, run.stderr
        said.append(run.stdout.splitlines()[-1])
    assert said == ["True", "False"]


# Each law above reads imports; these hold that the reading misses none.


def test_imports_are_read_in_every_form(tmp_path: Path) -> None:
    text = (
        "import a.b as c\n"
        "from d import e\n"
        "from . import f\n"
        "from ..g import h\n"
        "if TYPE_CHECKING:\n    import typed\nelse:\n    import real\n"
        "try:\n    import tried\nexcept ImportError:\n    pass\n"
        "def late():\n    import lazy\n"
        "class Body:\n    import early\n"
    )
    path = tmp_path / "top" / "sub" / "module.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    found = {one.module: one for one in imports(path, tmp_path)}
    assert set(found) == {
        "a.b", "d", "d.e", "top.sub", "top.sub.f", "top.g", "top.g.h",
        "typed", "real", "tried", "lazy", "early",
    }  # fmt: skip
    assert [name for name, one in found.items() if one.typing] == ["typed"]
    assert [name for name, one in found.items() if one.late] == ["lazy"]
