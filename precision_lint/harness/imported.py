"""The function that a proven finding is in, imported from its file and called on the witness.

A slice is a copy: it shows that code breaks, and does not notice when the file changes.  What can
be imported and called can be tested itself.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from precision_lint.harness.children import Children, Conversation, Stopped, TooSlow
from precision_lint.harness.slicing import FunctionNode, functions
from precision_lint.harness.witnesses import BYTES, CHILD, Verdict

SECONDS = 20
"""Time that importing a file and calling its function may take."""


class CannotImport(Exception):
    """Why a function cannot be imported and called, in a few words."""


@dataclass(frozen=True)
class Imported:
    """How a function is called: where its package lies, the import, and the expression."""

    root: Path
    statement: str
    call: str
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        """A module that defines ``isolated``, as that of a slice."""
        head = f"import sys\nsys.path.insert(0, {os.fspath(self.root)!r})\n"
        return f"{head}import torch\n{self.statement}\n{self.function('isolated')}"

    def function(self, name: str) -> str:
        """A function of the witness's inputs that calls it."""
        return f"def {name}({', '.join(self.names)}):\n    return {self.call}\n"


def imported(one: Verdict) -> Imported:
    """How the function around a finding is called on its witness; raises `CannotImport`."""
    path, function, cls = _function(one)
    root, module = _module(Path(one.finding.filename).resolve())
    given = [
        each["name"]
        for each in one.answer["inputs"]
        if one.plan.stands_for.get(each["name"], each["name"]) == each["name"]
    ]
    args = function.args
    needed = [*args.posonlyargs, *args.args]
    needed = needed[1:] if cls is not None else needed
    optional = (
        {o.arg for o in needed[len(needed) - len(args.defaults) :]} if args.defaults else set()
    )
    optional |= {o.arg for o, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d}
    words = []
    for each in (*needed, *args.kwonlyargs):
        if each.arg in given:
            keyword = "" if each in args.posonlyargs else f"{each.arg}="
            words.append(f"{keyword}{each.arg}")
        elif each.arg not in optional:
            raise CannotImport(f"it needs {each.arg!r}, on which the failure does not depend")
    names = tuple(name for name in given if name in {o.arg for o in (*needed, *args.kwonlyargs)})
    if cls is None:
        return Imported(
            root, f"from {module} import {path[0]}", f"{path[0]}({', '.join(words)})", names
        )
    first = next(iter(names), "None")
    made = f"like({path[0]}(), {first}).{path[1]}({', '.join(words)})"
    return Imported(root, f"from {module} import {path[0]}\n\n\n{_LIKE}", made, names)


_LIKE = '''\
def like(module, tensor):
    """A module in the dtype of what it is given."""
    if isinstance(module, torch.nn.Module) and torch.is_floating_point(tensor):
        module.to(tensor.dtype)
    return module
'''


def _function(
    one: Verdict,
) -> tuple[tuple[str, ...], ast.FunctionDef, ast.ClassDef | None]:
    if one.answer["condition"].get("step"):
        raise CannotImport("a training step needs its model and its data")
    found = _around(one.plan.tree, one.finding.start.row)
    if found is None:
        raise CannotImport("it is in no function, so that importing the file runs it")
    path, function, cls = found
    if not isinstance(function, ast.FunctionDef):
        raise CannotImport("it is in a coroutine")
    if len(path) != (1 if cls is None else 2) or "#" in path[-1]:
        raise CannotImport("it is in a function inside of another one")
    if cls is not None and not _plain(cls):
        raise CannotImport(f"{cls.name} is not made without arguments")
    return path, function, cls


def _around(
    tree: ast.Module | None, row: int
) -> tuple[tuple[str, ...], FunctionNode, ast.ClassDef | None] | None:
    found = None
    for path, function, cls in functions(tree or ast.Module([], [])):
        if path and function.lineno <= row <= (function.end_lineno or 0):  # type: ignore[union-attr]
            found = path, function, cls
    return found


def _plain(cls: ast.ClassDef) -> bool:
    """Whether a class can be made without arguments."""
    for one in cls.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            a = one.args
            free = len(a.posonlyargs) + len(a.args) - 1 - len(a.defaults)
            return free <= 0 and all(a.kw_defaults)
    return True


def _module(path: Path) -> tuple[Path, str]:
    """The directory that a module is imported from, and its dotted name."""
    if path.suffix != ".py":
        raise CannotImport("a notebook cannot be imported")
    names = [path.stem] if path.stem != "__init__" else []
    root = path.parent
    while (root / "__init__.py").is_file():
        names.insert(0, root.name)
        root = root.parent
    if not all(name.isidentifier() for name in names) or not names:
        raise CannotImport(f"{path.name} is not the name of a module")
    return root, ".".join(names)


def reached(verdicts: Sequence[Verdict]) -> list[Imported | str]:
    """How the function of each proven finding is called, once that shows the failure; or why not."""
    found: list[Imported | str] = []
    for one in verdicts:
        try:
            how = imported(one)
            reason = _tried(one, how)
            found.append(reason or how)
        except CannotImport as error:
            found.append(str(error))
    return found


def _tried(one: Verdict, how: Imported) -> str:
    """Why the call does not show the failure; nothing if it does."""
    keys = ("inputs", "condition", "phase", "kind", "scale")
    job = {"id": 0, "called": how.text, **{key: one.answer[key] for key in keys}}
    child = Conversation(Children(), CHILD, SECONDS)
    payload = {"jobs": [job], "seconds": SECONDS, "bytes": BYTES}
    try:
        for message in child.ask(payload, apart=True):
            if "answer" in message:
                return str(message["answer"]["reason"])
    except (TooSlow, Stopped):
        return f"importing and calling it takes longer than {SECONDS} s"
    return "importing it ends the interpreter"
