"""The language server, as a client over standard input and output sees it."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import pytest_lsp
from lsprotocol import types
from pytest_lsp import LanguageClient

from precision_lint.lsp import server
from precision_lint.lsp.session import Session

LONG = 120
"""Seconds after which a server that says nothing counts as broken."""
SERVER = [sys.executable, "-m", "precision_lint", "lsp", "--stdio"]
LOSS = """\
import torch


def loss(x):
    p = x.sigmoid()
    return torch.log(p + 1e-8).mean()  # \U0001f600
"""
TRAIN = """\
import torch
from loss import loss


def step(model, x):
    with torch.autocast("cuda", dtype=torch.float16):
        return loss(model(x).half())
"""


def copies(count: int) -> str:
    """The function of ``LOSS`` by other names."""
    text = LOSS.partition("def ")[2]
    return "".join("def " + text.replace("loss", f"loss{n}", 1) for n in range(count))


def at(text: str, what: str, units: Callable[[str], int] = len) -> types.Position:
    """Where something starts in a text."""
    before = text[: text.index(what)]
    return types.Position(before.count("\n"), units(before.rpartition("\n")[2]))


def utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


class Editor:
    """An editor that has files of one project open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.client: LanguageClient = pytest_lsp.make_test_lsp_client()
        self.registered: list[types.Registration] = []
        self._versions: dict[str, int] = {}
        self._texts: dict[str, str] = {}

        def register(params: types.RegistrationParams) -> None:
            self.registered += params.registrations

        self.client.feature(types.CLIENT_REGISTER_CAPABILITY)(register)

    async def start(
        self, capabilities: types.ClientCapabilities | None = None, **options: Any
    ) -> types.InitializeResult:
        folder = types.WorkspaceFolder(self.root.as_uri(), self.root.name)
        await self.client.start_io(*SERVER, cwd=self.root)
        asked = capabilities or pytest_lsp.client_capabilities("visual-studio-code")
        found: types.InitializeResult = await self.client.initialize_session(
            types.InitializeParams(
                asked, root_uri=self.root.as_uri(), workspace_folders=[folder], **options
            )
        )
        return found

    def uri(self, name: str) -> str:
        return (self.root / name).resolve().as_uri()

    def open(self, name: str, text: str, language: str = "python") -> str:
        uri = self.uri(name)
        self._versions[uri], self._texts[uri] = 1, text
        self.client.text_document_did_open(
            types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, language, 1, text))
        )
        return uri

    def edit(self, name: str, text: str) -> int:
        uri = self.uri(name)
        self._versions[uri] += 1
        self._texts[uri] = text
        document = types.VersionedTextDocumentIdentifier(self._versions[uri], uri)
        whole = types.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [whole]))
        return self._versions[uri]

    def save(self, name: str, text: str) -> None:
        (self.root / name).write_text(text, "utf8")
        identifier = types.TextDocumentIdentifier(self.uri(name))
        self.client.text_document_did_save(types.DidSaveTextDocumentParams(identifier))

    async def codes(self, name: str, *expected: str) -> list[types.Diagnostic]:
        """What is reported of a file, once its codes are those expected."""
        uri = self.uri(name)

        def said() -> bool:
            found = self.client.diagnostics.get(uri)
            return found is not None and sorted(str(d.code) for d in found) == sorted(expected)

        await until(said, lambda: f"{self.client.diagnostics.get(uri)}, not {expected}")
        return list(self.client.diagnostics[uri])

    async def actions(
        self, name: str, where: types.Position, *only: str
    ) -> dict[str, types.CodeAction]:
        """The actions at a place of a file, by their titles."""
        context = types.CodeActionContext(
            self.client.diagnostics.get(self.uri(name), ()), only=list(only) or None
        )
        found = await self.client.text_document_code_action_async(
            types.CodeActionParams(
                types.TextDocumentIdentifier(self.uri(name)), types.Range(where, where), context
            )
        )
        return {one.title: one for one in found or () if isinstance(one, types.CodeAction)}

    async def hover(self, name: str, where: types.Position) -> str:
        found = await self.client.text_document_hover_async(
            types.HoverParams(types.TextDocumentIdentifier(self.uri(name)), where)
        )
        if found is None:
            return ""
        assert isinstance(found.contents, types.MarkupContent)
        return found.contents.value

    def applied(self, name: str, action: types.CodeAction, codec: str = "utf-16-le") -> str:
        """The text of a file after an action."""
        assert action.edit is not None
        uri, text = self.uri(name), self._texts[self.uri(name)]
        edits = (action.edit.changes or {}).get(uri, [])
        for change in action.edit.document_changes or ():
            assert isinstance(change, types.TextDocumentEdit)
            assert change.text_document.version == self._versions[uri]
            edits = [one for one in change.edits if isinstance(one, types.TextEdit)]
        lines = text.split("\n")

        def offset(place: types.Position) -> int:
            size = {"utf-8": 1, "utf-16-le": 2}[codec]
            line = lines[place.line].encode(codec) if place.line < len(lines) else b""
            head = line[: place.character * size].decode(codec)
            return sum(len(one) + 1 for one in lines[: place.line]) + len(head)

        for edit in sorted(edits, key=lambda one: offset(one.range.start), reverse=True):
            text = text[: offset(edit.range.start)] + edit.new_text + text[offset(edit.range.end) :]
        return text


