"""Lint generated and damaged files; whatever crashes, hangs or costs another file its findings is kept.

    python scripts/fuzz.py [--seconds 60] [--seed 0] [--keep DIR]

Kinds: `mutated`, a fixture with tokens and lines deleted, doubled and swapped; `encoded`, a text in one
of Python's codecs under one coding line, with mixed ends of lines; `notebook`, JSON with cells of damaged
text; `settings`, a configuration of drawn keys and values.  Each is linted beside one good file, whose
finding must stay, and fixed: the fixed text must be text that Python reads if the file was.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import encodings.aliases
import io
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from precision_lint import cli
from precision_lint.config import KEYS

ROOT = Path(__file__).parent.parent
GOOD = "import torch\n\n\ndef f(x):\n    return torch.log(x.half().sigmoid() + 1e-8)\n"
CODECS = sorted({*encodings.aliases.aliases.values(), "idna", "punycode", "undefined", "utf_8_sig"})
VALUES = (
    None, True, -1, 0, 4, 1e300, "", "ALL", "MP3", "MP301", "likely", "amp-float16", "\0", "../x", [],
    ["MP301"], [1], ["**/["], {"a": ["MP3"]}, [{"path": "a", "precision": ["float16"]}], [{}],
)  # fmt: skip
SLOW = 30.0
"""Seconds that one input may take."""


def texts() -> list[str]:
    """The fixtures' texts."""
    return [path.read_text("utf8") for path in sorted((ROOT / "fixtures").glob("mp*/*.py"))]


def damaged(draw: random.Random, text: str) -> str:
    """A text with some tokens or lines deleted, doubled, swapped or taken from elsewhere."""
    for _ in range(draw.randint(1, 6)):
        pieces = text.splitlines(keepends=True) if draw.random() < 0.5 else _pieces(text)
        if len(pieces) < 2:
            break
        at, other = draw.randrange(len(pieces)), draw.randrange(len(pieces))
        how = draw.randrange(4)
        if how == 0:
            del pieces[at]
        elif how == 1:
            pieces.insert(at, pieces[other])
        elif how == 2:
            pieces[at], pieces[other] = pieces[other], pieces[at]
        else:
            pieces[at] = draw.choice(
                ("(", ")", "\n", "\0", "\f", "lambda: ", "*", "é", "\\\n", "0j")
            )
        text = "".join(pieces)
    return text


def _pieces(text: str) -> list[str]:
    """Words and what stands between them."""
    found, word = [], ""
    for letter in text:
        if word and letter.isalnum() != word[-1].isalnum():
            found.append(word)
            word = ""
        word += letter
    return [*found, word]


def mutated(draw: random.Random, good: list[str]) -> tuple[str, bytes]:
    return "bad.py", damaged(draw, draw.choice(good)).encode("utf8", "surrogatepass")


def encoded(draw: random.Random, good: list[str]) -> tuple[str, bytes]:
    text = draw.choice(good).replace("\n", draw.choice(("\n", "\r\n", "\r", "\n\r")))
    said, used = draw.choice(CODECS), draw.choice(CODECS)
    text = f"# coding: {said}\n# {draw.choice(('plain', 'ü', '日本'))}\n{text}"
    try:
        data = text.encode(used if draw.random() < 0.5 else said, "replace")
    except Exception:  # a codec that is none of text
        data = text.encode()
    return "bad.py", data if draw.random() < 0.9 else data[: draw.randrange(len(data) + 1)]


def notebook(draw: random.Random, good: list[str]) -> tuple[str, bytes]:
    cells = [
        {
            "cell_type": draw.choice(("code", "markdown", "raw", "x")),
            "source": draw.choice((damaged(draw, draw.choice(good)), ["%%bash\n", "ls"], 3, None)),
            "metadata": {}, "outputs": [],
        }
        for _ in range(draw.randrange(4))
    ]  # fmt: skip
    data = json.dumps({"cells": cells, "metadata": {}, "nbformat": draw.choice((4, 3, "x"))})
    return "bad.ipynb", data.encode() if draw.random() < 0.8 else data[: len(data) // 2].encode()


def settings(draw: random.Random, good: list[str]) -> tuple[str, bytes]:
    keys = draw.sample([*KEYS, "selct"], draw.randint(1, 4))
    lines = [f"{key} = {_toml(draw.choice(VALUES))}" for key in keys]
    return "precision-lint.toml", "\n".join(lines).encode()


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


KINDS: dict[str, Callable[[random.Random, list[str]], tuple[str, bytes]]] = {
    "mutated": mutated, "encoded": encoded, "notebook": notebook, "settings": settings,
}  # fmt: skip


def run(folder: Path, *options: str) -> tuple[int, str, str]:
    """Exit status and output of a run of the tool in a directory."""
    out, err = io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(["check", "-n", "-j", "1", *options])
    finally:
        os.chdir(before)
    return code, out.getvalue(), err.getvalue()


def parses(path: Path) -> bool:
    try:
        ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError):
        return False
    return True


def failures(folder: Path, kind: str, name: str) -> Iterator[str]:
    """What is wrong with how the tool takes the files of a directory."""
    started = time.monotonic()
    code, out, err = run(folder, "--output-format", "concise", "--confidence", "possible", ".")
    if "MP003" in out or "report it as a bug" in err:
        yield f"the tool failed: {out}{err}"
    if kind != "settings" and "good.py:5" not in out:
        yield f"the good file lost its finding: exit {code}, {out}{err}"
    before = name.endswith(".py") and parses(folder / name)
    run(folder, "--fix", "--unsafe-fixes", "--confidence", "possible", ".")
    if before and not parses(folder / name):
        yield "the fixed file is no Python any more"
    if time.monotonic() - started > SLOW:
        yield f"took {time.monotonic() - started:.0f} s"


def attempt(draw: random.Random, good: list[str], keep: Path | None) -> tuple[str, list[str]]:
    """One input of a drawn kind; what was wrong."""
    kind = draw.choice(list(KINDS))
    name, data = KINDS[kind](draw, good)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        (folder / ".git").mkdir()
        (folder / "good.py").write_text(GOOD)
        (folder / name).write_bytes(data)
        try:
            found = list(failures(folder, kind, name))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            found = ["".join(traceback.format_exception(error)[-4:])]
    if found and keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{kind}-{abs(hash(data)):x}-{name}").write_bytes(data)
    return kind, found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="where to put inputs on which something is wrong")
    options = parser.parse_args(arguments)
    draw, good = random.Random(options.seed), texts()
    done, wrong = Counter[str](), Counter[str]()
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        kind, found = attempt(draw, good, options.keep)
        done[kind] += 1
        for one in found:
            wrong[kind] += 1
            print(f"{kind}: {one}", file=sys.stderr)
    print(", ".join(f"{kind}: {done[kind]} ({wrong[kind]} wrong)" for kind in KINDS))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
