"""What a child process that runs users' code may not do.

Meant for accidents, not for attackers, in three layers.  Limits of the operating system on memory,
time and file size, where it has them.  Namespaces of the kernel, where Linux grants them: no
network, a file system that is read-only but for the child's own temporary directory, and processes
that end with the child, whatever they forked.  And everywhere an audit hook of the interpreter that
refuses to start processes, to send signals, to open sockets, to load C libraries, and to write,
rename or remove files outside of that directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

REFUSED = (
    "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.startfile",
    "os.kill", "os.killpg", "signal.pthread_kill", "subprocess.Popen", "pty.spawn", "socket.",
    "os.chown", "os.setxattr", "os.removexattr", "webbrowser.open", "winreg.", "smtplib.",
    "ftplib.", "ctypes.dlopen", "ctypes.dlsym", "ctypes.call_function",
)  # fmt: skip
"""Audit events, or what they start with."""
CHANGES = (
    "sqlite3.connect", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink",
    "os.truncate", "os.chmod", "os.utime", "shutil.",
)  # fmt: skip
"""Audit events whose first argument is a path that changes."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FILE_BYTES = 1 << 24
NEWUSER, NEWNS, NEWPID, NEWNET = 0x10000000, 0x20000, 0x20000000, 0x40000000
PRIVATE, BIND = 0x4000 | 1 << 18, 0x1000
"""Flags of ``mount``: changes of the tree stay in this namespace; a directory onto itself."""
MOUNT_SETATTR, HERE, RECURSIVE, READONLY = 442, -100, 0x8000, 1
"""The system call, which libc does not know before glibc 2.36, and its arguments."""
PDEATHSIG = 1


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


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user")]


def part(home: Path) -> bool:
    """Go on in namespaces of one's own, in a fork whose end this process waits for and repeats.

    Only ``home`` can be written there.  Returns whether the kernel granted them (Linux only).
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    apart = NEWNS | NEWPID | NEWNET
    if all(libc.unshare(flags) for flags in (NEWUSER | apart, apart)):
        return False
    if first := os.fork():
        _repeat(_end(first))
    libc.prctl(PDEATHSIG, signal.SIGKILL)
    if second := os.fork():  # the first process there cannot be ended by signals of its own
        os._exit(_end(second))
    libc.prctl(PDEATHSIG, signal.SIGKILL)  # setsid leaves the group that is killed at the end
    own = os.fsencode(home.resolve())
    granted = not libc.mount(None, b"/", None, PRIVATE, None)
    granted = granted and not libc.mount(own, own, None, BIND, None)

    def change(path: bytes, flags: int, **bits: int) -> bool:
        given = _Attributes(**bits)
        size = ctypes.sizeof(given)
        return not libc.syscall(MOUNT_SETATTR, HERE, path, flags, ctypes.byref(given), size)

    if granted and change(b"/", RECURSIVE, set=READONLY):
        change(own, 0, clear=READONLY)
    os.chdir(own)  # what was mounted there
    return True


def _end(process: int) -> int:
    """How a child process ended, as a shell says it: 128 and the signal, or its exit status."""
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return 128 - code if code < 0 else code


def _repeat(code: int) -> NoReturn:
    """End as a child process did."""
    if code - 128 in signal.valid_signals():
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(code - 128, signal.SIG_DFL)
        os.kill(os.getpid(), code - 128)
    os._exit(code)


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

    # no audit event tells of these two
    with contextlib.suppress(ImportError):
        import _posixsubprocess

        _posixsubprocess.fork_exec = _refused("starts a process")
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.save = _saving(torch.save)
    sys.addaudithook(hook)


def _refused(what: str) -> Any:
    def call(*args: object, **kwargs: object) -> NoReturn:
        raise Refused(f"it {what}")

    return call


def _saving(save: Any) -> Any:
    """``torch.save`` opens files in C++; this opens them in Python, where the hook sees it."""

    def call(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, (str, os.PathLike)):
            with Path(f).open("wb") as file:
                save(obj, file, *args, **kwargs)
        else:
            save(obj, f, *args, **kwargs)

    return call
