"""How sure a finding is, held against people's verdicts on findings.

python -m benchmarks.calibrate atoms LABELS... --trees DIR --output ATOMS
python -m benchmarks.calibrate fit ATOMS... --plot docs/assets/calibration.svg

``atoms`` lints the file of each label again, in its tree, and writes the label with what the finding
there rests on now: its confidence, its modes and its assumptions.  ``fit`` counts how often each
confidence and each assumption is right, fits a logistic model to what findings rest on, validates
it on repositories that it was not fitted to, and plots what it says against what is so.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEAR = 1
"""Rows by which a finding may miss its label."""
FOLDS = 10
PENALTY = 1.0
"""Weight of the squares of the model's coefficients."""
OUTSIDE = "this is not called inside an autocast region"
EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Bins of what the model says."""


@dataclass(frozen=True)
class Label:
    """A finding that people judged: ``right``, ``if-half`` (right if its mode were stated), ``arguable``,
    ``wrong``, or ``disputed`` between them.

    stated: the modes that were stated, if any.  confidence, modes, assumptions: of the finding there now; no
    confidence: there is none.
    """

    repo: str
    commit: str
    file: str
    line: int
    rule: str
    verdict: str
    confidence: str | None = None
    modes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    stated: str = ""

    @property
    def right(self) -> bool:
        return self.verdict in ("right", "if-half")

    @property
    def family(self) -> str:
        """The family of its modes."""
        if not self.modes:
            return "none"
        if "code" in self.modes:
            return "as written"
        return "autocast" if any(one.startswith("amp") for one in self.modes) else "half weights"

    @property
    def features(self) -> frozenset[str]:
        """What the finding rests on, and the family of its rule."""
        code = {"as written"} if "code" in self.modes else set()
        return frozenset({*self.assumptions, f"{self.rule[:3]}xx", *code})


def read(paths: Iterable[Path]) -> list[Label]:
    """Labels, one JSON object a line; keys that a label does not have are skipped."""
    known = {field.name for field in dataclasses.fields(Label)}
    found = []
    for path in paths:
        for line in path.read_text("utf8").splitlines():
            row = {name: value for name, value in json.loads(line).items() if name in known}
            for name in ("modes", "assumptions"):
                row[name] = tuple(row.get(name, ()))
            found.append(Label(**row))
    return found


def atoms(labels: Sequence[Label], tree: Callable[[Label], Path], linter: str) -> Iterator[Label]:
    """The labels with what the findings at their places rest on now."""
    files: dict[tuple[Path, str], list[Label]] = {}
    for one in labels:
        files.setdefault((tree(one), one.file), []).append(one)
    with ThreadPoolExecutor(2) as pool:
        lints = pool.map(lambda key: _lint(linter, *key), files)
        for found, ones in zip(lints, files.values(), strict=True):
            for one in ones:
                near = [row for row in found if row["code"] == one.rule and _off(row, one) <= NEAR]
                yield _with(one, min(near, key=lambda row: _off(row, one))) if near else one


def _off(row: dict[str, Any], label: Label) -> int:
    return abs(int(row["location"]["row"]) - label.line)


def _with(label: Label, row: dict[str, Any]) -> Label:
    modes, assumptions = tuple(row["modes"]), tuple(row["assumptions"])
    return dataclasses.replace(
        label, confidence=row["confidence"], modes=modes, assumptions=assumptions
    )


def _lint(linter: str, folder: Path, file: str) -> list[dict[str, Any]]:
    if not (folder / file).is_file():
        print(f"{folder / file}: not there; its labels count as gone", file=sys.stderr)
        return []
    start = [linter] if linter else [sys.executable, "-m", "precision_lint"]
    command = [*start, "check", "-n", "--isolated", "--confidence", "possible", "-j", "1"]
    command += ["--output-format", "json", "--exit-zero", file]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    found: list[dict[str, Any]] = json.loads(run.stdout or "[]")
    return found


@dataclass(frozen=True)
class Model:
    """A logistic model of how likely a finding is right."""

    bias: float
    weights: dict[str, float]

    def __call__(self, features: Iterable[str]) -> float:
        return _sigmoid(self.bias + sum(self.weights.get(one, 0.0) for one in features))


def fitted(labels: Sequence[Label]) -> Model:
    """The model that maximises the penalised likelihood, by steps along the gradient."""
    names = sorted(frozenset[str]().union(*(one.features for one in labels)))
    bias, weights = 0.0, dict.fromkeys(names, 0.0)
    rate = 4 / (len(labels) + PENALTY)
    for _ in range(2000):
        off = dict.fromkeys(names, 0.0)
        lean = 0.0
        for one in labels:
            guess = _sigmoid(bias + sum(weights[name] for name in one.features))
            lean += one.right - guess
            for name in one.features:
                off[name] += one.right - guess
        bias += rate * lean / 4
        for name in names:
            weights[name] += rate * (off[name] - PENALTY * weights[name]) / 4
    return Model(bias, weights)


def validated(labels: Sequence[Label]) -> list[tuple[float, bool]]:
    """What models say of repositories that they were not fitted to, and what is so."""
    repos = sorted({one.repo for one in labels})
    said = []
    for fold in range(FOLDS):
        held = set(repos[fold::FOLDS])
        rest = [one for one in labels if one.repo not in held]
        if not held or not rest:
            continue
        model = fitted(rest)
        said += [(model(one.features), one.right) for one in labels if one.repo in held]
    return said


def interval(right: int, count: int) -> tuple[float, float]:
    """Wilson's interval of a share, at 95 %."""
    if not count:
        return 0.0, 1.0
    z, share = 1.96, right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    half /= 1 + z * z / count
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-max(min(x, 30.0), -30.0)))


