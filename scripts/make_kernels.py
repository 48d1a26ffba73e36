"""Regenerate ``precision_lint/torchmodel/kernels.json``: since which release torch has a half kernel.

    python scripts/make_kernels.py FOLDER

FOLDER holds unpacked wheels of torch, each in a folder named after its release (``2.1.2/torch/...``);
nothing in them is run.  Each release ships its operator tests (``torch/testing/_internal``), which
declare the dtypes that an operation takes on the CPU and on CUDA, and which torch's own CI holds to be so.
An operation of which any variant takes a dtype has a kernel for it.  The installed torch is the newest
release; what it lacks is in operations.json, measured.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal import common_dtype

from precision_lint.torchmodel import operations

FILE = Path(__file__).parent.parent / "precision_lint" / "torchmodel" / "kernels.json"
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
NAMES: dict[str, Any] = {
    **vars(common_dtype),
    "torch": torch,
    **dict.fromkeys(("CUDA11OrLater", "SM53OrLater", "SM60OrLater", "SM80OrLater"), True),
    **dict.fromkeys(("TEST_WITH_ROCM", "IS_WINDOWS", "IS_MACOS"), False),
    "_unsigned_int_types": (),
}
Takes = dict[tuple[str, str], bool]
"""Whether a device (``cpu``, ``cuda``) has a kernel for a dtype."""


def declared(tests: Path) -> dict[str, Takes]:
    """What the operator tests of a release declare, by operation."""
    found: dict[str, Takes] = {}
    paths = [tests / "common_methods_invocations.py", *sorted((tests / "opinfo").rglob("*.py"))]
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf8"))):
            for name, device, dtypes in _of_call(node):
                takes = found.setdefault(name.removeprefix("nn.functional."), {})
                for dtype, one in DTYPES.items():
                    takes[device, dtype] = takes.get((device, dtype), False) or one in dtypes
    return found


def _of_call(node: ast.AST) -> Iterator[tuple[str, str, frozenset[torch.dtype]]]:
    """The name of a declared operation, and its dtypes by device."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
        return
    first = node.args[0]
    if not node.func.id.endswith("Info") or node.func.id in ("DecorateInfo", "SkipInfo"):
        return
    if "Python" in node.func.id or not isinstance(first, ast.Constant):
        return
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    everywhere = _dtypes(given.get("dtypes"))
    for device in ("cpu", "cuda"):
        dtypes = _dtypes(given.get(f"dtypesIf{device.upper()}")) or everywhere
        if dtypes is not None and isinstance(first.value, str):
            yield first.value, device, dtypes


def _dtypes(node: ast.expr | None) -> frozenset[torch.dtype] | None:
    """The dtypes that an expression of the tests names; None: that is not known."""
    if node is None:
        return None
    try:
        return frozenset(eval(compile(ast.Expression(node), "dtypes", "eval"), NAMES))
    except (NameError, AttributeError, TypeError):
        return None


def since(releases: dict[str, dict[str, Takes]]) -> dict[str, dict[str, dict[str, list[str]]]]:
    """The operations, by device, dtype and the release that brought the kernel."""
    table: Any = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for full in operations.names():
        name = full.removeprefix("torch.").removeprefix("Tensor.")
        for device in ("cpu", "cuda"):
            for dtype in DTYPES:
                said = [
                    (release, takes[name][device, dtype])
                    for release, takes in releases.items()
                    if name in takes
                ]
                first = next((r for r, has in said if has), None)
                lacked = [release for release, has in said if not has]
                # of a kernel that came between two releases which lie apart, the release is not known
                if lacked and first not in (None, list(releases)[-1]):
                    table[device][dtype][first].append(full)
    return table  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folders = sorted(
        parser.parse_args().folder.iterdir(), key=lambda one: [*map(int, one.name.split("."))]
    )
    releases = {
        one.name.rpartition(".")[0]: declared(one / "torch" / "testing" / "_internal")
        for one in folders
    }
    here = torch.__version__.split("+")[0].rpartition(".")[0]
    releases[here] = declared(Path(torch.__file__).parent / "testing" / "_internal")
    lines = [f'{{"releases":{json.dumps(list(releases))}']
    for device, by_dtype in since(releases).items():
        rows = []
        for dtype, by_release in by_dtype.items():
            each = [f'"{r}":"{" ".join(by_release[r])}"' for r in releases if r in by_release]
            rows.append(f'"{dtype}":{{\n' + ",\n".join(each) + "}")
        lines.append(f'"{device}":{{' + ",\n".join(rows) + "}")
    FILE.write_text(",\n".join(lines) + "}\n", "utf8")


if __name__ == "__main__":
    main()
