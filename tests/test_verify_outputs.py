"""What ``verify`` writes: tables, JSON, JUnit, the page, the bar; and what an interrupt leaves."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

import pytest

from precision_lint import progress, registry
from precision_lint.api import Confidence, Diagnostic, Position, Severity
from precision_lint.harness import page, plots, sweep, tables, told
from precision_lint.harness.plan import Plan, Variant
from precision_lint.harness.verify import Result
from precision_lint.harness.witnesses import Verdict

pytest.importorskip("torch")

RULES = registry.rules()


def cell(policy: str, dtype: str, phase: str, verdict: str, **more: Any) -> dict[str, Any]:
    return {
        "policy": policy,
        "dtype": dtype,
        "phase": phase,
        "verdict": verdict,
        "reasons": [],
        "shown": [],
    } | more


def results() -> list[Result]:
    good = Result(RULES["MP301"])
    good.cells["loss.py:loss"] = [
        cell("eager", "float16", "forward", "proven", shown=["inf & <error> 0.5, loss scale 1"]),
        cell("eager", "bfloat16", "forward", "harmless"),
        cell("cuda", "float16", "forward", "skipped", reasons=["names bfloat16"]),
        cell("-", "float32", "forward", "unchanged"),
    ]
    bad = Result(RULES["MP501"], errors=["bev.py: the child process died: \x1b[31mexit"])
    bad.cells["bev.py"] = [
        cell("cpu", "float16", "backward", "failed", reasons=["after the fix inf"], shown=["inf"])
    ]
    return [good, bad]


def verdicts() -> list[Verdict]:
    place = Position(6, 14), Position(6, 40)
    finding = Diagnostic(
        "MP201", "einsum-under-autocast", "a <sum> is inf", "model.py", *place,
        Severity.ERROR, Confidence.CERTAIN,
    )  # fmt: skip
    plan = Plan(finding, [Variant("def isolated(x):\n    return x < 1\n", [], [])])
    plan.variants[0].fixed = ["def isolated(x):\n    return x.float() < 1\n"]
    plan.variants[0].fixes = ["contract in float32"]
    plan.stands_for = {"x": "self.weight"}
    answer = {
        "variant": 0, "cured_by": 0, "phase": "forward", "kind": "inf", "scale": 1.0, "note": "",
        "before": "inf where the true value is 70000", "after": "is exact",
        "words": "float16 inputs",
        "inputs": [
            {"name": "x", "text": "torch.full((3,), 300.0, dtype=torch.float64)", "wide": False}
        ],
        "condition": {
            "policy": "cuda", "dtype": "float16", "inputs": "low", "region": False, "amp": True,
        },
    }  # fmt: skip
    return [
        Verdict(plan, "proven", answer=answer),
        Verdict(Plan(finding, reason="no expression"), "not isolated", "no expression"),
        Verdict(Plan(finding), "not reproduced", "nothing was found"),
    ]


def test_the_table_names_failures_and_an_interrupt() -> None:
    text = tables.as_text(results(), "cpu", interrupted=True)
    assert "MP301 eps-before-log  " in text and "cuda (emulated)" in text
    assert "MP501 bev.py: cpu/float16 backward: after the fix inf" in text
    assert text.endswith("2 not proven, interrupted\n")


def test_the_table_does_not_call_proven_what_is_only_shown() -> None:
    proven, shown, harmless = (Result(RULES[code]) for code in ("MP301", "MP205", "MP408"))
    proven.cells["loss.py"] = [
        cell("eager", "float16", "forward", "proven"),
        cell("eager", "bfloat16", "forward", "harmless"),
    ]
    shown.cells["step.py"] = [
        cell("cpu", "float16", "forward", "shown"),
        cell("cuda", "float16", "forward", "skipped"),
    ]
    harmless.cells["mask.py"] = [cell("eager", "float16", "forward", "harmless")]
    three = [proven, shown, harmless]
    end = "all as declared (1 proven, 1 shown without a fix, 1 no hazard here)"
    assert tables.as_text(three, "cpu").endswith(f": {end}\n")
    assert end in page.of_rules(three, "cpu")
    assert tables.as_text([proven], "cpu").endswith(": all proven\n")


def test_json_has_every_cell() -> None:
    told_ = json.loads(tables.as_json(results(), "cpu", interrupted=True))
    assert told_["interrupted"] is True
    assert [rule["proven"] for rule in told_["rules"]] == [True, False]
    assert len(told_["rules"][0]["cases"][0]["cells"]) == 4


def test_junit_counts_and_can_be_read() -> None:
    root = xml.fromstring(tables.as_junit(results(), "cpu"))
    first, second = root.findall("testsuite")
    assert (first.get("tests"), first.get("failures"), first.get("skipped")) == ("4", "0", "1")
    assert (second.get("tests"), second.get("failures"), second.get("errors")) == ("2", "1", "1")
    assert second.find(".//failure").get("message") == "after the fix inf"  # type: ignore[union-attr]


def test_junit_of_findings() -> None:
    [suite] = xml.fromstring(told.as_junit(verdicts())).findall("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert suite.find(".//failure").text == (  # type: ignore[union-attr]
        "x = torch.full((3,), 300.0, dtype=torch.float16)  # self.weight"
    )


def test_text_of_findings() -> None:
    text = told.as_text(verdicts())
    assert "model.py:6:14: MP201 einsum-under-autocast: proven\n  float16 inputs\n" in text
    assert "    x = torch.full((3,), 300.0, dtype=torch.float16)  # self.weight\n" in text
    assert "  after:  is exact (contract in float32)\n" in text
    assert "einsum-under-autocast: cannot be isolated\n  no expression\n" in text
    assert "1 proven, 1 not reproduced, 1 cannot be isolated" in text
    assert told.as_text([]) == "no findings\n"


def test_json_of_findings() -> None:
    found = json.loads(told.as_json(verdicts()))
    assert found["summary"] == {"proven": 1, "not reproduced": 1, "cannot be isolated": 1}
    first = found["findings"][0]
    assert first["location"] == {"row": 6, "column": 14} and first["fix"] == "contract in float32"


class _Page(HTMLParser):
    """What a page refers to, its ids, and whether its elements are closed."""

    VOID = ("meta", "br", "img", "link", "input", "hr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href"):
                self.links.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(text: str) -> _Page:
    """A page that needs nothing else."""
    found = _Page()
    found.feed(text)
    assert found.open == []
    assert "script" not in found.tags and "link" not in found.tags and "img" not in found.tags
    assert all(link.startswith("#") for link in found.links), found.links
    assert len(found.ids) == len(set(found.ids))
    assert {link[1:] for link in found.links} <= set(found.ids)
    assert "prefers-color-scheme: dark" in text and "url(http" not in text
    return found


def a_sweep(code: str) -> sweep.Sweep:
    errors: list[float | str | None] = [1e-4, 0.0, sweep.BROKEN, None]
    both: dict[str, list[float | str | None]] = {"before": errors, "after": [0.0, 1e-6, 1e-3, None]}
    return sweep.Sweep(
        f"{code}.py", "cuda", "factor of the inputs", [0.5, 1, 2, 4],
        dict.fromkeys(sweep.DTYPES, both),
    )  # fmt: skip


def test_the_page_of_rules_needs_nothing_else() -> None:
    pytest.importorskip("matplotlib")
    text = page.of_rules(results(), "cpu", {code: a_sweep(code) for code in ("MP301", "MP501")})
    found = read(text)
    assert {"MP301", "MP501"} <= set(found.ids)
    assert text.count("<svg") == 2 and "inf &amp; &lt;error&gt;" in text
    assert "currentColor" in text and plots.INK not in text
    assert "1 not proven" in text or "2 not proven" in text


def test_the_page_of_findings_needs_nothing_else() -> None:
    text = page.of_witnesses(verdicts(), "cpu")
    read(text)
    assert "a &lt;sum&gt; is inf" in text and "return x &lt; 1" in text
    assert "cannot be isolated" in text and "contract in float32" in text


def test_the_page_of_findings_has_plots() -> None:
    pytest.importorskip("matplotlib")
    found = verdicts()
    for one in found:
        if one.outcome == "proven":
            one.answer["sweep"] = dataclasses.asdict(a_sweep("MP301"))
    text = page.of_witnesses(found, "cpu")
    read(text)
    assert text.count("<svg") == sum(one.outcome == "proven" for one in found) > 0


def test_a_report_needs_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(page.Missing, match=r"pip install 'precision-lint\[report\]'"):
        page.require()


def test_a_sweep_sees_the_hazard_and_the_cure() -> None:
    """Of a real case: the original breaks where the inputs are large, the fixed text never."""
    from precision_lint.harness import collect, verify

    proof = collect.proof(RULES["MP504"])
    assert proof.folder is not None
    index = next(iter(sweep.chosen(proof.cases)))
    case = proof.cases[index]
    original, fixed = verify.texts(proof.rule, proof.folder / case.module, case.level)
    assert fixed is not None
    found = sweep.run(proof.folder, index, original, fixed)
    assert found is not None
    before, after = (found.errors["float16"][name] for name in ("before", "after"))
    assert sweep.BROKEN in before or any(isinstance(e, float) and e > 0.03 for e in before)
    assert all(isinstance(error, float) and error < 0.01 for error in after)


def test_no_bar_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bar(3) as tick:
        tick("one")
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_bar_on_a_terminal() -> None:
    pytest.importorskip("rich")
    import pty

    script = (
        "from precision_lint import progress\n"
        "with progress.bar(2) as tick:\n    tick('MP301 loss')\n    tick('MP301 other')\n"
    )
    reading, writing = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-c", script], stderr=writing, env=environment)
    os.close(writing)
    seen = b""
    try:
        while chunk := os.read(reading, 4096):
            seen += chunk
    except OSError:  # how a terminal tells that nobody writes any more
        pass
    os.close(reading)
    assert process.wait() == 0
    assert b"2/2" in seen and b"MP301 other" in seen


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_an_interrupt_ends_children_and_leaves_a_report(tmp_path: Path) -> None:
    """The user presses Ctrl-C when the first case is done."""
    script = (
        "import contextlib, os, signal, sys\n"
        "from precision_lint.harness import verify\n"
        "class Watched(verify.Children):\n"
        "    @contextlib.contextmanager\n"
        "    def started(self, command, **options):\n"
        "        with super().started(command, **options) as process:\n"
        "            print(process.pid, file=sys.stderr)\n"
        "            yield process\n"
        "pressed = []\n"
        "@contextlib.contextmanager\n"
        "def bar(total):\n"
        "    def tick(label):\n"
        "        if not pressed:\n"
        "            pressed.append(label)\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "    yield tick\n"
        "verify.Children, verify.progress.bar = Watched, bar\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it\n"
        "sys.exit(verify.main(select=['MP504'], jobs=1, output_format='json'))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == 130, run.stderr
    report = json.loads(run.stdout)
    assert report["interrupted"] is True
    [rule] = report["rules"]
    assert rule["proven"] is False and 1 <= len(rule["cases"]) < 5
    pids = [int(line) for line in run.stderr.splitlines() if line.isdigit()]
    assert len(pids) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
