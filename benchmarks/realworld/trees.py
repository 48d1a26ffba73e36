"""Source trees at given commits, from local mirrors or clones, without running anything in them.

Only Python and configuration files are written: no symbolic links, no hooks, no filters.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

CONFIGURATION = (".yaml", ".yml", ".toml", ".cfg", ".json", ".ini")
LARGEST = 1_500_000
"""Bytes of the largest configuration file that is written; larger ones are data."""


class Unavailable(Exception):
    """A tree that cannot be had; the text says in one line why, and what to do."""


@dataclass(frozen=True)
class Tree:
    """A commit's files under ``path``; ``committed`` in seconds of Unix time, ``lines`` of Python.

    ``absent`` counts files that the mirror lists but does not hold.
    """

    repo: str
    commit: str
    path: Path
    committed: int
    files: int
    lines: int
    absent: int


def wanted(name: str) -> bool:
    """Whether a file of this name is written to a tree."""
    last = PurePosixPath(name).name
    return last.endswith((".py", *CONFIGURATION)) or (
        last.startswith("requirements") and last.endswith(".txt")
    )


class Trees:
    """Trees under ``work``, each made once; ``clone`` is the URL that repositories are under."""

    def __init__(self, work: Path, mirrors: Path | None = None, clone: str | None = None) -> None:
        self.work, self.mirrors, self.clone = work.resolve(), mirrors, clone
        self._lock = threading.Lock()

    def get(self, repo: str, commit: str) -> Tree:
        """The tree of a commit.

        :raises Unavailable: if no mirror has the commit and it cannot be cloned
        """
        name = f"{repo.replace('/', '+')}@{commit[:12]}"
        path, facts = self.work / "trees" / name, self.work / "trees" / f"{name}.json"
        with self._lock:
            if not facts.is_file():  # written last, so the tree is whole
                shutil.rmtree(path, ignore_errors=True)
                path.mkdir(parents=True)
                tree = self._extract(repo, commit, path)
                facts.write_text(json.dumps(asdict(tree) | {"path": name}) + "\n")
        return Tree(**json.loads(facts.read_text()) | {"path": path})

    def _extract(self, repo: str, commit: str, path: Path) -> Tree:
        git = self._repository(repo, commit)
        names = dict(_listed(git, commit))
        absent = _missing(git, commit) & set(names.values())
        if absent and git.remote:
            git.fetch(sorted(absent))
            absent = set()
        present = {name: oid for name, oid in names.items() if oid not in absent}
        lines = files = 0
        for name, data in zip(present, git.blobs(list(present.values())), strict=True):
            python = name.endswith(".py")
            if not python and len(data) > LARGEST:
                continue
            target = path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            files += python
            lines += python * data.count(b"\n")
        committed = int(git("show", "--no-patch", "--format=%ct", commit))
        return Tree(repo, commit, path, committed, files, lines, len(absent))

    def _repository(self, repo: str, commit: str) -> _Git:
        folder = repo.replace("/", "+")
        for top in _git_directories(self.mirrors / folder) if self.mirrors else ():
            git = _Git(top)
            if git.has(commit):
                return git
        if self.clone is None:
            where = "no mirrors were given" if self.mirrors is None else f"not in {self.mirrors}"
            raise Unavailable(
                f"{repo}@{commit[:12]}: {where}; give --mirrors DIR with {folder}, or --clone"
            )
        top = self.work / "clones" / folder
        if not (top / "HEAD").is_file():
            url = f"{self.clone.rstrip('/')}/{repo}"
            top.parent.mkdir(parents=True, exist_ok=True)
            _run(["git", "clone", "--quiet", "--bare", "--filter=blob:none", url, str(top)])
        git = _Git(top, remote=True)
        if not git.has(commit):
            git.fetch([commit])
        return git


@dataclass(frozen=True)
class _Git:
    """A git directory; only a ``remote`` one may use the network."""

    top: Path
    remote: bool = False

    def __call__(self, *arguments: str, stdin: bytes | None = None) -> bytes:
        offline = [] if self.remote else ["-c", "protocol.allow=never"]
        return _run(["git", f"--git-dir={self.top}", *offline, *arguments], stdin)

    def has(self, commit: str) -> bool:
        try:
            self("cat-file", "-e", f"{commit}^{{tree}}")
        except Unavailable:
            return False
        return True

    def fetch(self, objects: Sequence[str]) -> None:
        """Fetch objects in one request; git by itself would ask for each file."""
        self(
            "-c", "fetch.negotiationAlgorithm=noop", "fetch", "--quiet", "--no-tags",
            "--no-write-fetch-head", "--recurse-submodules=no", "--filter=blob:none", "--stdin",
            "origin", stdin="".join(f"{one}\n" for one in objects).encode(),
        )  # fmt: skip

    def blobs(self, oids: Sequence[str]) -> Iterator[bytes]:
        """The contents of blobs, in their order."""
        output = self("cat-file", "--batch", stdin="".join(f"{oid}\n" for oid in oids).encode())
        at = 0
        for oid in oids:
            end = output.index(b"\n", at)
            _, kind, size = output[at:end].split()
            if kind != b"blob":
                raise Unavailable(f"{self.top}: {oid} is a {kind.decode()}; repair the mirror")
            at = end + 1 + int(size) + 1
            yield output[end + 1 : at - 1]


def _run(command: Sequence[str], stdin: bytes | None = None) -> bytes:
    """Run git apart from the caller's git variables; its first line of complaint if it fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment["GIT_TERMINAL_PROMPT"] = "0"
    try:
        run = subprocess.run(command, input=stdin, capture_output=True, env=environment)
    except OSError as error:
        raise Unavailable(f"git cannot be run ({error}); install it") from error
    if run.returncode:
        complaint = run.stderr.decode(errors="replace").strip() or f"exit code {run.returncode}"
        raise Unavailable(f"git failed: {complaint.splitlines()[0]}; repair the mirror or clone")
    return run.stdout


def _git_directories(folder: Path) -> Iterator[Path]:
    """The folder itself, a directory in it, or the ``.git`` of one, bare or not."""
    inner = sorted(one for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []
    for top in (folder, *inner):
        for candidate in (top, top / ".git"):
            if (candidate / "HEAD").is_file() and (candidate / "objects").is_dir():
                yield candidate


def _listed(git: _Git, commit: str) -> Iterator[tuple[str, str]]:
    """Name and object of every regular file that is wanted."""
    for line in git("ls-tree", "-r", "-z", commit).split(b"\0")[:-1]:
        head, _, raw = line.partition(b"\t")
        mode, _, oid = head.decode().split()
        name = os.fsdecode(raw)
        inside = not {"..", ".git"} & set(name.split("/"))
        if mode in ("100644", "100755") and wanted(name) and inside:
            yield name, oid


def _missing(git: _Git, commit: str) -> set[str]:
    """Objects of a commit that the repository lists but does not hold."""
    output = git("rev-list", "--objects", "--no-walk", "--missing=print", commit)
    return {line[1:] for line in output.decode(errors="replace").splitlines() if line[:1] == "?"}
