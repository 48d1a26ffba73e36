"""Execute the commands of docs/modes.md on the packages that it names, and hold its outputs against what comes.

    python scripts/modes_page.py [--only HEADING] [--keep DIR]

Packages come from PyPI, without their dependencies; nothing of them is run.  ``...`` on the page stands
for anything, as a line or at the end of one.  A ``cat`` of a configuration writes that file, a Python
block replaces the line that it is but for its comment.  Exit code 1: something differs, shown as a diff.
"""

from __future__ import annotations

import argparse
import difflib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs/modes.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
PACKAGE = re.compile(r"\| \[([\w.-]+) ([\w.]+)\]\(#([\w-]+)\)")
CONFIGURATION = "precision-lint.toml"


def sections(text: str) -> dict[str, str]:
    """The page's sections by the anchors of their headings."""
    parts = re.split(r"^## (.+)\n", text, flags=re.M)[1:]
    names = [one.lower().replace(" ", "-") for one in parts[::2]]
    return dict(zip(names, parts[1::2], strict=True))


def download(name: str, version: str, into: Path) -> None:
    """Unpack a package into a directory."""
    wanted = f"{name}=={version}"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        wanted,
    ]
    subprocess.run([*pip, "-d", str(into / ".dl")], check=True)
    (archive,) = (into / ".dl").iterdir()
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(into)
    else:
        with tarfile.open(archive) as sdist:
            sdist.extractall(into, filter="data")
    archive.unlink()
    archive.parent.rmdir()


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines that it prints."""
    for one in re.split(r"^\$ ", block, flags=re.M)[1:]:
        line, *printed = one.rstrip("\n").split("\n")
        yield line, printed


def agrees(expected: list[str], printed: list[str]) -> bool:
    """Whether lines are those of the page."""
    if not expected:
        return not printed
    first, rest = expected[0], expected[1:]
    if first.strip() == "...":
        return any(agrees(rest, printed[n:]) for n in range(len(printed) + 1))
    if not printed:
        return False
    same = first == printed[0] or (
        first.endswith("...") and printed[0].startswith(first.removesuffix("..."))
    )
    return same and agrees(rest, printed[1:])


def edit(block: str, root: Path) -> bool:
    """Add a comment to the line of a file, as the page shows it."""
    line = block.rstrip("\n")
    plain = line.partition("  # precision-lint:")[0]
    for path in sorted(root.rglob("*.py")):
        text = path.read_text("utf8")
        if f"\n{plain}\n" in text:
            path.write_text(text.replace(f"\n{plain}\n", f"\n{line}\n"), "utf8")
            return True
    return False


def wrong(section: str, root: Path) -> Iterator[str]:
    """What a section shows that is not so."""
    configuration = root / CONFIGURATION
    for kind, block in FENCE.findall(section):
        if kind == "toml" and configuration.read_text("utf8") != block:
            yield f"{CONFIGURATION} holds\n{configuration.read_text('utf8')}instead of\n{block}"
        if kind == "python" and not edit(block, root):
            yield f"no file holds {block}"
        for line, expected in commands(block) if kind == "console" else ():
            if line == f"cat {CONFIGURATION}":
                configuration.write_text("\n".join(expected) + "\n", "utf8")
                continue
            arguments = line.split()[1:]
            done = subprocess.run(
                [sys.executable, "-m", "precision_lint", *arguments],
                cwd=root, capture_output=True, text=True, encoding="utf8",
            )  # fmt: skip
            printed = (done.stdout + done.stderr).rstrip("\n").split("\n")
            if not agrees(expected, printed):
                diff = difflib.unified_diff(expected, printed, "the page", "printed", lineterm="")
                yield "\n".join([f"$ {line}", *diff])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", help="the anchor of one section, such as lightning")
    parser.add_argument("--keep", type=Path, help="unpack into this directory, and leave it")
    given = parser.parse_args()
    text = PAGE.read_text("utf8")
    parts, failed = sections(text), False
    for name, version, anchor in PACKAGE.findall(text):
        if given.only and anchor != given.only:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            root = (given.keep or Path(temporary)) / anchor
            root.mkdir(parents=True)
            download(name, version, root)
            for difference in wrong(parts[anchor], root):
                failed = True
                print(f"{PAGE.name}, {anchor}: {difference}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
