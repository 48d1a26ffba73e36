"""The documentation site: it builds, every rule has its page, and what it shows was executed."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path

import click
import pytest

from precision_lint import registry
from precision_lint.cli import cli
from precision_lint.domains import assumptions

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CODES = [*registry.ENGINE_CODES, *registry.rules()]


class Links(HTMLParser):
    """Addresses that a page leads to, and those that it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.hrefs: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "href" and tag == "a":
                self.hrefs.add(str(value))
            elif name in ("src", "href"):
                self.loaded.add(str(value))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; MkDocs refuses a link that leads nowhere and a page outside of the navigation."""
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_every_rule_is_in_the_navigation(site: Path) -> None:
    pages = {path.parent.name.upper() for path in site.glob("rules/mp*/index.html")}
    assert pages == set(CODES)
    for page in ("index.html", "rules/index.html"):
        found = Links((site / page).read_text("utf8")).hrefs
        prefix = "" if "/" in page else "rules/"
        assert {f"{prefix}{code.lower()}/" for code in CODES} <= found, page


@pytest.mark.parametrize("code", ["MP004", "MP301"])
def test_a_page_is_the_docstring(site: Path, code: str) -> None:
    text = (site / "rules" / code.lower() / "index.html").read_text("utf8")
    assert f'<h1 id="{code.lower()}-' in text
    if code in registry.rules():
        for title in registry.SECTIONS:
            assert f">{title}<" in text
        assert 'href="../mp302/"' in text  # a rule that it speaks of


def test_exceptions_of_a_rule_are_folded(site: Path) -> None:
    text = (site / "rules" / "mp201" / "index.html").read_text("utf8")
    _, _, inner = text.partition('<details class="note">')
    hidden, _, after = inner.partition("</details>")
    assert "It stays silent for a sum over a head" in hidden and hidden.count("<li>") == 7
    assert "power spectrum, as before a mel filterbank" in text.partition("<details")[0]
    assert "Why it breaks" in after


def test_every_option_is_on_the_page_of_the_command_line(site: Path) -> None:
    text = (site / "cli" / "index.html").read_text("utf8")
    for name, command in cli.commands.items():
        assert f'<h2 id="{name}">' in text
        for one in command.params:
            if isinstance(one, click.Option) and not one.hidden:
                assert max(one.opts, key=len) in text, (name, one.name)


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = set()
    for path in (site / "index.html", site / "tutorial" / "index.html"):
        loaded |= Links(path.read_text("utf8")).loaded
    assert loaded and not [address for address in loaded if "//" in address]


def test_files_that_are_no_pages_are_named(site: Path) -> None:
    text = (site / "integrations" / "index.html").read_text("utf8")
    assert "examples/ci/gitlab.yml" in text and "../examples" not in text
    assert "../rules/mp301/" in Links((site / "tutorial" / "index.html").read_text("utf8")).hrefs
    assert "cli/" in Links((site / "index.html").read_text("utf8")).hrefs


@pytest.mark.parametrize("code", registry.rules())
def test_powers_in_documentation_are_code(code: str) -> None:
    doc = registry.document(registry.rules()[code])
    prose = re.sub(r"```.*?```|`[^`]*`", "", "\n".join(doc.sections.values()), flags=re.DOTALL)
    assert not re.search(r"\d\*\*", prose)  # Markdown takes it for the begin of bold letters


def test_links_lead_somewhere_in_the_repository() -> None:
    """Pages are read there, too, and not only on the site."""
    link = re.compile(r"\]\((?!\w+:)([^)#\s]+)(?:#[^)\s]*)?\)")
    pages = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), ROOT / "rules" / "README.md"]
    found = [(page, target) for page in pages for target in link.findall(page.read_text("utf8"))]
    assert found
    assert not [(page.name, to) for page, to in found if not (page.parent / to).exists()]


# what is shown


FILE = re.compile(r'^```python title="([^"]+)"\n(.+?)^```$', re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.+?)^```$", re.MULTILINE | re.DOTALL)


def test_the_tutorial(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = (DOCS / "tutorial.md").read_text("utf8")
    for name, content in FILE.findall(text):
        (tmp_path / name).write_text(content)
    assert executed(text, tmp_path) == 10


def test_the_readme(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text("utf8")
    assert len(text.splitlines()) <= 200
    _, _, example = text.partition("\n## Example\n")
    example, _, _ = example.partition("\n## ")
    [code] = re.findall(r"^```python\n(.+?)^```$", example, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(code)
    (tmp_path / "pyproject.toml").touch()
    assert executed(example, tmp_path) == 2


def executed(text: str, folder: Path) -> int:
    """How many commands a page shows; each of them gives what is shown."""
    count = 0
    for block in CONSOLE.findall(text):
        _, *commands = re.split(r"^\$ (.+)\n", block, flags=re.MULTILINE)
        for command, shown in zip(commands[::2], commands[1::2], strict=True):
            program, *words = command.split()
            module = ["-m", "precision_lint"] if program == "precision-lint" else []
            output = subprocess.run(
                [sys.executable, *module, *words],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if "--diff" in words else subprocess.DEVNULL,
                text=True,
                env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"},
            ).stdout
            assert re.fullmatch(pattern(shown), output), f"{command}\n{output}"
            count += 1
    return count


def pattern(shown: str) -> str:
    """A regular expression for output, of which ``...`` leaves out a part."""
    escaped = re.escape(shown)
    return escaped.replace(re.escape("...\n"), "(?:.*\n)*?").replace(re.escape("..."), ".*?")


def test_output_that_differs_is_seen() -> None:
    assert re.fullmatch(pattern("a\n...\nb ...: 1\n"), "a\nx\ny\nb 2+cpu: 1\n")
    assert not re.fullmatch(pattern("a\n...\nb ...: 1\n"), "a\nx\nb: 1\nc\n")


def test_the_page_of_the_library() -> None:
    text = (DOCS / "api.md").read_text("utf8")
    [code] = re.findall(r"^```python\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)
    [shown] = re.findall(r"^```text\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)
    written = io.StringIO()
    with redirect_stdout(written):
        exec(code, {})
    assert written.getvalue() == shown


def test_the_picture_shows_the_tutorial() -> None:
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("session", ROOT / "scripts" / "make_session.py")
    assert spec and spec.loader
    session = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(session)
    picture = (DOCS / "assets" / "session.svg").read_text("utf8")
    assert set(session.files()) == {"losses.py", "train.py"}
    assert len(picture) < 60_000 and "url(http" not in picture and "@font-face" not in picture
    words = re.sub(r"<[^>]+>", "", picture).replace("&#160;", " ")
    for command, _ in groupby(session.COMMANDS):
        assert f"$ {command}" in words
    for line in ("error[MP301]", "eps-before-log: proven", "Found 1 error (1 fixed, 0 remaining)."):
        assert line in words


def test_every_assumption_is_explained() -> None:
    """The page says that its table is complete."""
    page = (DOCS / "confidence.md").read_text("utf8")
    assert [text for text in assumptions.NAMES.values() if text not in page] == []
