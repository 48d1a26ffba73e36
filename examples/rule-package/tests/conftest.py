"""Lets the tests run without an installation: the rules are found as if there was one."""

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = {
    "METADATA": "Metadata-Version: 2.1\nName: precision-lint-rays\nVersion: 1.0\n",
    "entry_points.txt": "[precision_lint.rules]\nrays = precision_lint_rays.rules\n",
}


class Here(metadata.Distribution, metadata.DistributionFinder):
    """The package in this folder, as a distribution and as what finds it."""

    def read_text(self, filename: str) -> str | None:
        return FILES.get(filename)

    def locate_file(self, path: str) -> Path:
        return ROOT / path

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        return None

    def find_distributions(self, context: object = None) -> Iterator[metadata.Distribution]:
        if getattr(context, "name", None) in (None, "precision-lint-rays"):
            yield self


try:
    metadata.distribution("precision-lint-rays")
except metadata.PackageNotFoundError:
    sys.path.insert(0, str(ROOT))
    sys.meta_path.append(Here())
