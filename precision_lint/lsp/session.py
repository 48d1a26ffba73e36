"""What the language server knows: settings, projects as they are saved, and how to judge a buffer.

A project is read once, and again when one of its files changes on disk; an edit costs the analysis
of the edited file only.  Nothing here knows the protocol.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precision_lint import dispatch, fixer, runner
from precision_lint.api import Applicability, Diagnostic
from precision_lint.config import KEYS, ConfigError, Overrides, Resolver, Settings, close
from precision_lint.project import files
from precision_lint.project.amp import Survey
from precision_lint.project.buffers import Buffer
from precision_lint.runner import Job, Known, Mode
from precision_lint.semantics.describe import Description
from precision_lint.semantics.edition import Edition
from precision_lint.semantics.program import Program
from precision_lint.source import Failure, Source

EDITIONS = 4
"""Files of which the latest text stays analysed; one of 2,000 lines takes some 10 MB."""
CLIENT_KEYS = ("select", "extend-select", "ignore", "confidence", "preview", "extend-exclude")
"""Keys of the configuration that an editor's settings may hold as well; they override the file."""


@dataclass(frozen=True)
class Found:
    """What a buffer came to."""

    source: Source
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass
class _Project:
    """A project as it is on disk."""

    settings: Settings
    survey: Survey
    program: Program
    without: dict[Path, Survey] = field(default_factory=dict)
    """What the others say, for files that say something themselves."""
    latest: dict[Path, Buffer] = field(default_factory=dict)
    """Of files that say something themselves what they say now."""


class Session:
    """Settings and projects; ``lint``, ``describe`` and ``fixed`` are for one thread at a time."""

    def __init__(self) -> None:
        self._projects: dict[Path, _Project] = {}
        self._lock = threading.Lock()
        self._overrides = Overrides()
        self._file: Path | None = None
        self._resolver = Resolver()
        self._folders: tuple[Path, ...] = ()
        self._editions: dict[Path, Edition] = {}

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
        survey, program = runner.known_of(root, settings, [path], 1)
        with self._lock:
            self._projects[root] = _Project(settings, survey, program or Program(str(root)))

    def lint(self, path: Path, text: str) -> Found:
        """What to show of a buffer; raises ConfigError."""
        source = Source(str(path), text)
        judged = self._job(path, source)
        if judged is None:
            return Found(source)
        with runner.collector_off(), runner.deep_recursion():
            outcome = runner.diagnose(source, *judged, self._edition(path))
        return Found(source, tuple(outcome.diagnostics))

    def _edition(self, path: Path) -> Edition:
        """What is kept of the latest text of a file, one of the last few that were judged."""
        edition = self._editions.pop(path, None) or Edition()
        while len(self._editions) >= EDITIONS:
            del self._editions[next(iter(self._editions))]
        self._editions[path] = edition
        return edition

    def describe(self, path: Path, text: str, row: int) -> Description | None:
        """What the analysis knows at a row of a buffer; None where the buffer does not parse."""
        source = Source(str(path), text)
        judged = self._job(path, source)
        if judged is None:
            return None
        survey, program = judged[1]
        around = survey.around(path, source.text)
        with runner.collector_off(), runner.deep_recursion():
            relative = program.relative(path) if program else ""
            found = dispatch.describe(source, row, around, program, relative)
        return None if isinstance(found, Failure) else found

    def fixed(self, path: Path, text: str) -> str:
        """A buffer with all safe fixes."""
        source = Source(str(path), text)

        def lint(current: Source) -> list[Diagnostic]:
            return list(self.lint(path, current.text).diagnostics)

        return fixer.fix(source, lint, {Applicability.SAFE}).source.text

    def _job(self, path: Path, source: Source) -> tuple[Job, Known] | None:
        """The file to judge with what is known around it; None for one that is excluded."""
        settings = self._resolver(path.parent)
        if files.excluded(path, settings):
            return None
        root = self.root(path)
        job = runner.job_of(files.File(path, source.filename, settings, root), Mode.CHECK)
        data = source.text.encode("utf8", "surrogatepass")
        if not runner.is_relevant(data, job.codes):
            return job, (Survey(root), None)
        if root not in self._projects:
            self.learn(path)
        with self._lock:
            project = self._projects[root]
        return job, (self._survey(project, root, path, data), project.program)

    def _survey(self, project: _Project, root: Path, path: Path, data: bytes) -> Survey:
        """What the project says with this buffer in place of the file."""
        if not project.survey.asks(path, data):
            return project.survey
        if path not in project.without:
            saved = _content(path)
            if saved == data:
                return project.survey
            says = Survey(root).with_file(path, str(path), saved).areas
            others = project.survey
            if says:
                members = runner.members_of(root, project.settings)
                with closing(runner.cache_of(root, project.settings)) as cache:
                    rest = set(members) - {path}
                    others = runner.survey_of(root, project.settings, rest, cache)
            project.without[path] = others
        last = project.latest.get(path)
        project.latest[path] = Buffer.of(project.without[path], path, data, last)
        return project.latest[path].survey


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError:
        return b""
