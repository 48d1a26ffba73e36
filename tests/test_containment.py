"""What users' code may try in the child that runs it, once it is past the slicing."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from precision_lint.harness import witnesses
from precision_lint.harness.witnesses import Verdict
from tests.witnessing import REGION, plans, write

pytest.importorskip("torch")

FLAGGED = REGION + "def loss(x):\n    return torch.log(x.sigmoid() + 1e-8)\n"
DAEMON = """\
import ctypes, os, time
if FORK() == 0:
    os.setsid()
    if FORK() == 0:
        time.sleep(600)
    os._exit(0)
"""
CODE = {
    "save": ("torch.save(x, LEFT)", "it writes "),
    "database": ("import sqlite3; sqlite3.connect(LEFT)", "it changes files (sqlite3.connect)"),
    "save at home": ("import os; torch.save(x, os.path.expanduser('~/mine.pt'))", ""),
    "daemon": (DAEMON.replace("FORK", "os.fork"), "it calls os.fork"),
    "daemon in C": (DAEMON.replace("FORK", "ctypes.CDLL(None).fork"), "it calls ctypes.dl"),
    "workers": (
        "import multiprocessing as m; m.get_context('spawn').Process(target=print).start()",
        "it starts a process",
    ),
    "exit": ("import os; os._exit(7)", "it ended its process (exit status 7"),
    "exit late": ("import atexit, os; atexit.register(os._exit, 7)", ""),
    "kill": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "it calls os.kill"),
    "crash": ("import os; os.abort()", "it ended its process (exit status -"),
    "thread": (
        "import threading, time\nif threading.active_count() == 1:\n"
        "    threading.Thread(target=time.sleep, args=[600]).start()",
        "",
    ),
    "deaf": (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while True:\n    try:\n        x = x + 0\n    except BaseException:\n        pass",
        "s and was ended",
    ),
    "asleep": ("import time; time.sleep(600)", "s and was ended"),
    "flood": ("print('noise' * (1 << 20))", ""),
    "error flood": (
        "import sys\nwhile True:\n    sys.stderr.write('noise' * (1 << 10))",
        "File too large",
    ),
    "answers": (
        "import contextlib, os\n"
        "for one in range(3, 64):\n    with contextlib.suppress(OSError):\n"
        "        os.write(one, b'noise\\n')",
        "it wrote where its answers go",
    ),
    "closed": ("import os; os.closerange(0, 64)", "it ended its process"),
}  # fmt: skip
"""What comes before the flagged expression, and the reason of the verdict; "" if it is proven."""


def processes(marker: str) -> list[int]:
    """Processes whose environment has a text, and that are no zombies."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (one / "environ").read_bytes():
                found.append(int(one.name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contained")


@pytest.fixture(scope="module")
def verdicts(home: Path) -> Iterator[dict[str, Verdict]]:
    found = []
    for name, (code, _) in CODE.items():
        [plan] = plans(write(home, FLAGGED, f"{name}.py"))
        plan.variants = plan.variants[:1]
        [variant] = plan.variants
        code = code.replace("LEFT", repr(str(home / "left.pt")))
        head, body = "def isolated(x):\n", "".join(f"    {row}\n" for row in code.splitlines())
        assert head in variant.original
        variant.original = variant.original.replace(head, head + body)
        variant.fixed, variant.fixes = [], []
        found.append(plan)
    temporary = home / "temporary"
    temporary.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary))
        done = {
            Path(one.finding.filename).stem: one
            for one in witnesses.search(found, jobs=2, seconds=15, memory=2 << 30)
        }
    yield done
    temporary.rmdir()  # and it is empty


@pytest.mark.parametrize("name", CODE)
def test_code_is_contained(name: str, verdicts: dict[str, Verdict]) -> None:
    reason = CODE[name][1]
    assert verdicts[name].outcome == ("not isolated" if reason else "proven"), verdicts[name].reason
    assert reason in verdicts[name].reason


@pytest.mark.usefixtures("verdicts")
def test_nothing_is_left(home: Path) -> None:
    names = {one.name for one in home.iterdir()}
    assert names == {f"{name}.py" for name in CODE} | {"temporary"}
    assert not Path("~/mine.pt").expanduser().exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.usefixtures("verdicts")
def test_no_process_is_left(home: Path) -> None:
    marker = f"TMPDIR={home / 'temporary'}"
    end = time.monotonic() + 10  # the kernel takes a moment
    while processes(marker) and time.monotonic() < end:
        time.sleep(0.1)
    assert processes(marker) == []


SCRIPT = """\
import os, sys, time
from pathlib import Path
from precision_lint.harness import sandbox
granted = sandbox.part(Path.cwd())
print(granted, flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "600"])
    os._exit(0)
for path in ("inside", sys.argv[1]):
    try:
        Path(path).write_text("x")
    except OSError as error:
        print(type(error).__name__, error.errno, flush=True)
os.abort()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has namespaces")
def test_the_kernel_holds_what_the_hook_does_not_see(tmp_path: Path) -> None:
    """Forked daemons end with the child, and nothing can be written outside of its directory."""
    import errno
    import subprocess

    own, outside = tmp_path / "own", tmp_path / "outside"
    own.mkdir()
    environment = os.environ | {"MARKER": str(own)}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(outside)],
        capture_output=True, text=True, cwd=own, env=environment,
    )  # fmt: skip
    if run.stdout.startswith("False"):
        pytest.skip("the kernel grants no namespaces")
    assert run.stdout.splitlines() == ["True", f"OSError {errno.EROFS}"]
    assert run.returncode < 0
    assert (own / "inside").exists() and not outside.exists()
    end = time.monotonic() + 10
    while processes(f"MARKER={own}") and time.monotonic() < end:
        time.sleep(0.1)
    assert processes(f"MARKER={own}") == []
