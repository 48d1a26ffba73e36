"""Which torch a project requires at least."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_lint import lint_source
from precision_lint.config import Overrides, Resolver
from precision_lint.project.requirements import bound, minimum, newest, parse, specifiers
from precision_lint.runner import check


def write(folder: Path, **files: str) -> Path:
    """Files by name, ``__`` for a dot and ``0`` for a slash."""
    for name, text in files.items():
        path = folder / name.replace("__", ".").replace("0", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("specifier", "least"),
    [
        (">=2.4", (2, 4)),
        (">=1.13,<2.1", (1, 13)),
        ("==2.1.0+cu118", (2, 1, 0)),
        ("~=2.0", (2, 0)),
        (">2.2", (2, 2)),
        (" >= 2.3.1 ", (2, 3, 1)),
        ("(>=2.0)", (2, 0)),
        ("==2.4.*", (2, 4)),
        (">=1.8,>=2.0,!=2.0.1", (2, 0)),
        ("^2.1", (2, 1)),
        ("~2.1", (2, 1)),
        ("2.5.1", (2, 5, 1)),
        ("=2.1.0", (2, 1, 0)),
        ("=2.1", (2, 1)),
        ("<2.4", ()),
        ("!=2.0.1", ()),
        ("*", ()),
        ("", ()),
        ("@ https://download.pytorch.org/whl/torch.whl", ()),
        (">= two", ()),
    ],
)
def test_lower_bound(specifier: str, least: tuple[int, ...]) -> None:
    assert bound(specifier) == least


@pytest.mark.parametrize(
    ("files", "least"),
    [
        ({"pyproject__toml": '[project]\ndependencies = ["torch>=2.4", "numpy"]'}, (2, 4)),
        ({"pyproject__toml": '[project.optional-dependencies]\nall = ["torch>=2.0"]'}, (2, 0)),
        ({"pyproject__toml": '[dependency-groups]\ndev = ["torch~=2.2"]'}, (2, 2)),
        ({"pyproject__toml": '[tool.poetry.dependencies]\ntorch = "^2.1"'}, (2, 1)),
        (
            {"pyproject__toml": '[tool.poetry.dependencies]\ntorch = {version = ">=2.3"}'},
            (2, 3),
        ),
        ({"setup__cfg": "[options]\ninstall_requires =\n    torch>=1.13\n    tqdm"}, (1, 13)),
        ({"setup__cfg": "[options.extras_require]\nall = torch>=2.0"}, (2, 0)),
        (
            {"setup__py": "from setuptools import setup\nsetup(install_requires=['torch>=1.9'])"},
            (1, 9),
        ),
        ({"setup__py": "_deps = ['numpy', 'torch>=2.4,<3']\n"}, (2, 4)),
        ({"requirements__txt": "numpy\ntorch==2.1.2+cu121  # pinned\n"}, (2, 1, 2)),
        ({"requirements0base__txt": "torch[opt-einsum]>=2.0; python_version > '3.8'"}, (2, 0)),
        ({"environment__yml": "dependencies:\n  - pytorch=2.3.0\n  - numpy"}, (2, 3, 0)),
        ({"environment__yaml": "dependencies:\n  - pytorch::pytorch>=2.2"}, (2, 2)),
        # the least of several
        ({"requirements__txt": "torch>=2.4", "requirements-dev__txt": "torch>=1.12"}, (1, 12)),
        # the package's own metadata, before a pin for its developers
        (
            {
                "pyproject__toml": '[project]\ndependencies = ["torch>=1.13"]',
                "requirements__txt": "torch==2.4.0",
            },
            (1, 13),
        ),
        # any torch will do
        (
            {
                "pyproject__toml": '[project]\ndependencies = ["torch"]',
                "requirements__txt": "torch==2.4.0",
            },
            None,
        ),
        # other packages, options, prose
        ({"requirements__txt": "torchvision>=0.19\ntorch-scatter>=2.4\n-r torch.txt"}, None),
        ({"setup__py": "setup(description='torch models', keywords='torch2')"}, None),
        ({"pyproject__toml": "[project\n# torch"}, None),
        ({"setup__py": "torch = ("}, None),
        ({}, None),
    ],
)
def test_minimum_of_a_project(
    tmp_path: Path, files: dict[str, str], least: tuple[int, ...] | None
) -> None:
    assert minimum(specifiers(write(tmp_path, **files))) == least


@pytest.mark.parametrize(
    ("files", "release"),
    [
        ({"requirements__txt": "torch==2.0.1"}, (2, 0, 1)),
        ({"requirements__txt": "torch==2.0.1+cu118 ; python_version < '3.12'"}, (2, 0, 1)),
        ({"environment__yml": "dependencies:\n  - pytorch=1.13.1=py3.10_cuda"}, (1, 13, 1)),
        ({"requirements__txt": "torch==2.0.1", "requirements-new__txt": "torch==2.5"}, (2, 5)),
        ({"requirements__txt": "torch==2.0.1", "requirements-dev__txt": "torch>=2"}, None),
        ({"requirements__txt": "torch==2.*"}, None),
        ({"requirements__txt": "torch>=2.0,<2.4"}, None),
        ({"requirements__txt": "numpy==2.0"}, None),
    ],
)
def test_what_a_project_pins(
    tmp_path: Path, files: dict[str, str], release: tuple[int, ...] | None
) -> None:
    assert newest(specifiers(write(tmp_path, **files))) == release


def test_nothing_is_deprecated_in_a_torch_that_is_pinned(tmp_path: Path) -> None:
    code = "import torch\nscaler = torch.cuda.amp.GradScaler()\n"
    root = write(tmp_path, requirements__txt="torch==2.3.1", train__py=code, setup__cfg="")
    resolver = Resolver(Overrides(select=("MP212",), no_cache=True))
    assert check([root / "train.py"], resolver).diagnostics == []
    write(tmp_path, requirements__txt="torch==2.4.0")
    assert len(check([root / "train.py"], resolver).diagnostics) == 1


def test_the_setting_wins_over_metadata(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        requirements__txt="torch>=1.9",
        train__py="import torch\nscaler = torch.cuda.amp.GradScaler()\n",
        setup__cfg="",
    )
    resolver = Resolver(Overrides(select=("MP212",), no_cache=True))
    assert check([root / "train.py"], resolver).diagnostics == []
    (root / "precision-lint.toml").write_text('torch-version = "2.4"\n')
    resolver = Resolver(Overrides(select=("MP212",), no_cache=True))
    (found,) = check([root / "train.py"], resolver).diagnostics
    assert found.code == "MP212"


SCRIPT = """\
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch{}", "numpy"]
# ///
import torch

