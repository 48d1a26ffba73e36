"""Finds the proofs of the rules and reads their cases."""

from __future__ import annotations

import importlib.util
import traceback
from dataclasses import dataclass
from pathlib import Path

from precision_lint import source
from precision_lint.api import Rule
from precision_lint.harness.cases import Case, InvalidCase


class InvalidProof(Exception):
    """A proof that cannot be read; one line ``file:line: what; what to do``."""


@dataclass(frozen=True)
class Proof:
    """The cases of one rule.

    ``folder`` is None where there is no ``proof.py``; ``error`` says why one cannot be read.
    """

    rule: type[Rule]
    folder: Path | None = None
    cases: tuple[Case, ...] = ()
    error: str | None = None


def home(rule: type[Rule]) -> Path | None:
    """Where a rule's folder of fixtures lies: in the package ``fixtures`` beside that of its rules.

    None: there is no such package.
    """
    beside = rule.__module__.split(".")[:-2]
    spec = importlib.util.find_spec(".".join([*beside, "fixtures"])) if beside else None
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) if places else None


def proof(rule: type[Rule], root: Path | None = None) -> Proof:
    """The proof of a rule, from the folder under ``root`` (`home`) that is named as its module."""
    root = root or home(rule)
    if root is None:
        return Proof(rule)
    folder = root / f"{rule.code.lower()}_{rule.name.replace('-', '_')}"
    if not (folder / "proof.py").is_file():
        return Proof(rule)
    try:
        return Proof(rule, folder, load_cases(folder))
    except InvalidProof as error:
        return Proof(rule, folder, error=str(error))


def load_cases(folder: Path) -> tuple[Case, ...]:
    """``CASES`` of a folder's ``proof.py``; raises `InvalidProof` where they break the contract."""
    path = folder / "proof.py"
    text = source.read(path)
    if isinstance(text, source.Failure):
        raise InvalidProof(f"{path}: {text.message}")
    namespace: dict[str, object] = {"__name__": f"{folder.name}.proof", "__file__": str(path)}
    try:
        exec(compile(text.text, str(path), "exec"), namespace)
    except SyntaxError as error:
        raise InvalidProof(f"{path}:{error.lineno}: {error.msg}") from None
    except Exception as error:
        rows = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)
        ]
        kind = "" if isinstance(error, InvalidCase) else f"{type(error).__name__}: "
        raise InvalidProof(f"{path}:{rows[-1] if rows else 1}: {kind}{error}") from None
    cases = namespace.get("CASES")
    if not isinstance(cases, tuple) or not cases or not all(isinstance(c, Case) for c in cases):
        raise InvalidProof(f"{path}:1: CASES is no tuple of Case; write CASES = (Case(...), ...)")
    titles = set()
    for case in cases:
        if not (folder / case.module).is_file():
            raise InvalidProof(f"{path}:1: module {case.module} is not in the folder")
        if case.title in titles:
            raise InvalidProof(f"{path}:1: two cases are {case.title}; give them a name")
        titles.add(case.title)
    return cases
