"""What the language server knows: settings, projects as they are saved, and how to judge a buffer.

A project is read once, and again when one of its files changes on disk; an edit costs the analysis
of the edited file only.  Nothing here knows the protocol.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_lint import engine, fixer, gathering, jobs
from precision_lint.api import Applicability, Diagnostic
from precision_lint.config import KEYS, ConfigError, Overrides, Resolver, Settings, close
from precision_lint.engine import Engine, Told
from precision_lint.jobs import Mode
from precision_lint.judging import Judge
from precision_lint.lsp.kept import moved
from precision_lint.observing import Description, describe
from precision_lint.project import files
from precision_lint.project.code import Code
from precision_lint.source import Failure, Source, parse

SYNTAX = "MP002"
CALLERS = 8
"""Files that are interpreted again at each edit, because they call what is edited, or under the cursor."""
CLIENT_KEYS = (
    "select",
    "extend-select",
    "ignore",
    "confidence",
    "preview",
    "precision",
    "device",
    "torch-version",
    "extend-exclude",
)
"""Keys of the configuration that an editor's settings may hold as well; they override the file."""


@dataclass(frozen=True)
class Found:
    """What a buffer came to."""

    source: Source
    diagnostics: tuple[Diagnostic, ...] = ()


class Session:
    """Settings and projects; ``lint``, ``describe`` and ``fixed`` are for one thread at a time."""

    def __init__(self) -> None:
        self._projects: dict[Path, Code] = {}
        self._engines: dict[Path, _Engine] = {}
        self._saved: dict[tuple[Path, str], tuple[Code, Told]] = {}
        """What is known of files as they are saved."""
        self._parsed: dict[Path, Found] = {}
        """What the last text of each file came to that parsed."""
        self._lock = threading.Lock()
        self._interpreting = threading.Lock()
        self._overrides = Overrides()
        self._file: Path | None = None
        self._resolver = Resolver()
        self._folders: tuple[Path, ...] = ()

    def configure(self, options: Mapping[str, Any]) -> None:
        """Take over an editor's settings; raises ConfigError, and changes nothing, for a mistake.

        Besides ``CLIENT_KEYS`` there is ``configuration``, the one configuration file to use.
        """
        values: dict[str, Any] = {}
        for key, value in options.items():
            if value is None or key == "configuration":
                continue
            if key not in CLIENT_KEYS:
                hint = close(key, (*CLIENT_KEYS, "configuration"), "leave it out")
                raise ConfigError(f'editor settings: unknown key "{key}"; {hint}')
            expected, convert = KEYS[key]
            try:
                values[key.replace("-", "_")] = convert(value)
            except ValueError:
                raise ConfigError(
                    f'editor settings: "{key}" is {value!r}; write {expected}'
                ) from None
        named = options.get("configuration")
        file = Path(str(named)).expanduser() if named else None
        overrides = Overrides(**values)
        resolver = Resolver(overrides, file)
        resolver(Path.cwd())  # mistakes in selectors are told now
        self._overrides, self._file, self._resolver = overrides, file, resolver
        self.forget()

    def folders(self, paths: Iterable[Path]) -> None:
        """The directories that the editor has open: projects where no file marks one."""
        self._folders = tuple(paths)
        self.forget()

    def reread(self) -> None:
        """Read configuration files again; raises ConfigError."""
        self._resolver = Resolver(self._overrides, self._file)
        self.forget()

    def forget(self, path: Path | None = None) -> None:
        """Drop what is known of the projects around a path, or of all."""
        with self._lock:
            for root in list(self._projects):
                if path is None or path.is_relative_to(root):
                    del self._projects[root]

    def close(self, path: Path) -> None:
        """Forget the texts of a file."""
        self._parsed.pop(path, None)

    def root(self, path: Path) -> Path:
        """The root of the project of a file."""
        return files.project_root(path, self._folders)

    def is_known(self, path: Path) -> bool:
        """Whether the project of a file was read."""
        return self.root(path) in self._projects

    def learn(self, path: Path) -> None:
        """Read the project of a file, as it is on disk; raises ConfigError."""
        root = self.root(path)
        settings = self._resolver(root if root.is_dir() else root.parent)
        with closing(gathering.cache_of(root, settings)) as cache:
            code = gathering.project(root, settings, [path], cache)
        name = code.name(path)
        known = self._known(root, code, name)
        with self._lock:
            self._projects[root] = code
            self._saved[root, name] = code, known

    def lint(self, path: Path, text: str) -> Found:
        """What to show of a buffer; raises ConfigError."""
        source = Source(str(path), text)
        judge = self._judge(path, source)
        if judge is None:
            return Found(source)
        with gathering.collector_off(), engine.deep_recursion():
            found = tuple(judge.outcome(source, judge.find(source)).diagnostics)
        if any(one.code == SYNTAX for one in found):
            last = self._parsed.get(path)
            kept = moved(last.diagnostics, last.source, source) if last else ()
            return Found(source, (*found, *kept))
        self._parsed[path] = Found(source, found)
        return self._parsed[path]

    def describe(self, path: Path, text: str, row: int) -> Description | None:
        """What the analysis knows at a row of a buffer; None where the buffer does not parse."""
        source = Source(str(path), text)
        judge, tree = self._judge(path, source), parse(source)
        if judge is None or judge.known is None or isinstance(tree, Failure):
            return None
        name = judge.code.name(path)
        code = judge.code.with_text(name, source)
        with gathering.collector_off(), engine.deep_recursion():
            return describe(source, tree, code, name, judge.known, row, CALLERS)

    def fixed(self, path: Path, text: str) -> str:
        """A buffer with all safe fixes."""
        source = Source(str(path), text)

        def lint(current: Source) -> list[Diagnostic]:
            return list(self.lint(path, current.text).diagnostics)

        return fixer.fix(source, lint, {Applicability.SAFE}).source.text

    def _judge(self, path: Path, source: Source) -> Judge | None:
        """How to judge a buffer; None for one that is excluded."""
        settings = self._resolver(path.parent)
        if files.excluded(path, settings):
            return None
        root = self.root(path)
        job = jobs.job_of(files.File(str(path), source.filename, settings, root), Mode.CHECK)
        data = source.text.encode("utf8", "surrogatepass")
        if not jobs.is_relevant(data, job.codes):
            return Judge(job, Code(path.parent, (path.name,)), None)
        with self._lock:
            code = self._projects.get(root)
        if code is None:  # it is being read: until then the file stands alone
            return self._alone(job, settings, source)
        return Judge(job, code, self._told(root, code, path, source))

    def _alone(self, job: jobs.Job, settings: Settings, source: Source) -> Judge:
        code = Code.alone(job.path, settings).with_text(job.path.name, source)
        with gathering.collector_off(), engine.deep_recursion():
            facts = Engine(code).facts(job.path.name)
        return Judge(job, code, engine.told(job.path.name, {job.path.name: facts}))

    def _told(self, root: Path, code: Code, path: Path, source: Source) -> Told:
        """What is known of a buffer; files that it does not concern stay loaded."""
        name = code.name(path)
        saved = self._saved.get((root, name))
        if saved is None or saved[0] is not code:
            saved = self._saved[root, name] = code, self._known(root, code, name)
        if code.data(name) == source.text.encode("utf8", "surrogatepass"):
            return saved[1]
        current = self._engines.get(root)
        if current is None or current.base is not code or name not in current.code.layout.paths:
            current = self._engines[root] = _Engine(code, name, source)
        current.code.texts[name] = source
        with gathering.collector_off(), engine.deep_recursion():
            return engine.again(current, name, saved[1], CALLERS)

    def _known(self, root: Path, code: Code, name: str) -> Told:
        """What is known of a file as it is saved."""
        settings = self._resolver(root if root.is_dir() else root.parent)
        with self._interpreting, closing(gathering.cache_of(root, settings)) as cache:
            known = gathering.alone_known(code, root, name, cache)
            if code.index is not None:
                code.index.save(cache)
        return known


class _Engine(Engine):
    """An engine that knows what it began with."""

    def __init__(self, base: Code, name: str, source: Source) -> None:
        super().__init__(base.with_text(name, source))
        self.base = base