scaler = torch.cuda.amp.GradScaler()
"""


@pytest.mark.parametrize(
    "script, project, found",
    [
        (">=2.4", None, 1),
        (">=1.13", None, 0),
        (">=1.13", ">=2.4", 0),
        (">=2.4", ">=1.13", 1),
        ("", ">=2.4", 0),  # any torch
        ("==2.3.1", ">=2.4", 0),
    ],
)
def test_a_script_says_itself_which_torch_it_requires(
    tmp_path: Path, script: str, project: str | None, found: int
) -> None:
    files = {"setup__cfg": "", "train__py": SCRIPT.replace("{}", script)}
    if project is not None:
        files["requirements__txt"] = f"torch{project}"
    root = write(tmp_path, **files)
    for _ in range(2):  # the second time from the cache
        resolver = Resolver(Overrides(select=("MP212",)))
        assert len(check([root / "train.py"], resolver).diagnostics) == found


@pytest.mark.parametrize("metadata", ["", "# /// script\n# dependencies = [\n# ///\n"])
def test_nothing_is_deprecated_where_torch_is_not_known(tmp_path: Path, metadata: str) -> None:
    code = f"{metadata}import torch\nscaler = torch.cuda.amp.GradScaler()\n"
    root = write(tmp_path, setup__cfg="", train__py=code)
    resolver = Resolver(Overrides(select=("MP212",), no_cache=True))
    assert check([root / "train.py"], resolver).diagnostics == []


def test_a_version_that_is_none() -> None:
    assert parse("2.4.1+cu121") == (2, 4, 1)
    assert parse("nightly") is None


@pytest.mark.parametrize("least, found", [("2.4", 1), ("2.10", 1), ("2.11", 0)])
def test_what_newer_torch_mended_is_silent_there(least: str, found: int) -> None:
    code = """\
import torch


def consistency(model: torch.nn.Module, clean, noisy):
    with torch.autocast("cuda"):
        with torch.no_grad():
            target = model(clean)
        return model(noisy) - target
"""
    assert len(lint_source(code, select="MP213", torch_version=least)) == found
