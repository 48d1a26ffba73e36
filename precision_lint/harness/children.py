"""Child processes of a run: started, listened to, and ended with everything they started."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Message = dict[str, Any]
LONGEST = 1 << 24
"""Characters of one answer at most."""


class TooSlow(Exception):
    """A child said nothing for longer than it may."""


class Stopped(Exception):
    """The run was interrupted, and its children were ended."""


class Children:
    """All children of a run; `stop` ends them and starts no more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self.stopped = False

    def stop(self) -> None:
        with self._lock:
            self.stopped = True
            for process in self._running:
                _kill(process)

    @contextlib.contextmanager
    def started(self, command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
        with self._lock:
            if self.stopped:
                raise Stopped
            process = subprocess.Popen(command, **options)
            self._running.add(process)
        try:
            yield process
        finally:
            _kill(process)  # also what it left behind in its group
            process.wait()
            with self._lock:
                self._running.discard(process)


def _kill(process: subprocess.Popen[str]) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.poll() is None:
        process.kill()


def _message(line: str) -> Message | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


class Conversation:
    """One child: what it was asked on its standard input, its answers line by line as JSON.

    ``seconds``: the longest it may say nothing.  Raises `TooSlow` and `Stopped`.  After the last
    message ``status`` and ``said`` (its error output) tell how it ended.
    """

    def __init__(self, children: Children, module: str, seconds: float) -> None:
        self.children = children
        self.module = module
        self.seconds = seconds
        self.status = 0
        self.said: list[str] = []
        self._garbled = False

    def ask(self, payload: Message, *, apart: bool = False) -> Iterator[Message]:
        """The child's messages; ``apart``: its working directory is a temporary one."""
        path = ["-P"] if sys.version_info >= (3, 11) else []  # no module of the working directory
        command = [sys.executable, "-X", "utf8", *path, "-m", self.module]
        environment = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        with contextlib.ExitStack() as stack:
            errors = stack.enter_context(
                tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
            )
            home = None
            if apart:
                home = stack.enter_context(
                    tempfile.TemporaryDirectory(
                        prefix="precision-lint-", ignore_cleanup_errors=True
                    )
                )
                environment |= {"TMPDIR": home, "HOME": home}
            process = stack.enter_context(
                self.children.started(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    encoding="utf-8",
                    env=environment,
                    cwd=home and Path(home),
                    start_new_session=True,
                )
            )
            try:
                yield from self._listen(process, json.dumps(payload))
            finally:
                _kill(process)
                self.status = process.wait()
                errors.seek(0)
                self.said = [line.strip() for line in errors if line.strip()]
                if self._garbled:
                    self.said.append("it wrote where its answers go")

    def _listen(self, process: subprocess.Popen[str], payload: str) -> Iterator[Message]:
        assert process.stdin is not None and process.stdout is not None
        lines: queue.Queue[str | None] = queue.Queue()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(payload)
            process.stdin.close()
        stdout = process.stdout

        def read() -> None:
            while line := stdout.readline(LONGEST):
                lines.put(line)
            lines.put(None)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            while True:
                try:
                    line = lines.get(timeout=self.seconds)
                except queue.Empty:
                    raise TooSlow from None
                if line is None:
                    process.wait()
                    break
                message = _message(line)
                if message is None:
                    self._garbled = True
                    break
                yield message
        finally:
            _kill(process)
            reader.join()
            stdout.close()
        if self.children.stopped:
            raise Stopped