async def until(done: Callable[[], bool], what: Callable[[], str]) -> None:
    for _ in range(LONG * 20):
        if done():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(what())


def talking(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test with an editor on a project of two files, in a loop of its own."""

    def run(tmp_path: Path, **others: Any) -> None:
        async def talk() -> None:
            root = tmp_path / "a pr\u00f6ject"
            root.mkdir()
            (root / "setup.cfg").touch()
            (root / "loss.py").write_text(LOSS, "utf8")
            (root / "train.py").write_text(TRAIN)
            editor = Editor(root)
            await test(editor, **others)
            await editor.client.shutdown_session()

        asyncio.run(asyncio.wait_for(talk(), 5 * LONG))

    parameters = [
        inspect.Parameter("tmp_path", inspect.Parameter.KEYWORD_ONLY),
        *(
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for one in inspect.signature(test).parameters.values()
            if one.name != "editor"
        ),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__name__ = test.__name__
    return run


@talking
async def test_findings_of_the_unsaved_text(editor: Editor) -> None:
    await editor.start()
    editor.open("loss.py", LOSS)
    (found,) = await editor.codes("loss.py", "MP301")
    assert found.range == types.Range(at(LOSS, "torch.log"), at(LOSS, ".mean"))
    assert (found.source, found.severity) == ("precision-lint", types.DiagnosticSeverity.Error)
    assert found.message.startswith("epsilon 1e-08 before log rounds to 0")
    assert found.code_description is not None
    assert found.code_description.href.endswith("mp301_eps_before_log.py")
    related = found.related_information
    assert related is not None
    names = [Path(link.location.uri).name for link in related]
    assert names == ["loss.py", "loss.py", "train.py", "train.py", "loss.py"]
    assert related[2].location.uri == editor.uri("train.py")
    assert related[2].location.range.start == at(TRAIN, "torch.autocast")
    assert related[3].location.range.start == at(TRAIN, "loss(model")
    assert (
        related[4].message
        == "assumed: the object that is called here is a model and returns tensors of its dtype"
    )

    editor.edit("loss.py", LOSS.replace("x.sigmoid", "x.float().sigmoid"))
    await editor.codes("loss.py")
    editor.edit("loss.py", "# \u00e9\n" + LOSS)
    (found,) = await editor.codes("loss.py", "MP301")
    assert found.range.start.line == 6
    assert (editor.root / "loss.py").read_text("utf8") == LOSS
    editor.edit("loss.py", "(\n" + LOSS)  # as somebody types
    kept = {found.code: found for found in await editor.codes("loss.py", "MP002", "MP301")}
    assert kept["MP301"].range.start.line == 6


def found(session: Session, path: Path, text: str) -> list[tuple[str, int]]:
    return [(one.code, one.start.row) for one in session.lint(path, text).diagnostics]


def test_a_file_stands_alone_until_its_project_is_read(tmp_path: Path) -> None:
    path = tmp_path / "loss.py"
    path.write_text(LOSS)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "setup.cfg").touch()
    own = f"{LOSS}\n\ndef half(x):\n    return torch.log(x.half().sigmoid() + 1e-8)\n"
    session = Session()
    assert found(session, path, own) == [("MP301", 10)]
    assert not session.is_known(path)
    session.learn(path)
    assert found(session, path, own) == [("MP301", 6), ("MP301", 10)]


def test_findings_outlast_a_text_that_does_not_parse(tmp_path: Path) -> None:
    path = tmp_path / "loss.py"
    session = Session()
    line = "    a = torch.log(x.half().sigmoid() + 1e-8)\n"
    text = f"import torch\n\ndef half(x):\n{line}    b = x\n{line}    return a\n"
    whole = [("MP301", 4), ("MP301", 6)]
    assert found(session, path, text) == whole
    cases = {
        text.replace("b = x", "b = f(x"): [4, 6],
        text.replace("b = x", "b = (\n"): [4, 7],
        text.replace("    b = x\n", "(\n\n\n"): [4, 8],
        text.replace("import torch\n", "import torch, (\n"): [4, 6],
        text.replace(line, f"(({line}", 1): [6],
        f"({text}": [4, 6],
        "torch (": [],
    }
    for broken, rows in cases.items():
        said = found(session, path, broken)
        assert said[0][0] == "MP002" and said[1:] == [("MP301", row) for row in rows], broken
        kept = session.lint(path, broken).diagnostics[1:]
        assert all(one.fix is None for one in kept)
    assert found(session, path, text) == whole
    session.close(path)
    assert [code for code, _ in found(session, path, f"({text}")] == ["MP002"]


@talking
async def test_only_the_newest_of_many_edits_counts(editor: Editor) -> None:
    await editor.start()
    editor.open("loss.py", LOSS)
    for row in range(30):
        editor.edit("loss.py", "\n" * row + LOSS)
    version = editor.edit("loss.py", LOSS.replace("1e-8", "1e-4"))
    await editor.codes("loss.py")
    assert version == 32
    await asyncio.sleep(1)  # nothing older may come after it
    assert list(editor.client.diagnostics[editor.uri("loss.py")]) == []


@talking
async def test_fixes_and_suppressions_are_offered(editor: Editor) -> None:
    await editor.start()
    editor.open("loss.py", LOSS)
    await editor.codes("loss.py", "MP301")
    where = at(LOSS, "log(")
    found = await editor.actions("loss.py", where)
    fix, assume, suppress, every = found.values()
    assert fix.title == "MP301: upcast the guarded value (safe fix)"
    assert (fix.kind, fix.is_preferred) == ("quickfix", True)
    assert [d.code for d in fix.diagnostics or ()] == ["MP301"]
    fixed = LOSS.replace("x.sigmoid", "x.float().sigmoid")
    assert editor.applied("loss.py", fix) == fixed
    assert assume.title == "Assume that p is float32"
    assert (assume.kind, assume.is_preferred) == ("quickfix", None)
    assert [d.code for d in assume.diagnostics or ()] == ["MP301"]
    fact = "    # precision-lint: assume p float32\n"
    stated = LOSS.replace("    return", f"{fact}    return")
    assert editor.applied("loss.py", assume) == stated
    assert suppress.title == "Suppress MP301 here"
    comment = "    # precision-lint: ignore[MP301]\n"
    silenced = LOSS.replace("    return", f"{comment}    return")
    assert editor.applied("loss.py", suppress) == silenced
    assert every.kind == "source.fixAll.precision-lint"
    resolved = await editor.client.code_action_resolve_async(every)
    assert editor.applied("loss.py", resolved) == fixed

    assert await editor.actions("loss.py", at(LOSS, "import torch"), "quickfix") == {}
    only = await editor.actions("loss.py", types.Position(0, 0), "source.fixAll")
    assert [one.kind for one in only.values()] == ["source.fixAll.precision-lint"]
    assert await editor.actions("loss.py", where, "refactor") == {}
    editor.edit("loss.py", silenced)
    await editor.codes("loss.py")
    editor.edit("loss.py", stated)
    await editor.codes("loss.py")
    editor.edit("loss.py", fixed)
    await editor.codes("loss.py")
    assert await editor.actions("loss.py", where) == {}


@talking
async def test_a_file_closed_while_its_fixes_are_worked_out(editor: Editor) -> None:
    await editor.start(initialization_options={"settings": {"precision": ["float16"]}})
    text = LOSS + copies(30)  # takes a second
    editor.open("loss.py", text)
    await editor.codes("loss.py", *["MP301"] * 31)
    [every] = (await editor.actions("loss.py", at(LOSS, "log("), "source.fixAll")).values()
    asked = asyncio.ensure_future(editor.client.code_action_resolve_async(every))
    await asyncio.sleep(0.1)  # the server is at it
    identifier = types.TextDocumentIdentifier(editor.uri("loss.py"))
    editor.client.text_document_did_close(types.DidCloseTextDocumentParams(identifier))
    assert (await asked).title == every.title  # and no error


@talking
async def test_unsafe_fixes_say_so_and_stay_out_of_fix_all(editor: Editor) -> None:
    await editor.start(initialization_options={"settings": {"confidence": "possible"}})
    (editor.root / "train.py").unlink()
    editor.open("loss.py", LOSS)
    await editor.codes("loss.py", "MP301")
    found = await editor.actions("loss.py", at(LOSS, "log("))
    assert next(iter(found)).partition(" (")[2].startswith("unsafe fix: ")
    assert {one.kind for one in found.values()} == {"quickfix"}
    assert not any(one.is_preferred for one in found.values())


@talking
async def test_hover_says_what_is_known(editor: Editor) -> None:
    await editor.start()
    editor.open("loss.py", LOSS)
    await editor.codes("loss.py", "MP301")
    said = await editor.hover("loss.py", at(LOSS, "p + 1e-8"))
    assert "**MP301** eps-before-log (likely): epsilon 1e-08" in said
    assert "Fix: upcast the guarded value (safe)" in said
    assert "`p`: tensor, float16, in [0, 1]" in said
    assert "- if the object that is called here is a model and returns tensors of its dtype" in said
    assert "autocast: float16" in said
    said = await editor.hover("loss.py", at(LOSS, "x.sigmoid"))
    assert "MP301" not in said
    assert "`x`: " in said
    assert await editor.hover("loss.py", types.Position(1, 0)) == ""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32", None])
@talking
async def test_positions_are_counted_as_the_client_does(
    editor: Editor, encoding: str | None
) -> None:
    capabilities = pytest_lsp.client_capabilities("visual-studio-code")
    general = types.GeneralClientCapabilities()
    if encoding:
        general.position_encodings = [types.PositionEncodingKind(encoding)]
    capabilities.general = general
    result = await editor.start(capabilities)
    assert result.capabilities.position_encoding == (encoding or "utf-16")
    text = LOSS.replace("torch.log(p", '("\U0001f600\u00e9", torch.log(p').replace(
        ".mean()", ")[1].mean()"
    )
    editor.open("loss.py", text)
    (found,) = await editor.codes("loss.py", "MP301")
    sizes: dict[str, Callable[[str], int]] = {
        "utf-8": lambda part: len(part.encode()),
        "utf-32": len,
    }
    units = sizes.get(encoding or "", utf16)
    assert found.range.start == at(text, "torch.log", units)
    assert "`p`" in await editor.hover("loss.py", at(text, "p + 1e-8", units))


@talking
async def test_saved_files_and_configurations_are_read_again(editor: Editor) -> None:
    await editor.start()
    editor.open("loss.py", LOSS)
    editor.open("train.py", TRAIN)
    await editor.codes("loss.py", "MP301")
    editor.save("train.py", "import torch\n")
    await editor.codes("loss.py")
    editor.save("train.py", TRAIN)
    await editor.codes("loss.py", "MP301")

    config = editor.root / "precision-lint.toml"
    config.write_text('ignore = ["MP301"]\n')
    created = types.FileEvent(config.as_uri(), types.FileChangeType.Created)
    editor.client.workspace_did_change_watched_files(types.DidChangeWatchedFilesParams([created]))
    await editor.codes("loss.py")
    config.write_text('ignor = ["MP301"]\n')
    editor.client.workspace_did_change_watched_files(types.DidChangeWatchedFilesParams([created]))
    await until(lambda: bool(editor.client.messages), lambda: "no message")
    assert 'unknown key "ignor"; did you mean "ignore"?' in editor.client.messages[0].message
    config.unlink()
    editor.client.workspace_did_change_watched_files(types.DidChangeWatchedFilesParams([created]))
    await editor.codes("loss.py", "MP301")
    methods = {one.method for one in editor.registered}
    assert methods >= {types.WORKSPACE_DID_CHANGE_WATCHED_FILES}


@talking
async def test_settings_of_the_client(editor: Editor) -> None:
    await editor.start()
    editor.open("loss.py", LOSS)
    await editor.codes("loss.py", "MP301")

    def configure(**settings: Any) -> None:
        editor.client.workspace_did_change_configuration(
            types.DidChangeConfigurationParams({"precision-lint": settings})
        )

    configure(ignore=["MP301"])
    await editor.codes("loss.py")
    configure(select=["MP3"])
    await editor.codes("loss.py", "MP301")
    configure(select=["MPX"])
    await until(lambda: bool(editor.client.messages), lambda: "no message")
    assert 'unknown rule "MPX"' in editor.client.messages[-1].message
    configure(**{"extend-exclude": ["loss.py"]})
    await editor.codes("loss.py")


@talking
async def test_reading_a_large_project_shows_progress(
    editor: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This one counts as large from the first moment on."""
    code = "from precision_lint.lsp import server; server.PATIENCE = 0\n"
    code += "from precision_lint.cli import main; main(['lsp', '--stdio'])"
    monkeypatch.setitem(globals(), "SERVER", [sys.executable, "-c", code])
    functions = "".join(f"def f{n}(x):\n    return torch.relu(x)\n\n\n" for n in range(100))
    for number in range(80):
        (editor.root / f"m{number}.py").write_text(
            f"import torch\nimport loss  # {number}\n\n\n{functions}"
        )
    await editor.start()
    editor.open("loss.py", LOSS)
    await editor.codes("loss.py", "MP301")

    def kinds() -> list[str]:
        found = editor.client.progress_reports.values()
        return [type(one).__name__ for some in found for one in some]

    ends = ["WorkDoneProgressBegin", "WorkDoneProgressEnd"]
    await until(lambda: kinds() == ends, lambda: str(kinds()))


@talking
async def test_closed_and_foreign_documents(editor: Editor) -> None:
    await editor.start()
    editor.open("loss.py", LOSS)
    await editor.codes("loss.py", "MP301")
    identifier = types.TextDocumentIdentifier(editor.uri("loss.py"))
    editor.client.text_document_did_close(types.DidCloseTextDocumentParams(identifier))
    await editor.codes("loss.py")
    editor.open("notes.md", LOSS, "markdown")
    assert await editor.hover("notes.md", at(LOSS, "p + 1e-8")) == ""
    editor.open("new.py", LOSS + TRAIN.replace("from loss import loss\n", ""))  # not saved yet
    await editor.codes("new.py", "MP301")
    assert editor.uri("notes.md") not in editor.client.diagnostics


@talking
async def test_each_folder_is_a_project_of_its_own(editor: Editor) -> None:
    other = editor.root.parent / "other"
    other.mkdir()
    (other / "loss.py").write_text(LOSS, "utf8")
    await editor.start()
    editor.open("../other/loss.py", LOSS)
    editor.open("loss.py", LOSS)
    await editor.codes("loss.py", "MP301")
    await editor.codes("../other/loss.py")
    (other / "train.py").write_text(TRAIN)
    added = types.WorkspaceFolder(other.as_uri(), "other")
    editor.client.workspace_did_change_workspace_folders(
        types.DidChangeWorkspaceFoldersParams(types.WorkspaceFoldersChangeEvent([added], []))
    )
    await editor.codes("../other/loss.py", "MP301")


@talking
async def test_a_request_that_is_cancelled_is_answered(editor: Editor) -> None:
    await editor.start()
    editor.open("loss.py", LOSS + copies(39))
    hovers = [
        asyncio.ensure_future(editor.hover("loss.py", at(LOSS, "p + 1e-8"))) for _ in range(5)
    ]
    await asyncio.sleep(0)
    protocol = editor.client.protocol
    pending = list(protocol._request_futures)
    assert len(pending) == 5
    for request in pending:
        protocol.notify("$/cancelRequest", types.CancelParams(id=request))
    answers = await asyncio.wait_for(asyncio.gather(*hovers, return_exceptions=True), LONG)
    assert len(answers) == 5
    assert "`p`" in await editor.hover("loss.py", at(LOSS, "p + 1e-8"))  # it still answers


@pytest.mark.skipif(shutil.which("nvim") is None, reason="Neovim is not installed")
def test_in_neovim(tmp_path: Path) -> None:
    """The script that docs/integrations.md shows, in the editor itself."""
    (tmp_path / "setup.cfg").touch()
    (tmp_path / "loss.py").write_text(LOSS, "utf8")
    (tmp_path / "train.py").write_text(TRAIN)
    script = Path(__file__).parent.parent / "examples" / "editors" / "neovim_check.lua"
    bin = tmp_path / "bin"
    bin.mkdir()
    command = bin / "precision-lint"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m precision_lint "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        ["nvim", "--headless", "-u", "NONE", "loss.py", "-S", str(script)],
        capture_output=True,
        text=True,
        timeout=3 * LONG,
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}"},
    )
    said = (done.stderr + done.stdout).splitlines()
    assert (
        "6:12 MP301 epsilon 1e-08 before log rounds to 0 in float16, so log of 0 gives -inf" in said
    )
    assert "action: MP301: compute in float32: upcast x (safe fix)" in said
    assert "after the fix:     p = x.float().sigmoid()" in said
    assert said[-1].startswith("7:12 MP301 ")


def test_without_pygls_it_says_what_to_install(tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import importlib.util, sys
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *a: None if name == "pygls" else find(name, *a)
        from precision_lint.cli import main
        sys.exit(main(["lsp"]))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr == "lsp needs pygls; pip install 'precision-lint[lsp]'\n"
    assert done.stdout == ""


def test_memory_is_searched_behind_every_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    monkeypatch.setattr(server, "REST", 0)
    monkeypatch.setattr(server, "ALL", 2)
    monkeypatch.setattr(gc, "collect", searched.append)
    made = server.Server()

    def answer() -> int:
        searched.append(0)
        return 1

    def broken() -> int:
        raise ValueError

    async def ask() -> None:
        for work in (answer, broken):
            await made._ask(Path("m.py"), "", work)
            await asyncio.sleep(0.1)

    asyncio.run(ask())
    assert searched == [0, 1, 2]
