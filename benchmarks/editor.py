"""How soon an editor sees the findings of a file that was just edited.

A real server process is asked over standard input and output: a file of a project is opened, and
edited again and again as a person would, a character at a time and at changing places.  What is
measured is the time from sending an edit to receiving the diagnostics of that very version, and the
CPU time that the server takes for it, which says more on a busy machine.

    python benchmarks/editor.py transformers/models/led/modeling_led.py --root transformers
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import random
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.client import LanguageClient

PAUSE = 0.35
"""Seconds between two edits: those of a person who looks at the findings."""
SERVER = (sys.executable, "-m", "precision_lint", "lsp")


class Client:
    """A client that waits for the diagnostics of a version."""

    def __init__(self) -> None:
        self.lsp = LanguageClient("benchmark", "1")
        self._waiting: dict[int, asyncio.Future[int]] = {}

        def published(params: types.PublishDiagnosticsParams) -> None:
            waiting = self._waiting.pop(params.version or 0, None)
            if waiting is not None:
                waiting.set_result(len(params.diagnostics))

        self.lsp.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(published)

    def findings(self, number: int) -> asyncio.Future[int]:
        """The number of diagnostics of a version, once they come."""
        self._waiting[number] = asyncio.get_running_loop().create_future()
        return self._waiting[number]

    def cpu(self) -> float:
        """Seconds of CPU that the server took so far; 0 where the kernel does not tell."""
        threads = Path(f"/proc/{self._process}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    async def start(self, root: Path) -> None:
        await self.lsp.start_io(*SERVER, cwd=root)
        self._process = self.lsp._server.pid if self.lsp._server else 0
        folder = types.WorkspaceFolder(root.as_uri(), root.name)
        await self.lsp.initialize_async(
            types.InitializeParams(
                types.ClientCapabilities(), root_uri=root.as_uri(), workspace_folders=[folder]
            )
        )
        self.lsp.initialized(types.InitializedParams())

    async def stop(self) -> None:
        await self.lsp.shutdown_async(None)
        self.lsp.exit(None)
        stop: Any = self.lsp.stop
        await stop()


def edited(text: str, number: int, seed: int) -> str:
    """The text with a statement in front of some ``return``, which grows by a letter five times."""
    lines = text.split("\n")
    bodies = [row for row, line in enumerate(lines) if line.startswith("        return ")]
    row = random.Random(seed + number // 5).choice(bodies) if bodies else len(lines) - 1
    lines.insert(row, f"        {'value'[: number % 5 + 1]} = [number for number in range(3)]")
    return "\n".join(lines)


async def measured(file: Path, root: Path, edits: int, seed: int) -> dict[str, Any]:
    """Seconds until the first findings, and milliseconds of each edit."""
    client = Client()
    await client.start(root)
    text, uri = file.read_text("utf8"), file.as_uri()
    started = time.perf_counter()
    opened = client.findings(1)
    client.lsp.text_document_did_open(
        types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, "python", 1, text))
    )
    findings = await opened
    first = time.perf_counter() - started
    times, work = [], []
    for number in range(2, edits + 2):
        await asyncio.sleep(PAUSE)
        whole = types.TextDocumentContentChangeWholeDocument(edited(text, number, seed))
        document = types.VersionedTextDocumentIdentifier(number, uri)
        answer = client.findings(number)
        before, started = client.cpu(), time.perf_counter()
        client.lsp.text_document_did_change(types.DidChangeTextDocumentParams(document, [whole]))
        findings = await answer
        times.append(1000 * (time.perf_counter() - started))
        work.append(1000 * (client.cpu() - before))
    await client.stop()
    ordered = sorted(times)
    result = {
        "file": file.name,
        "lines": text.count("\n"),
        "project_files": sum(1 for _ in root.rglob("*.py")),
        "findings": findings,
        "opened_s": round(first, 2),
        "edits": edits,
        "cpu_median_ms": round(statistics.median(work), 1),
        "median_ms": round(statistics.median(times), 1),
        "p95_ms": round(ordered[max(0, -(-95 * len(ordered) // 100) - 1)], 1),
    }
    print(
        f"{result['file']}: {result['lines']:,} lines in a project of "
        f"{result['project_files']:,} files: first {result['opened_s']} s; {edits} edits: "
        f"median {result['median_ms']} ms, 95 % {result['p95_ms']} ms, "
        f"of which the server computes {result['cpu_median_ms']} ms",
        flush=True,
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the language server's answers to edits")
    parser.add_argument("files", type=Path, nargs="+", help="files to open, one server for each")
    parser.add_argument("--root", type=Path, required=True, help="directory the editor has open")
    parser.add_argument("--edits", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the results as JSON")
    options = parser.parse_args()
    runs = [
        asyncio.run(measured(f.resolve(), options.root.resolve(), options.edits, options.seed))
        for f in options.files
    ]
    if options.output:
        results = {
            "date": datetime.date.today().isoformat(),
            "machine": {
                "system": f"{platform.system()} {platform.machine()}",
                "cores": os.cpu_count(),
                "python": platform.python_version(),
            },
            "versions": {name: version(name) for name in ("precision-lint", "pygls")},
            "seed": options.seed,
            "runs": runs,
        }
        options.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
