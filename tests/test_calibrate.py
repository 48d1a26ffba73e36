"""The calibration: labels get what findings rest on, and the model says what is so."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from benchmarks import calibrate
from benchmarks.calibrate import Label

LOSS = "import torch\n\n\ndef loss(x):\n    return torch.log(x.half() + 1e-8)\n"


def label(repo: str, verdict: str, *assumptions: str) -> Label:
    return Label(repo, "1", "m.py", 1, "MP301", verdict, "likely", (), assumptions)


def test_labels_get_what_the_finding_there_rests_on(tmp_path: Path) -> None:
    (tmp_path / "one+two").mkdir()
    (tmp_path / "one+two/m.py").write_text(LOSS)
    rows = [
        {"repo": "one/two", "commit": "1", "file": "m.py", "line": line, "rule": rule, "verdict": "right"}
        for line, rule in ((5, "MP301"), (1, "MP301"), (5, "MP102"))
    ]  # fmt: skip
    given, made = tmp_path / "labels.jsonl", tmp_path / "atoms.jsonl"
    given.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert (
        calibrate.main(["atoms", str(given), "--trees", str(tmp_path), "--output", str(made)]) == 0
    )
    found, far, other = calibrate.read([made])
    assert (found.confidence, found.modes, found.assumptions) == ("certain", ("code",), ())
    assert (far.confidence, other.confidence) == (None, None)


def test_the_model_learns_what_makes_findings_wrong() -> None:
    some = random.Random(1)
    labels = []
    for number in range(300):
        bad = some.random() < 0.5
        right = some.random() < (0.2 if bad else 0.9)
        assumed = ("the values are large enough",) if bad else ()
        labels.append(label(f"repo{number % 30}", "right" if right else "wrong", *assumed))
    model = calibrate.fitted(labels)
    assert model(label("x", "right").features) == pytest.approx(0.9, abs=0.08)
    doubted = label("x", "right", "the values are large enough").features
    assert model(doubted) == pytest.approx(0.2, abs=0.08)
    said = calibrate.validated(labels)
    assert len(said) == len(labels)
    (low, rarely, few), (high, mostly, many) = sorted(calibrate.curve(said), key=lambda b: -b[2])[
        :2
    ]
    assert few + many > 250 and (low < high) == (rarely < mostly)


def test_repositories_are_held_out_as_a_whole() -> None:
    labels = [label(f"repo{n}", "right" if n % 2 else "wrong", f"only {n}") for n in range(20)]
    assert {round(p, 1) for p, _ in calibrate.validated(labels)} <= {0.4, 0.5, 0.6}


def test_interval_of_a_share() -> None:
    low, high = calibrate.interval(8, 10)
    assert (round(low, 2), round(high, 2)) == (0.49, 0.94)
    assert calibrate.interval(0, 0) == (0.0, 1.0)


def test_report_counts_and_plots(tmp_path: Path) -> None:
    labels = [
        label(f"repo{n}", "right" if n % 3 else "wrong", "there are enough terms")
        for n in range(30)
    ]
    target = tmp_path / "curve.svg"
    text = calibrate.report(labels, target)
    assert "| likely | 30 | 20 | 67% |" in text
    assert "| there are enough terms | 30 | 20 | 67% |" in text
    assert target.read_text("utf8").lstrip().startswith("<?xml")


def test_labels_without_stated_modes_are_counted_by_mode_and_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = {"repo": "a/b", "commit": "1", "file": "m.py", "line": 1, "confidence": "likely"}
    rows = [
        {**common, "rule": "MP301", "verdict": "right", "modes": ["code"],
         "assumptions": ["one thing", calibrate.OUTSIDE, "another thing"]},
        {**common, "rule": "MP002", "verdict": "right", "modes": []},
        {**common, "rule": "MP502", "verdict": "wrong", "modes": ["float16"]},
        {**common, "rule": "MP206", "verdict": "right", "modes": ["amp-float16"], "stated": "amp-float16"},
    ]  # fmt: skip
    path = tmp_path / "labels.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert calibrate.main(["fit", "--unstated", str(path)]) == 0
    said = capsys.readouterr().out
    assert "| as written | 1 | 1 |" in said and "| half weights | 1 | 0 |" in said
    assert "| MP502 | 1 | 0 |" in said and "MP206" not in said
    assert "| as written, 2 or more | 1 | 1 |" in said and "| none | 1 | 1 |" in said
    assert calibrate.main(["fit", str(path)]) == 0
    assert "| autocast | 1 | 1 |" in capsys.readouterr().out
