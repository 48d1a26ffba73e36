"""What configuration files say of half precision: YAML, TOML, JSON, and broken ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precision_lint.project import amp, configs
from precision_lint.project.amp import Project, Survey

F, B = "float16", "bfloat16"
TEXTS = {
    # (name, text): kind, dtypes, strength, spelling, row
    ("a.yaml", "trainer:\n  precision: 16-mixed\n"): (
        "autocast", F, "on", "Lightning config: trainer.precision: 16-mixed", 2,
    ),
    ("a.yaml", "trainer: {devices: 1, precision: bf16}\n"): (
        "autocast", B, "on", "Lightning config: trainer.precision: bf16", 1,
    ),
    ("a.yml", "precision: 16\n"): ("autocast", F, "on", "config: precision: 16", 1),
    ("a.yaml", "trainer:\n  precision: bf16-true\n"): (
        "half", B, "on", "Lightning config: trainer.precision: bf16-true", 2,
    ),
    ("a.yaml", "compute_environment: LOCAL\nmixed_precision: 'fp16'\n"): (
        "autocast", F, "on", "Accelerate config: mixed_precision: fp16", 2,
    ),
    ("a.yaml", "downcast_bf16: 'yes'\n"): (
        "half", B, "on", "Accelerate config: downcast_bf16: yes", 1,
    ),
    ("a.yaml", "SOLVER:\n  LR: 0.1\n  AMP:\n    ENABLED: True\n"): (
        "autocast", F, "on", "Detectron2 config: SOLVER.AMP.ENABLED: True", 4,
    ),
    ("a.yaml", "use_amp: yes\n"): ("autocast", F, "on", "config: use_amp: yes", 1),
    ("a.yaml", "train:\n- amp: true  # faster\n"): (
        "autocast", F, "on", "config: train.0.amp: true", 2,
    ),
    ("a.yaml", "common:\n  fp16: true\n"): (
        "autocast", F, "on", "fairseq config: common.fp16: true", 2,
    ),
    ("a.yaml", "common:\n  memory_efficient_bf16: true\n"): (
        "half", B, "on", "fairseq config: common.memory_efficient_bf16: true", 2,
    ),
    ("a.yaml", "dtype: bf16\n"): ("half", B, "on", "config: dtype: bf16", 1),
    ("a.yaml", "amp_dtype: bfloat16\n"): ("autocast", B, "flag", "config: amp_dtype: bfloat16", 1),
    ("a.yaml", "half: True\n"): ("half", F, "on", "config: half: True", 1),
    ("a.yaml", "runner:\n  engine:\n    _target_: catalyst.engines.GPUEngine\n    fp16: y\n"): (
        "autocast", F, "on", "config: runner.engine.fp16: y", 4,
    ),
    ("a.yaml", "scaler:\n  type: GradScaler\n  enabled: True\n"): (
        "autocast", F, "on", "config: scaler.type: GradScaler", 2,
    ),
    ("a.yaml", "- class_path: lightning.plugins.MixedPrecisionPlugin\n"): (
        "autocast", F, "on", "config: 0.class_path: lightning.plugins.MixedPrecisionPlugin", 1,
    ),
    # what YAML has beside keys and values
    ("a.yaml", "%YAML 1.1\n---\na: 1\n---\nfp16: true\n"): (
        "autocast", F, "on", "config: fp16: true", 5,
    ),
    ("a.yaml", "base: &base !custom {a: 1}\nx:\n  <<: *base\n  fp16: true\n"): (
        "autocast", F, "on", "config: x.fp16: true", 4,
    ),
    ("a.yaml", "fp16: true\nname: {{ jinja }}\n  - broken\n"): (
        "autocast", F, "on", "config: fp16: true", 1,
    ),
    ("a.yaml", "\ufeffuse_amp: true\r\n"): ("autocast", F, "on", "config: use_amp: true", 1),
    ("a.yaml", "? [a, b]\n: fp16\n? {c: d}\n: e\nuse_amp: true\n"): (
        "autocast", F, "on", "config: use_amp: true", 5,
    ),
    # JSON
    ("ds.json", '{"zero": {"enabled": false},\n "fp16": {\n  "enabled": true}}'): (
        "half", F, "on", "DeepSpeed config: fp16.enabled: true", 3,
    ),
    ("ds.json", '{\n"bf16": {"enabled": "auto"}}'): (
        "half", B, "flag", "DeepSpeed config: bf16.enabled: auto", 2,
    ),
    ("ds.json", '{"torch_autocast": {"enabled": true, "dtype": "bfloat16"}}'): (
        "autocast", B, "on", "DeepSpeed config: torch_autocast.enabled: true", 1,
    ),
    ("config.json", '{"hidden_size": 8,\n"torch_dtype": "float16"}'): (
        "half", F, "flag", "Hugging Face model config: torch_dtype: float16", 2,
    ),
    ("minified.json", '{"trainer":{"gpus":1,"precision":16}}'): (
        "autocast", F, "on", "Lightning config: trainer.precision: 16", 1,
    ),
    # TOML
    ("a.toml", "[train]\nmixed_precision = 'bf16'\n"): (
        "autocast", B, "on", "config: train.mixed_precision: bf16", 2,
    ),
    ("a.toml", "[fp16]\nloss = 1\nenabled = true\n"): (
        "half", F, "on", "DeepSpeed config: fp16.enabled: true", 3,
    ),
}  # fmt: skip
SILENT = [
    ("a.yaml", "trainer:\n  precision: 32\n"),
    ("a.yaml", "trainer:\n  precision: 32-true\n"),
    ("a.yaml", "mixed_precision: no\n"),
    ("a.yaml", "mixed_precision: 'no'\ndowncast_bf16: 'no'\n"),
    ("a.yaml", "SOLVER:\n  AMP:\n    ENABLED: False\n"),
    ("a.yaml", "amp: false\nfp16: null\nbf16: ~\nhalf: False\n"),
    ("a.yaml", "# fp16: true\n"),
    ("a.yaml", "help: |\n  fp16: true\n"),
    ("a.yaml", "help: 'fp16: true'\n"),
    ("a.yaml", "fp16:\n  enabled: false\n  loss_scale: 0\n"),
    ("a.yaml", "amp:\n  enabled: false\n  opt_level: O1\n"),
    ("a.yaml", "ema:\n  enabled: true\n"),
    ("a.yaml", "display:\n  precision: 16\n"),
    ("a.yaml", "sample: true\nstamp: 1\n"),
    ("a.yaml", "sampler:\n  type: RandomSampler\n"),
    ("a.yaml", "fp16_opt_level: O1\n"),
    ("ds.json", '{"fp16": {"enabled": false, "loss_scale": 0}}'),
    ("ds.json", '{"fp16": {"enabled": true}'),
    ("column.json", '{"type": "decimal", "column": {"precision": 16, "scale": 2}}'),
    ("a.toml", "fp16 = false\n"),
    ("a.toml", "fp16 = true\nbroken\n"),
    ("package-lock.json", '{"fp16": true}'),
    ("notes.txt", "fp16: true\n"),
]


def read(name: str, text: str) -> Project:
    return Project().with_file(name, text.encode())


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_half_precision(name: str, text: str) -> None:
    kind, dtype, strength, spelling, row = TEXTS[name, text]
    found = read(name, text)
    evidence = found.half if kind == "half" else found.autocast
    assert evidence is not None and found.evidence == (evidence,) and evidence.start is not None
    assert dtype in found.dtypes and (found.half_dtypes == {dtype}) == (kind == "half")
    assert (found.half_strength if kind == "half" else found.autocast_strength) == strength
    noun = "mixed precision" if kind == "autocast" else "half precision tensors"
    verb = {"on": "uses", "flag": "offers"}[strength]
    assert evidence.message == f"the project {verb} {noun}: {spelling}"
    assert (evidence.filename, evidence.start.row) == (name, row)


@pytest.mark.parametrize(("name", "text"), SILENT)
def test_no_half_precision(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert Survey.scan(tmp_path, [path]) == Survey(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["package-lock.json", "pnpm-lock.yaml", "poetry.lock.toml", "tokenizer.json", "vocab.json",
     "tokenizer_config.json", "tsconfig.build.json", "model.safetensors.index.json",
     "added_tokens.json", "special_tokens_map.json", "package.json"],
)  # fmt: skip
def test_files_that_configure_no_training(name: str) -> None:
    assert configs.is_data(name)


@pytest.mark.parametrize("name", ["config.json", "ds_config.json", "train.yaml", "pyproject.toml"])
def test_files_that_may_configure_a_training(name: str) -> None:
    assert configs.is_config(name) and not configs.is_data(name)


# robustness

DEEP = 100_000
HOSTILE = {
    "brackets.json": b'{"fp16": ' + b"[" * DEEP,
    "objects.json": b'{"fp16": true, "a":' * (DEEP // 10),
    "nested.json": b'{"fp16":' * 900 + b"true" + b"}" * 900,
    "digits.json": b'{"fp16": ' + b"1" * 10_000 + b"}",
    "brackets.yaml": b"fp16: " + b"[" * DEEP,
    "braces.yaml": b"fp16: " + b"{a: " * 20_000,
    "dashes.yaml": b"fp16: true\na:\n " + b"- " * DEEP,
    "indents.yaml": b"\n".join(b" " * depth + b"fp16:" for depth in range(600)),
    "laughs.yaml": b"a: &a [fp16: true]\n" + b"".join(
        b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in range(98, 120)
    ),
    "itself.yaml": b"fp16: &a\n  enabled: *a\n",
    "tags.yaml": b"fp16: !!python/object/apply:os.system [true]\n",
    "version.yaml": b"%YAML 99999999999999999999.1\n---\nfp16: true\n",
    "brackets.toml": b"fp16 = " + b"[" * DEEP,
    "dots.toml": b"fp16" + b".a" * 20_000 + b" = true\n",
    "nul.yaml": b"fp16: true\n\0\n",
    "nul.json": b'{"fp16": true}\0',
    "binary.yaml": b"\x80\xff\xfe fp16: true\n",
    "binary.toml": b"\x89PNG fp16 = true\n",
    "utf16.json": '{"fp16": true}'.encode("utf-16"),
    "utf16.yaml": "fp16: true\n".encode("utf-16"),
    "brackets.py": b"fp16 = " + b"[" * DEEP,
    "sums.py": b"import torch\nfp16 = " + b"+".join([b"1"] * DEEP) + b"\nx = y.half()\n",
    "choices.py": b"import torch\nuse_amp = " + b"True if x else " * 3_000 + b"False\n",
    "nul.py": b"import torch\nuse_amp = True\0\n",
    "syntax.py": b"import torch\nuse_amp = True = \n",
    "coding.py": b"# coding: nowhere\nuse_amp = True  # torch\n",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_no_file_breaks_the_scan(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(HOSTILE[name])
    (tmp_path / "z.yaml").write_text("half: true\n")
    found = Survey.scan(tmp_path, sorted(tmp_path.iterdir())).around(tmp_path / "a.py")
    assert found.half is not None
    Project().with_file(name, HOSTILE[name])


def test_yaml_before_an_error_counts_where_the_parser_gets_there() -> None:
    assert Project().with_file("dashes.yaml", HOSTILE["dashes.yaml"]).autocast is not None
    assert Project().with_file("nul.yaml", HOSTILE["nul.yaml"]) == Project()


def test_a_crowd_of_files_is_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amp, "MAX_DATA", 2)
    for name in ("a.json", "b.json", "c.json", "c.yaml"):
        (tmp_path / name).write_text('{"fp16": true}')
    found = Survey.scan(tmp_path, tmp_path.iterdir()).around(tmp_path / "a.py").autocast
    assert found is not None and found.filename is not None
    assert found.filename.endswith("c.yaml")


def test_huge_files_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("use_amp: true\n" + "# more\n" * (configs.MAX_BYTES // 7))
    assert Survey.scan(tmp_path, [path]) == Survey(tmp_path)
    assert Project().with_file("a.yaml", path.read_bytes()) == Project()


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    name=st.sampled_from(["a.yaml", "a.json", "a.toml", "a.py"]),
    parts=st.lists(
        st.one_of(
            st.sampled_from(
                ["fp16", "amp", "enabled", "precision", "true", "16", ": ", " = ", "{", "}", "[",
                 "]", "\n", "\n  ", "- ", '"', "'", "&a ", "*a ", "!t ", "? ", "#", "|\n", ",",
                 "torch", "autocast(", ".half()", ")", "if ", "lambda ", "\0", "\ufeff", "---\n"]
            ),
            st.text(max_size=3),
        ),
        max_size=40,
    ),
)  # fmt: skip
def test_no_text_raises(name: str, parts: list[str]) -> None:
    data = "".join(parts).encode("utf8", "surrogatepass")
    configs.statements(name, data)
    Project().with_file(name, data)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=60), name=st.sampled_from(["a.yaml", "a.json", "a.toml", "a.py"]))
def test_no_bytes_raise(data: bytes, name: str) -> None:
    Project().with_file(name, b"torch fp16: true\n" + data)
    Project().with_file(name, b"use_amp = True " + data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 40) | st.sampled_from(["fp16", "auto", "O1", "no"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["fp16", "amp", "enabled", "precision", "trainer", "dtype", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(value=st.dictionaries(st.sampled_from(["trainer", "fp16", "amp", "a"]), json_values))
def test_json_reads_alike_as_yaml(value: object) -> None:
    text = json.dumps(value)
    as_json, as_yaml = read("a.json", text), read("a.yaml", text)
    assert as_json.autocast_strength == as_yaml.autocast_strength
    assert as_json.dtypes == as_yaml.dtypes
