"""The language server on pygls: documents in, diagnostics, hover and code actions out.

One thread judges buffers, another reads projects; the loop only passes messages on.  Of a document
that changes faster than it is judged only the newest text is judged, and what an older one came to
is dropped.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path, urlparse
from pygls.workspace import TextDocument

import precision_lint
from precision_lint import registry
from precision_lint.api import Confidence, Diagnostic
from precision_lint.config import NAMES, ConfigError
from precision_lint.engine import FRAMES
from precision_lint.lsp import actions, convert, hover
from precision_lint.lsp.session import Found, Session
from precision_lint.project import files
from precision_lint.source import may_hold_tensors

PAUSE = 0.03
"""Seconds that typing has to pause before a text is judged, if another was in the last ``IDLE``."""
IDLE = 0.3
SETTLE = 0.2
"""Seconds to wait after a file was saved, for tools save many at a time."""
ALONE = 0.25
"""Seconds to wait for a project; after that its files are judged one by one until it is read."""
REST = 0.1
"""Seconds after an answer in which nothing searches memory for what it left: it is sent first."""
ALL = 32
"""All memory is searched every so many times, else what is new."""
PATIENCE = 1.0
"""Seconds that a project may be read without a word."""
STACK = 64 * 2**20
"""Bytes of stack of a thread that analyses; the default of macOS is too little for deep code."""

Answer = TypeVar("Answer")
_log = logging.getLogger(__name__)


class Server:
    """Handlers of the protocol; all but the work in ``_judge`` and ``_reader`` is on the loop."""

    def __init__(self) -> None:
        self.lsp = LanguageServer(
            convert.NAME,
            precision_lint.__version__,
            # pygls would apply changes by lines that also end at form feeds, unlike the client's
            text_document_sync_kind=types.TextDocumentSyncKind.Full,
        )
        self._session = Session()
        self._judge = ThreadPoolExecutor(1, "judge")
        self._reader = ThreadPoolExecutor(1, "reader")
        self._found: dict[str, tuple[int | None, Found]] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._changed: dict[str, float] = {}
        self._learning: dict[Path, asyncio.Future[None]] = {}
        self._awaited: set[Path] = set()
        self._stale: set[Path] = set()
        self._refresh: asyncio.Task[None] | None = None
        self._tidying: asyncio.TimerHandle | None = None
        self._tidied = 0
        self._told: set[str] = set()
        self._reports: set[asyncio.Task[None]] = set()
        for method, handler in (
            (types.INITIALIZE, self.initialize),
            (types.INITIALIZED, self.initialized),
            (types.TEXT_DOCUMENT_DID_OPEN, self.opened),
            (types.TEXT_DOCUMENT_DID_CHANGE, self.changed),
            (types.TEXT_DOCUMENT_DID_SAVE, self.saved),
            (types.TEXT_DOCUMENT_DID_CLOSE, self.closed),
            (types.WORKSPACE_DID_CHANGE_CONFIGURATION, self.reconfigured),
            (types.WORKSPACE_DID_CHANGE_WATCHED_FILES, self.files_changed),
            (types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS, self.folders_changed),
            (types.TEXT_DOCUMENT_HOVER, self.hover),
            (types.CODE_ACTION_RESOLVE, self.resolve),
        ):
            self.lsp.feature(method)(functools.partial(handler))  # pygls marks what it is given
        options = types.CodeActionOptions(actions.KINDS, resolve_provider=True)
        self.lsp.feature(types.TEXT_DOCUMENT_CODE_ACTION, options)(
            functools.partial(self.code_actions)
        )

    def start(self) -> None:
        """Serve standard input and output until the client leaves."""
        sys.setrecursionlimit(max(sys.getrecursionlimit(), FRAMES))  # for both threads at once
        before = threading.stack_size(STACK)
        self._judge.submit(_warm_up)
        self._reader.submit(gc.freeze)
        threading.stack_size(before)
        self.lsp.start_io()

    # settings

    def initialize(self, params: types.InitializeParams) -> None:
        options = params.initialization_options
        if isinstance(options, Mapping):
            self._configure(options.get("settings", options))
        self._folders()

    async def initialized(self, _: types.InitializedParams) -> None:
        workspace = self.lsp.client_capabilities.workspace
        watched = workspace and workspace.did_change_watched_files
        if watched and watched.dynamic_registration:
            suffixes = (*files.SUFFIXES, *files.CONFIGS)
            globs = [*(f"**/*{suffix}" for suffix in suffixes), "**/.gitignore"]
            await self._register(
                types.WORKSPACE_DID_CHANGE_WATCHED_FILES,
                types.DidChangeWatchedFilesRegistrationOptions(
                    [types.FileSystemWatcher(glob) for glob in globs]
                ),
            )
        changes = workspace and workspace.did_change_configuration
        if changes and changes.dynamic_registration:
            options = types.DidChangeConfigurationRegistrationOptions(convert.NAME)
            await self._register(types.WORKSPACE_DID_CHANGE_CONFIGURATION, options)
        await self._pull()

    async def _register(self, method: str, options: Any) -> None:
        registration = types.Registration(f"precision-lint:{method}", method, options)
        await self.lsp.client_register_capability_async(types.RegistrationParams([registration]))

    async def _pull(self) -> None:
        """Ask the client for its settings, where it can be asked."""
        workspace = self.lsp.client_capabilities.workspace
        if workspace and workspace.configuration:
            item = types.ConfigurationItem(section=convert.NAME)
            answer = await self.lsp.workspace_configuration_async(types.ConfigurationParams([item]))
            if answer and isinstance(answer[0], Mapping) and answer[0]:
                self._configure(answer[0])
                self._check_all()

    async def reconfigured(self, params: types.DidChangeConfigurationParams) -> None:
        settings = params.settings
        if isinstance(settings, Mapping) and settings:
            self._configure(settings.get(convert.NAME, settings))
            self._check_all()
        else:
            await self._pull()

    def _configure(self, options: Any) -> None:
        try:
            self._session.configure(options if isinstance(options, Mapping) else {})
        except ConfigError as error:
            self._tell(error)

    def _tell(self, error: ConfigError) -> None:
        """Show a mistake in a configuration, once."""
        if str(error) not in self._told:
            self._told.add(str(error))
            message = types.ShowMessageParams(types.MessageType.Error, f"precision-lint: {error}")
            self.lsp.window_show_message(message)

    def folders_changed(self, _: types.DidChangeWorkspaceFoldersParams) -> None:
        self._folders()
        self._check_all()

    def _folders(self) -> None:
        folders = self.lsp.workspace.folders.values()
        paths = (to_fs_path(folder.uri) for folder in folders)
        self._session.folders([Path(path) for path in paths if path])

    # documents

    def opened(self, params: types.DidOpenTextDocumentParams) -> None:
        self._check_later(params.text_document.uri, 0)

    def changed(self, params: types.DidChangeTextDocumentParams) -> None:
        """Judge the first change after a pause at once, and those that follow when they pause."""
        uri = params.text_document.uri
        now = asyncio.get_running_loop().time()
        recent = now - self._changed.get(uri, -IDLE) < IDLE
        self._changed[uri] = now
        self._check_later(uri, PAUSE if recent else 0)

    def saved(self, params: types.DidSaveTextDocumentParams) -> None:
        self._outdated([params.text_document.uri])

    def closed(self, params: types.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        if task := self._checks.pop(uri, None):
            task.cancel()
        self._found.pop(uri, None)
        self._changed.pop(uri, None)
        if path := _path(uri):
            self._session.close(path)
        self.lsp.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    def files_changed(self, params: types.DidChangeWatchedFilesParams) -> None:
        self._outdated(change.uri for change in params.changes)

    def _outdated(self, uris: Iterable[str]) -> None:
        """Read projects, or the configuration, again some time after files changed on disk."""
        paths = {path for uri in uris if (path := _path(uri)) is not None}
        if any(path.name in NAMES for path in paths):
            self._told.clear()
            try:
                self._session.reread()
            except ConfigError as error:
                self._tell(error)
            self._check_all()
        self._stale |= paths
        if self._refresh is None and self._stale:
            self._refresh = asyncio.ensure_future(self._reread())
            self._refresh.add_done_callback(_logged)

    async def _reread(self) -> None:
        await asyncio.sleep(SETTLE)
        paths, self._stale, self._refresh = self._stale, set(), None
        by_root = {self._session.root(path): path for path in paths}
        for root, path in by_root.items():
            if root in self._learning:  # that reading may have begun before the change
                await self._learn(root, path)
            if self._session.is_known(path):
                await self._learn(root, path)
                self._check_all(root)

    async def _learn(self, root: Path, path: Path) -> None:
        """Read a project, once for all who wait for it."""
        if root not in self._learning:
            loop = asyncio.get_running_loop()
            self._learning[root] = loop.run_in_executor(self._reader, self._read, path)
            self._learning[root].add_done_callback(lambda _: self._learning.pop(root, None))
            self._told_of(root, self._learning[root])
        try:
            await asyncio.shield(self._learning[root])
        except ConfigError as error:
            self._tell(error)

    async def _learn_a_while(self, root: Path, path: Path) -> None:
        """Wait for a project that is read soon; of another one, judge files again when it is."""
        learning = asyncio.ensure_future(self._learn(root, path))
        await asyncio.wait([learning], timeout=ALONE)
        if learning.done():
            learning.result()
        elif root not in self._awaited:
            self._awaited.add(root)

            def learned(task: asyncio.Task[None]) -> None:
                self._awaited.discard(root)
                _logged(task)
                if self._session.is_known(path):
                    self._check_all(root)

            learning.add_done_callback(learned)

    def _told_of(self, root: Path, reading: asyncio.Future[None]) -> None:
        window = self.lsp.client_capabilities.window
        if window and window.work_done_progress:
            task = asyncio.ensure_future(self._progress(root, reading))
            self._reports.add(task)
            task.add_done_callback(self._reports.discard)
            task.add_done_callback(_logged)

    async def _progress(self, root: Path, reading: asyncio.Future[None]) -> None:
        """Show that a large project is being read."""
        await asyncio.wait([reading], timeout=PATIENCE)
        if reading.done():
            return
        token, progress = str(uuid.uuid4()), self.lsp.work_done_progress
        await progress.create_async(token)
        title = f"precision-lint: reading {root.name}"
        progress.begin(token, types.WorkDoneProgressBegin(title))
        await asyncio.wait([reading])
        progress.end(token, types.WorkDoneProgressEnd())

    def _read(self, path: Path) -> None:
        self._session.learn(path)
        gc.collect()  # what was known before

    def _check_all(self, root: Path | None = None) -> None:
        for uri in [document.uri for document in self.lsp.workspace.text_documents.values()]:
            path = _path(uri)
            if path is not None and (root is None or path.is_relative_to(root)):
                self._found.pop(uri, None)
                self._check_later(uri, 0)

    def _check_later(self, uri: str, delay: float) -> None:
        if task := self._checks.get(uri):
            task.cancel()
        self._checks[uri] = asyncio.ensure_future(self._check(uri, delay))
        self._checks[uri].add_done_callback(_logged)

    async def _check(self, uri: str, delay: float) -> None:
        await asyncio.sleep(delay)
        found = await self._current(uri)
        document = self._document(uri)
        if found is None or document is None or not self._is_newest(uri, document.version):
            return
        capability = self.lsp.client_capabilities.text_document
        published = capability and capability.publish_diagnostics
        related = bool(published and published.related_information)
        reports = [
            convert.diagnostic(one, found.source, self._encoding, related)
            for one in found.diagnostics
        ]
        self.lsp.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri, reports, document.version)
        )

    @property
    def _encoding(self) -> convert.Encoding:
        return self.lsp.workspace.position_encoding or types.PositionEncodingKind.Utf16

    def _document(self, uri: str) -> TextDocument | None:
        documents: Mapping[str, TextDocument] = self.lsp.workspace.text_documents
        return documents.get(unquote(uri))  # pygls' keys

    async def _current(self, uri: str) -> Found | None:
        """What the newest text of a document came to; None for what is not judged."""
        document, path = self._document(uri), _path(uri)
        if document is None or path is None or not _is_python(document, path):
            return None
        version, text = document.version, document.source
        known = self._found.get(uri)
        if known and known[0] == version and known[1].source.text == text:
            return known[1]
        found = await self._ask(path, text, functools.partial(self._session.lint, path, text))
        if found is not None:
            self._found[uri] = version, found
        return found

    async def _ask(self, path: Path, text: str, work: Callable[[], Answer]) -> Answer | None:
        """The answer of work on a buffer, when its project was read; None where it failed."""
        try:
            if _is_judged(text) and not self._session.is_known(path):
                await self._learn_a_while(self._session.root(path), path)
            return await asyncio.get_running_loop().run_in_executor(self._judge, work)
        except ConfigError as error:
            self._tell(error)
        except Exception:
            _log.exception("the analysis of %s failed", path)
        finally:
            if self._tidying is None:
                self._tidying = asyncio.get_running_loop().call_later(REST, self._tidy)
        return None

    def _tidy(self) -> None:
        """Free what was judged before; the collector is off, for it would run while a buffer is judged."""
        self._tidying = None
        self._tidied += 1
        self._judge.submit(gc.collect, 1 if self._tidied % ALL else 2)

    # questions

    async def hover(self, params: types.HoverParams) -> types.Hover | None:
        uri = params.text_document.uri
        path, found = _path(uri), await self._current(uri)
        if found is None or path is None:
            return None
        at = convert.place(found.source, params.position, self._encoding)
        here = [d for d in found.diagnostics if d.start <= at <= d.end]
        text = found.source.text
        work = functools.partial(self._session.describe, path, text, at.row)
        known = await self._ask(path, text, work) if _is_judged(text) else None
        said = hover.markdown(known, here, at)
        if not said:
            return None
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, said))

    async def code_actions(self, params: types.CodeActionParams) -> list[types.CodeAction]:
        uri, only = params.text_document.uri, params.context.only
        found = await self._current(uri)
        if found is None:
            return []
        maker = self._maker(uri, found)
        made: list[types.CodeAction] = []
        if actions.wanted(types.CodeActionKind.QuickFix, only):
            assumed = await self._assumed(uri, found, maker.within(params.range))
            made += maker.quick(params.range, params.context.diagnostics, assumed)
        if actions.wanted(actions.FIX_ALL, only) and maker.has_safe_fixes:
            after = None if self._resolves else await self._fixed(uri, found)
            made.append(maker.fix_all(after))
        return made

    async def _assumed(
        self, uri: str, found: Found, findings: Iterable[Diagnostic]
    ) -> dict[int, tuple[str, ...]]:
        """By row: names of which the dtype is assumed, where findings rest on that."""
        path, text = _path(uri), found.source.text
        if path is None or not _is_judged(text):
            return {}
        rows = {d.start.row for d in findings if d.confidence is not Confidence.CERTAIN}
        assumed: dict[int, tuple[str, ...]] = {}
        for row in sorted(rows):
            work = functools.partial(self._session.describe, path, text, row)
            known = await self._ask(path, text, work)
            if known is not None:
                assumed[row] = known.assumed
        return assumed

    async def resolve(self, action: types.CodeAction) -> types.CodeAction:
        """Work out the edit of the action that applies all fixes."""
        data = action.data if isinstance(action.data, Mapping) else {}
        uri = data.get("uri", "")
        found = await self._current(uri) if uri else None
        version = data.get("version")
        if found is None or not self._is_newest(uri, version):
            return action
        after = await self._fixed(uri, found)
        if after is not None and self._is_newest(uri, version):  # nothing changed meanwhile
            action.edit = self._maker(uri, found).fix_all(after).edit
        return action

    async def _fixed(self, uri: str, found: Found) -> str | None:
        path, text = _path(uri), found.source.text
        if path is None:
            return None
        return await self._ask(path, text, functools.partial(self._session.fixed, path, text))

    def _is_newest(self, uri: str, version: object) -> bool:
        return uri in self._found and self._found[uri][0] == version

    def _maker(self, uri: str, found: Found) -> actions.Maker:
        workspace = self.lsp.client_capabilities.workspace
        edit = workspace and workspace.workspace_edit
        versioned = bool(edit and edit.document_changes)
        return actions.Maker(uri, self._found[uri][0], found, self._encoding, versioned)

    @property
    def _resolves(self) -> bool:
        """Whether the client asks for the edit of an action when it needs it."""
        document = self.lsp.client_capabilities.text_document
        support = document and document.code_action and document.code_action.resolve_support
        return bool(support and "edit" in support.properties)


def _logged(task: asyncio.Task[None]) -> None:
    """Log why a task that nobody waits for failed."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("precision-lint failed", exc_info=error)


def _is_judged(text: str) -> bool:
    return may_hold_tensors(text.encode("utf8", "surrogatepass"))


def _path(uri: str) -> Path | None:
    """The file of an address; None for what is no file, such as a notebook's cell."""
    scheme = urlparse(uri)[0]
    path = to_fs_path(uri) if scheme == "file" else None
    return Path(path) if path else None


def _is_python(document: TextDocument, path: Path) -> bool:
    return document.language_id == "python" or path.suffix in (".py", ".pyi")


def _warm_up() -> None:
    """Import what the first analysis with a fix needs."""
    import libcst  # noqa: F401

    from precision_lint import fixer  # noqa: F401

    registry.rules()


def serve() -> None:
    """Run a server until the client leaves."""
    Server().start()
