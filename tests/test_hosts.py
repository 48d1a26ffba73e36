"""Work through an executor of somebody else's: threads of this process, and workers of dask."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from precision_lint import __version__, cli, hosts, pool, progress

FIXTURES = Path(__file__).parent.parent / "fixtures"


def work(items: Sequence[int], broken: list[int]) -> list[int]:
    """Doubles; for ``pool.run``."""
    if set(items) & set(broken):
        raise ValueError(items)
    return [2 * item for item in items]


def test_an_executor_loses_only_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "hide", lambda: None)  # of this very process
    with ThreadPoolExecutor(2) as threads, pool.through(threads):
        answers = pool.run(work, range(100), [7, 8], lost=lambda item: -item, workers=2)
    assert answers == [-item if item in (7, 8) else 2 * item for item in range(100)]
    monkeypatch.setattr(threads, "submit", pytest.fail)
    assert pool.run(work, range(3), [], lost=int, workers=1) == [0, 2, 4]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text("import torch\n")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--executor", "dask"], "go together"),
        (["--scheduler", "tcp://127.0.0.1:1"], "go together"),
        (["--executor", "dask", "--scheduler", "here"], "missing port number"),
    ],
)
def test_what_cannot_work_is_one_line(
    options: list[str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--isolated", *options, "."]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_worker_says_what_it_lacks(here: Path) -> None:
    assert not hosts.missing([str(here)], __version__)
    assert "does not see" in hosts.missing([str(here), str(here / "other")], __version__)
    assert "rather than 9.9" in hosts.missing([], "9.9")


@contextmanager
def started(*command: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def scheduler(workers: int) -> Iterator[str]:
    """The address of one with workers, each a process of its own."""
    about = Path("scheduler.json").absolute()
    common = "--scheduler-file", str(about), "--no-dashboard"
    with ExitStack() as stack:
        at = "--host", "127.0.0.1", "--port", "0"
        stack.enter_context(started("distributed.cli.dask_scheduler", *at, *common))
        for _ in range(workers):
            options = "--nworkers", "1", "--nthreads", "1", "--no-nanny"
            stack.enter_context(started("distributed.cli.dask_worker", *options, *common))
        end = time.monotonic() + 60
        while not about.exists():
            assert time.monotonic() < end, "no scheduler came up"
            time.sleep(0.1)
        yield json.loads(about.read_text())["address"]


def test_workers_of_dask_find_what_this_machine_finds(here: Path) -> None:
    """Two processes on loopback; their own start may be later than the scheduler's."""
    for rule in ("mp101_*", "mp102_*", "mp201_*", "mp403_*"):
        for folder in FIXTURES.glob(rule):
            shutil.copytree(folder, here / folder.name)
    assert len(list(here.rglob("*.py"))) > 70
    command = [
        sys.executable,
        "-m",
        "precision_lint",
        "check",
        "-n",
        "--isolated",
        "--exit-zero",
        "-q",
    ]
    command += ["--output-format", "json", "."]
    alone = subprocess.run([*command, "--jobs", "1"], capture_output=True, check=True).stdout
    with scheduler(2) as address:
        for _ in range(60):
            done = subprocess.run(
                [*command, "--executor", "dask", "--scheduler", address], capture_output=True
            )
            if done.returncode == 0:
                break
            assert b"has no workers" in done.stderr, done.stderr.decode()
            time.sleep(0.5)
    assert json.loads(alone)
    assert done.stdout == alone