def table(head: str, groups: dict[str, list[Label]]) -> list[str]:
    """Markdown: of each group how many are right, with the interval."""
    lines = [f"| {head} | findings | right | share | 95 % |", "| --- | ---: | ---: | ---: | --- |"]
    for name, ones in sorted(groups.items(), key=lambda item: -len(item[1])):
        right = sum(one.right for one in ones)
        low, high = interval(right, len(ones))
        share = f"{right / len(ones):.0%}"
        lines.append(f"| {name} | {len(ones)} | {right} | {share} | {low:.0%} to {high:.0%} |")
    return lines


def grouped(
    labels: Iterable[Label], keys: Callable[[Label], Iterable[str]]
) -> dict[str, list[Label]]:
    """Labels by each of their keys."""
    found: dict[str, list[Label]] = {}
    for one in labels:
        for key in keys(one):
            found.setdefault(key, []).append(one)
    return found


def guesses(label: Label) -> Iterator[str]:
    """The family of a finding's modes, and how much it assumes besides that no region is around it."""
    count = sum(one != OUTSIDE for one in label.assumptions)
    yield f"{label.family}, {min(count, 2)}{' or more' if count > 1 else ''}"


def curve(said: Sequence[tuple[float, bool]]) -> list[tuple[float, float, int]]:
    """By bin: the mean of what is said, the share of what is so, and how many."""
    bins: list[tuple[float, float, int]] = []
    for low, high in itertools.pairwise(EDGES):
        inside = [(p, right) for p, right in said if low <= p < high or (p == high == 1.0)]
        if inside:
            mean = sum(p for p, _ in inside) / len(inside)
            bins.append((mean, sum(right for _, right in inside) / len(inside), len(inside)))
    return bins


def plot(bins: Sequence[tuple[float, float, int]], path: Path) -> None:
    """The reliability curve with its counts, as SVG."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "precision-lint"
    figure, axes = pyplot.subplots(figsize=(5, 5))
    axes.plot([0, 1], [0, 1], color="#999", linewidth=1, label="as it should be")
    for mean, share, count in bins:
        low, high = interval(round(share * count), count)
        axes.vlines(mean, low, high, color="#1f6feb", linewidth=1)
        axes.annotate(f" {count}", (mean, share))
    axes.plot([b[0] for b in bins], [b[1] for b in bins], "o-", color="#1f6feb", label="measured")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="what the model says", ylabel="share that is right")
    axes.legend(loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def report(labels: Sequence[Label], target: Path | None) -> str:
    """Markdown with all counts; the curve goes to ``target``."""
    now = [one for one in labels if one.confidence is not None]
    likely = [one for one in now if one.confidence == "likely"]
    parts = [f"{len(labels)} labels, of which {len(now)} are findings now, "
             f"in {len({one.repo for one in now})} repositories and packages."]  # fmt: skip
    parts.append("\n".join(table("confidence", grouped(now, lambda one: [str(one.confidence)]))))
    parts.append(
        "\n".join(table("assumption", grouped(now, lambda one: one.assumptions or ["none"])))
    )
    parts.append("\n".join(table("modes", grouped(now, lambda one: [one.family]))))
    parts.append("\n".join(table("likely, guesses", grouped(likely, guesses))))
    parts.append("\n".join(table("rules", grouped(now, lambda one: [f"{one.rule[:3]}xx"]))))
    parts.append("\n".join(table("rule", grouped(now, lambda one: [one.rule]))))
    said = validated(now)
    bins = curve(said)
    lines = ["| the model says | findings | right |", "| ---: | ---: | ---: |"]
    lines += [f"| {mean:.0%} | {count} | {share:.0%} |" for mean, share, count in bins]
    brier = sum((p - right) ** 2 for p, right in said) / max(len(said), 1)
    base = sum(one.right for one in now) / max(len(now), 1)
    parts.append("\n".join(lines))
    parts.append(f"Brier score {brier:.3f}; {base * (1 - base):.3f} for the mean alone.")
    model = fitted(now)
    weights = sorted(model.weights.items(), key=lambda item: item[1])
    parts.append("\n".join(["| rests on | weight |", "| --- | ---: |",
                            *(f"| {name} | {weight:+.2f} |" for name, weight in weights)]))  # fmt: skip
    if target is not None:
        plot(bins, target)
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibrate", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    again = commands.add_parser("atoms", help="lint the labelled places again")
    again.add_argument("labels", nargs="+", type=Path)
    again.add_argument("--trees", type=Path, required=True, help="a tree each: owner+name, name")
    again.add_argument("--linter", default="", help="by default the one beside this script")
    again.add_argument("--output", type=Path, required=True)
    fit = commands.add_parser("fit", help="count, fit, validate, plot")
    fit.add_argument("labels", nargs="+", type=Path)
    fit.add_argument("--plot", type=Path)
    fit.add_argument("--unstated", action="store_true", help="only labels without stated modes")
    options = parser.parse_args(arguments)
    labels = read(options.labels)
    if options.command == "fit":
        if options.unstated:
            labels = [one for one in labels if not one.stated]
        print(report(labels, options.plot))
        return 0
    rows = atoms(labels, lambda one: options.trees / folder(one), options.linter)
    text = "".join(f"{json.dumps(dataclasses.asdict(one))}\n" for one in rows)
    options.output.write_text(text, "utf8")
    return 0


def folder(label: Label) -> str:
    """The name of a label's tree."""
    return label.repo.removeprefix("pypi:").replace("/", "+")


if __name__ == "__main__":
    sys.exit(main())
