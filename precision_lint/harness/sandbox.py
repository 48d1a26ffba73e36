"""What a child process that runs users' code may not do.

Meant for accidents, not for attackers: limits of the operating system on memory, time and file size
where it has them; no network where the kernel grants a network of one's own; and an audit hook of
the interpreter that refuses to start processes, to send signals, to open sockets, and to write,
rename or remove files outside of the child's own temporary directory.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

REFUSED = (
    "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.startfile",
    "os.kill", "os.killpg", "signal.pthread_kill", "subprocess.Popen", "pty.spawn", "socket.",
    "os.chown", "os.setxattr", "os.removexattr", "webbrowser.open", "winreg.", "smtplib.",
    "ftplib.",
)  # fmt: skip
"""Audit events, or what they start with."""
CHANGES = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate",
    "os.chmod", "os.utime", "shutil.",
)  # fmt: skip
"""Audit events whose first argument is a path that changes."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FILE_BYTES = 1 << 24
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000


class Refused(BaseException):
    """The code did what it may not; no handler of its own catches this as an ``Exception``."""


def limit(memory: int, seconds: int) -> None:
    """Limits of the operating system: bytes of memory, processor seconds; nothing on Windows."""
    try:
        import resource
    except ImportError:
        return
    limits = [
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ]
    for kind, value in limits:
        _, most = resource.getrlimit(kind)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, most))


def leave_network() -> bool:
    """Move into a network without interfaces; whether the kernel granted it (Linux only)."""
    if sys.platform != "linux":
        return False
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    return any(libc.unshare(flags) == 0 for flags in (CLONE_NEWUSER | CLONE_NEWNET, CLONE_NEWNET))


def refuse(home: Path) -> None:
    """Install the audit hook; ``home`` is the only directory in which files may change."""
    inside = str(home.resolve())
    sys.dont_write_bytecode = True

    def own(path: object) -> bool:
        if isinstance(path, int):  # a descriptor that is open already
            return True
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        full = os.path.realpath(os.fsdecode(path))
        return full == os.devnull or full == inside or full.startswith(inside + os.sep)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = isinstance(flags, int) and bool(flags & WRITES)
            writes |= isinstance(mode, str) and bool(set(mode) & set("wax+"))
            if writes and not own(path):
                raise Refused(f"it writes {os.fsdecode(path) if path else 'a file'}")  # type: ignore[arg-type]
        elif event.startswith(CHANGES):
            if not arguments or not own(arguments[0]):
                raise Refused(f"it changes files ({event})")
        elif event.startswith(REFUSED):
            raise Refused(f"it calls {event.rstrip('.')}")

    sys.addaudithook(hook)
