"""Notebooks: what is read of them, how places are told, and what fixes change in their JSON."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as XML
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat as nbformat_untyped
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_lint import cli, notebook, source
from precision_lint.api import Edit, Position
from precision_lint.source import Failure, Source

nbformat: Any = nbformat_untyped
SETUP = (
    "%matplotlib inline\n!pip install torch \\\n    numpy\nimport torch\nfiles = !ls\ntorch.log?"
)
LOSS = "def loss(x):\n    p = x.sigmoid()\n    return torch.log(p + 1e-8)  # na\u00efve"
TRAIN = "with torch.autocast('cuda', dtype=torch.float16):\n    print(loss(model(x).half()))"
FIXED = LOSS.replace("x.sigmoid", "x.float().sigmoid")


def made(*cells: str, **metadata: Any) -> Any:
    """A notebook as nbformat makes it: a Markdown cell, then these code cells with an output."""
    book = nbformat.v4.new_notebook(metadata=metadata)
    book.cells.append(nbformat.v4.new_markdown_cell("# torch\nlog(0)"))
    for text in cells:
        cell = nbformat.v4.new_code_cell(text, execution_count=7)
        cell.outputs.append(nbformat.v4.new_output("stream", text="torch.log \u00e9 \\u00e9\n"))
        book.cells.append(cell)
    return book


def saved(path: Path, *cells: str, **metadata: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made(*cells, **metadata), path)
    return path


def read(raw: str, name: str = "a.ipynb") -> Source:
    found = source.decode(raw.encode("utf8", "surrogatepass"), name)
    assert isinstance(found, Source), found
    return found


def raw(*cells: Any, **rest: Any) -> str:
    """A small notebook whose cells have these sources, strings or lists."""
    table = [{"cell_type": "code", "source": cell, "outputs": []} for cell in cells]
    return json.dumps({"cells": table, "metadata": {}, "nbformat": 4} | rest)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "setup.cfg").touch()
    return tmp_path


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*args: str) -> tuple[int, str, str]:
        code = cli.main([*args, "--no-cache"] if args[0] == "check" else [*args])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


# what a cell's Python is


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("x = 1", "x = 1"),
        ("%time f(x)\ny = 2", "_#ime f(x)\ny = 2"),
        ("!ls", "_#s"),
        ("if x:\n    !ls\n", "if x:\n    _#s\n"),
        ("!", "_"),
        ("?x", "_#"),
        ("x?", "_#"),
        ("if x:\n  torch.log??  ", "if x:\n  _#rch.log??  "),
        ("a = !ls *.py\nb = a", "a = _#s *.py\nb = a"),
        ("a, b = %env HOME", "a, b = _#nv HOME"),
        ("!a \\\n  b \\\n\nx = 1", "_# \\\n# b \\\n\nx = 1"),
        (",f a b\n;f a\n/f a", "_# a b\n_# a\n_# a"),
        ("x = (4\n  % 3)\n!ls", "x = (4\n  % 3)\n_#s"),
        ("x = '''\n!ls\n%a\nb?\n'''\n!ls", "x = '''\n!ls\n%a\nb?\n'''\n_#s"),
        ("x = 'is it?'  # is it?\n!ls", "x = 'is it?'  # is it?\n_#s"),
        ("x = y \\\n  % 3\n!ls", "x = y \\\n  % 3\n_#s"),
        ("f(a=b, c='=!')\n!ls", "f(a=b, c='=!')\n_#s"),
        ("x != y\nx == y\nx %= 3\nx = y % 3\n!ls", "x != y\nx == y\nx %= 3\nx = y % 3\n_#s"),
        ("%%time\nx = 1", "_#time\nx = 1"),
        ("\n# timed\n%%timeit -n 3\n!ls\nx = 1", "\n# timed\n_#timeit -n 3\n_#s\nx = 1"),
        ("await f(x)", "await f(x)"),
    ],
)
def test_magics_give_way_to_python_of_the_same_length(cell: str, expected: str) -> None:
    found = read(raw(cell))
    assert found.text == f"{expected}\n"
    assert found.shown == f"{cell}\n"
    assert not isinstance(source.parse(found), Failure)


@pytest.mark.parametrize(
    "cell",
    [
        "%%bash\nls $x",
        "%%writefile a.py\nx = 1",
        "%%html\n<b>",
        "%sql\nSELECT 1",
        "%md\nA b",
    ],
)
def test_cells_that_are_no_python_are_left_out(cell: str) -> None:
    found = read(raw("x = 1", cell, "y = 2"))
    assert found.text == "x = 1\ny = 2\n"
    assert found.in_cell(Position(2, 1)) == (3, Position(1, 1))


def test_only_python_code_cells_are_read() -> None:
    cells = [
        {"cell_type": "markdown", "source": "x"},
        {"cell_type": "raw", "source": ["x"]},
        {"cell_type": "code", "source": "x", "metadata": {"vscode": {"languageId": "sql"}}},
        {"cell_type": "code", "source": ["a\n", "b"], "metadata": {"vscode": {}}},
        {"cell_type": "code"},
        {"cell_type": "code", "source": None},
        7,
    ]
    found = read(json.dumps({"cells": cells}))
    assert found.text == "a\nb\n\n"
    assert found.notebook is not None
    assert [cell.number for cell in found.notebook.cells] == [4, 5]


@pytest.mark.parametrize(
    ("metadata", "skipped"),
    [
        ({"language_info": {"name": "python"}}, False),
        ({"kernelspec": {"language": "Python"}}, False),
        ({"kernelspec": {"language": "julia", "name": "julia-1.9"}}, True),
        ({"language_info": {"name": "R"}}, True),
        ({"kernelspec": {"language": "r"}, "language_info": {"name": "python"}}, False),
        ({"kernelspec": 3}, False),
        (None, False),
    ],
)
def test_kernels_of_other_languages_are_skipped(metadata: Any, skipped: bool) -> None:
    assert (read(raw("x", metadata=metadata)).text == "") is skipped


@pytest.mark.parametrize("data", [b"", b"  \n", b"\xef\xbb\xbf", b'{"cells": []}'])
def test_an_empty_notebook_is_clean(data: bytes) -> None:
    found = source.decode(data, "a.ipynb")
    assert isinstance(found, Source)
    assert found.text == ""
    assert found.encode() == data


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b'{"cells": [\n torch}', "a.ipynb:2:2: MP001 is not JSON (expecting value); "),
        (b'{"torch": ' + b"1" * 5000 + b"}", "a.ipynb:1:1: MP001 holds a number of too many"),
        (b"<<<<<<< HEAD torch", "a.ipynb:1:1: MP001 is not JSON (expecting value); "),
        (b'["torch"]', "a.ipynb:1:1: MP001 has no cells, so it is no notebook; "),
        (
            b'{"nbformat": 3, "worksheets": [{"cells": ["torch"]}]}',
            "a.ipynb:1:1: MP001 is a notebook of format 3; convert it with `jupyter nbconvert",
        ),
        (b'{"cells": ["torch \xff"]}', "a.ipynb:1:1: MP001 byte 0xff at offset 18 is not utf-8; "),
        (b"[" * 100_000 + b"torch", "a.ipynb:1:1: MP001 is nested too deeply; "),
    ],
)
def test_what_is_no_notebook_is_one_line(here: Path, run: Run, data: bytes, what: str) -> None:
    (here / "a.ipynb").write_bytes(data)
    code, out, _ = run("check", "-q", "--output-format", "concise", ".")
    assert code == 1
    assert out.startswith(what)
    assert out.count("\n") == 1


def test_notebooks_that_never_name_torch_are_passed_over(here: Path, run: Run) -> None:
    (here / "old.ipynb").write_text('{"worksheets": [], "nbformat": 3, "x": "\u00e9"}', "utf8")
    (here / "broken.ipynb").write_bytes(b"{\xff")
    assert run("check", "-q")[:2] == (0, "")


# where findings are


def test_cells_share_their_state_and_are_told_by_number(here: Path, run: Run) -> None:
    saved(here / "a.ipynb", SETUP, "%%bash\ntorch", f"%%time\n{LOSS}", TRAIN)
    code, out, _ = run("check", "-q")
    assert code == 1
    assert "a.ipynb:cell 4:4:12: error[MP301]" in out
    assert "4 |     return torch.log(p + 1e-8)  # na\u00efve" in out
    assert "called from here (a.ipynb:cell 5:2:11)" in out


def test_a_frame_ends_with_its_cell_and_shows_magics(here: Path, run: Run) -> None:
    saved(here / "a.ipynb", "import torch", LOSS, TRAIN + "\n!nvidia-smi")
    _, out, _ = run("check", "-q", "--select", "MP301")
    frame = [line for line in out.splitlines() if re.match(r"\d* +\||\d+ \|", line)]
    assert [line[0] for line in frame] == [" ", "2", "3", " "]
    text = 'import torch\n%time\nx = torch.autocast("cuda", True)\n!ls'
    saved(here / "a.ipynb", text)
    _, out, _ = run("check", "-q", "--confidence", "possible")
    assert "2 | %time" in out
    assert "4 | !ls" in out


def test_syntax_errors_name_their_cell(here: Path, run: Run) -> None:
    saved(here / "a.ipynb", "import torch", "x = 1\ny = = 2")
    _, out, _ = run("check", "-q", "--output-format", "concise")
    assert out.startswith("a.ipynb:cell 3:2:5: MP002 ")


def test_formats_tell_cells(here: Path, run: Run) -> None:
    path = saved(here / "a.ipynb", "import torch", LOSS, TRAIN)
    lines = path.read_text("utf8").splitlines()
    (row,) = (row for row, line in enumerate(lines, 1) if "1e-8" in line)
    column = lines[row - 1].index("torch.log") + 1

    def said(name: str) -> str:
        return run("check", "-q", "--select", "MP301", "--output-format", name)[1]

    (found,) = json.loads(said("json"))
    assert (found["cell"], found["location"]) == (3, {"row": 3, "column": 12})
    places = [(link["cell"], link["location"]["row"]) for link in found["evidence"]]
    assert places == [(3, 3), (3, 2), (4, 1), (4, 2)]
    (edit,) = found["fix"]["edits"]
    assert (edit["cell"], edit["location"], edit["content"]) == (
        3,
        {"row": 2, "column": 11},
        "float().",
    )
    (result,) = json.loads(said("sarif"))["runs"][0]["results"]
    (place,) = result["locations"]
    region = place["physicalLocation"]["region"]
    assert (region["startLine"], region["startColumn"]) == (row, column)
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "a.ipynb:cell 3:3:12"
    (change,) = result["fixes"][0]["artifactChanges"]
    (new,) = change["replacements"]
    at = new["deletedRegion"]
    line = lines[at["startLine"] - 1]
    fixed = line[: at["startColumn"] - 1] + new["insertedContent"]["text"]
    assert json.loads((fixed + line[at["endColumn"] - 1 :]).rstrip(",")) in FIXED
    assert f"file=a.ipynb,line={row}," in said("github")
    assert "in cell 3, line 3" in said("github")
    (issue,) = json.loads(said("gitlab"))
    assert issue["location"]["positions"]["begin"] == {"line": row, "column": column}
    case = XML.fromstring(said("junit")).find(".//testcase")
    assert case is not None
    assert case.attrib["name"] == "MP301 eps-before-log cell 3:3:12"
    assert "| a.ipynb:cell 3:3 |" in said("markdown")
    page = said("html")
    assert "cell 3:3:12</span>" in page  # over the finding
    assert "(<code>a.ipynb:cell 4:2:" in page and ">a.ipynb:cell 3:3:12</a>" in page


def test_explain_at_takes_places_as_reports_write_them(here: Path, run: Run) -> None:
    saved(here / "a.ipynb", "import torch", LOSS, TRAIN)
    code, out, _ = run("explain-at", "a.ipynb:cell 3:3:12", "--no-cache")
    assert code == 0
    assert out.startswith("a.ipynb:cell 3:3 in loss()\n  autocast: float16, or off (as written")
    for place, what in (("5:1", "no cell 5; the Python cells are 2, 3, 4"), ("3:9", "has 3 lines")):
        code, _, err = run("explain-at", f"a.ipynb:cell {place}", "--no-cache")
        assert code == 2
        assert what in err
    assert run("explain-at", "a.ipynb:3", "--no-cache")[0] == 2


# projects


def test_notebooks_are_found_like_other_files(here: Path, run: Run) -> None:
    for name in ("a.ipynb", "lib/b.ipynb", ".ipynb_checkpoints/a-checkpoint.ipynb", "old/c.ipynb"):
        saved(here / name, "import torch", LOSS, TRAIN)
    (here / ".gitignore").write_text("old\n")
    _, out, _ = run("check", "--show-files")
    assert [Path(line).name for line in out.splitlines()] == ["a.ipynb", "b.ipynb"]
    assert run("check", "-q", "--extend-exclude", "*.ipynb")[:2] == (0, "")
    assert run("check", "-q", "--force-exclude", "--extend-exclude", "lib", "lib/b.ipynb")[0] == 0
    (here / "precision-lint.toml").write_text('per-file-ignores = { "*.ipynb" = ["MP301"] }\n')
    assert "MP301" not in run("check", "-q")[1]


def test_a_notebook_speaks_of_other_files(here: Path, run: Run) -> None:
    saved(here / "a.ipynb", "import torch\nfrom model import loss", f"%%time\n{TRAIN}")
    (here / "model.py").write_text(f"import torch\n\n{LOSS}\n", "utf8")
    code, out, _ = run("check", "-q", "model.py")
    assert code == 1
    assert "(a.ipynb:cell 3:3:11)" in out


def test_comments_silence_in_cells(here: Path, run: Run) -> None:
    text = LOSS.replace("# na\u00efve", "# noqa: MP301")
    path = saved(here / "a.ipynb", "import torch", text, TRAIN)
    assert run("check", "-q")[:2] == (0, "")
    saved(path, "# precision-lint: ignore-file[MP301]\nimport torch", LOSS, TRAIN)
    assert run("check", "-q")[:2] == (0, "")


def test_baselines_hold_findings_of_notebooks(here: Path, run: Run) -> None:
    path = saved(here / "a.ipynb", "import torch", LOSS, TRAIN)
    assert cli.main(["baseline", "create", "--no-cache"]) == 0
    saved(path, "import torch", "pass", LOSS, TRAIN)
    base = ("check", "--baseline", "precision-lint-baseline.json")
    assert run(*base)[0] == 0


# fixes


def test_a_fix_changes_its_line_only(here: Path, run: Run) -> None:
    path = saved(here / "a.ipynb", SETUP, "%%bash\nls", LOSS, TRAIN)
    before = path.read_bytes()
    code, _, _ = run("check", "-q", "--fix")
    assert code == 0
    after = path.read_bytes()
    assert after == before.replace(b"p = x.sigmoid", b"p = x.float().sigmoid")
    assert run("check", "-q", "--fix")[0] == 0
    assert path.read_bytes() == after
    nbformat.validate(nbformat.read(path, 4))


@pytest.mark.parametrize("indent", [None, 0, 1, "\t"])
@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("one_string", [False, True])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_style_of_the_json_stays(
    here: Path, run: Run, indent: Any, ascii_only: bool, one_string: bool, newline: str
) -> None:
    book = made(SETUP, LOSS, TRAIN)
    for cell in book.cells if not one_string else ():
        cell["source"] = cell["source"].splitlines(keepends=True)
    text = json.dumps(book, indent=indent, ensure_ascii=ascii_only, sort_keys=True)
    text = "\ufeff" + text.replace("\n", newline)
    path = here / "a.ipynb"
    path.write_bytes(text.encode())
    assert run("check", "-q", "--fix")[0] == 0
    expected = text.replace("p = x.sigmoid", "p = x.float().sigmoid")
    assert path.read_bytes() == expected.encode()


def test_a_diff_shows_the_cells(here: Path, run: Run) -> None:
    saved(here / "a.ipynb", "import torch", f"%%time\n{LOSS}", TRAIN)
    before = (here / "a.ipynb").read_bytes()
    code, out, _ = run("check", "--diff")
    assert code == 1
    assert out.splitlines()[:2] == ["--- a.ipynb:cell 3", "+++ a.ipynb:cell 3"]
    assert "\n-    p = x.sigmoid()\n+    p = x.float().sigmoid()\n" in out
    assert "\n %%time\n" in out
    assert (here / "a.ipynb").read_bytes() == before


def test_stdin_is_written_back_as_a_notebook(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(here / "a.ipynb", "import torch", LOSS, TRAIN)
    text = path.read_text("utf8")
    with path.open("rb") as data:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": data}))
        code, out, _ = run("check", "-q", "--fix", "--stdin-filename", "b.ipynb", "-")
    assert code == 0
    assert out == text.replace("p = x.sigmoid", "p = x.float().sigmoid")


def test_add_noqa_inserts_lines_into_cells(here: Path, run: Run) -> None:
    path = saved(here / "a.ipynb", "import torch", LOSS, TRAIN)
    before = nbformat.read(path, 4)
    assert run("check", "--add-noqa=later")[0] == 0
    after = nbformat.read(path, 4)
    comment = "    # precision-lint: ignore[MP301] later\n"
    before.cells[2].source = before.cells[2].source.replace("    return", f"{comment}    return")
    assert after == before
    assert '"    # precision-lint: ignore[MP301] later\\n",\n' in path.read_text("utf8")
    assert run("check", "-q")[0] == 0


def test_an_unused_suppression_alone_in_a_last_line_is_removed(here: Path, run: Run) -> None:
    path = saved(here / "a.ipynb", "import torch\nx = 1\n# precision-lint: ignore[MP301]", "y = 2")
    assert run("check", "-q", "--fix")[0] == 0
    assert nbformat.read(path, 4).cells[1].source == "import torch\nx = 1"


STYLES: list[Callable[[str], Any]] = [
    str,
    lambda cell: re.findall(r"[^\n]*\n|[^\n]+", cell),
    lambda cell: [cell],
]
CHARACTERS = 'ab\n"\\\t/\u00e9\U0001f600 '


@settings(max_examples=300, deadline=None)
@given(
    cells=st.lists(st.text(CHARACTERS, max_size=12), min_size=1, max_size=3),
    style=st.sampled_from(range(len(STYLES))),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    data=st.data(),
)
def test_an_edit_of_a_cell_is_an_edit_of_its_string(
    cells: list[str], style: int, indent: int | None, ascii_only: bool, data: st.DataObject
) -> None:
    table = [{"cell_type": "code", "source": STYLES[style](cell)} for cell in cells]
    text = json.dumps({"é": "é", "cells": table}, indent=indent, ensure_ascii=ascii_only)
    found = notebook.read(text)
    chosen = data.draw(st.sampled_from(found.cells))
    place = st.integers(chosen.start, chosen.end)
    start, end = sorted((data.draw(place), data.draw(place)))
    new = data.draw(st.text(CHARACTERS, max_size=5))
    if found.refuses([Edit(start, end, new)]):
        return  # part of what looks like a magic
    after = notebook.read(text).edited([Edit(start, end, new)])
    index = chosen.number - 1
    source_of = [_joined(cell["source"]) for cell in json.loads(after.raw)["cells"]]
    cell = cells[index]
    changed = cell[: start - chosen.start] + new + cell[end - chosen.start :]
    assert source_of == [*cells[:index], changed, *cells[index + 1 :]]
    if style == 1:
        assert json.loads(after.raw)["cells"][index]["source"] == STYLES[1](changed) or not changed
    shell = re.compile(r'"source": ("(?:\\.|[^"\\])*"|\[[^\[\]]*\])')
    assert shell.sub("", after.raw) == shell.sub("", text)


def _joined(value: Any) -> str:
    return value if isinstance(value, str) else "".join(value)


@pytest.mark.parametrize(
    ("start", "end", "text", "expected"),
    [
        (0, 3, "", ["b = 2"]),
        (3, 8, "", ["a\n", ""]),
        (3, 3, "c\n", ["a\n", "c\n", "b = 2"]),
        (8, 8, "\nc", ["a\n", "b = 2\n", "c"]),
    ],
)
def test_lists_stay_lists_of_lines(start: int, end: int, text: str, expected: list[str]) -> None:
    book = notebook.read(raw(["a\n", "b = 2"]))
    shift = -1  # the first line is two characters long
    after = book.edited([Edit(max(start + shift, 0), end + shift, text)])
    (cell,) = json.loads(after.raw)["cells"]
    assert "".join(cell["source"]) == "".join(expected)
    assert cell["source"] == [line for line in expected if line]


def test_edits_that_no_cell_holds_are_refused() -> None:
    book = notebook.read(raw("a = !ls", "%%time\nb = 1", "c"))
    assert book.text == "a = _#s\n_#time\nb = 1\nc\n"
    assert book.refuses([Edit(0, 10, "x")]) == "it would reach across cells"
    assert book.refuses([Edit(4, 5, "x")]) == "it would change a magic"
    assert book.refuses([Edit(21, 24, "x")])
    assert book.refuses([Edit(0, 1, "x"), Edit(15, 16, "y")]) == ""
    # code that is put before a cell goes behind its magic
    assert book.edited([Edit(8, 8, "import x\n")]).shown == "a = !ls\n%%time\nimport x\nb = 1\nc\n"


def test_places_of_characters_in_the_json() -> None:
    text = raw(["\u00e9\U0001f600a\n", "b"], "\ud800c")
    book = notebook.read(text)
    assert [text[book.offset(at)] for at in (2, 4, 7)] == ["a", "b", "c"]
