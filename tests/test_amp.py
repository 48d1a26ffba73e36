"""Evidence that a project runs half precision: the spellings of frameworks, and what is none."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from precision_lint.project import amp
from precision_lint.project.amp import Project

F16, BF16 = "float16", "bfloat16"


def project(*lines: str) -> Project:
    return Project().with_file("train.py", "\n".join(("import torch", *lines, "")).encode())


MIXED = {
    'with torch.autocast("cuda"):': F16,
    'with torch.autocast(device_type="cuda", dtype=torch.float16):': F16,
    "with torch.cuda.amp.autocast():": F16,
    "with torch.cuda.amp.autocast(enabled=use_amp):": F16,
    "    with no_sync(), torch.autocast('cuda', dtype=torch.half):": F16,
    "with torch.autocast(": F16,
    '@torch.autocast("cuda")': F16,
    "@autocast()": F16,
    'amp_autocast = partial(torch.autocast, device_type="cuda")': F16,
    "amp_autocast = partial(torch.cuda.amp.autocast)": F16,
    "ctx = torch.autocast(device_type, dtype=torch.bfloat16)": BF16,
    "ctx = torch.autocast(device_type, dtype=torch.float16)": F16,
    'scaler = torch.amp.GradScaler("cuda")': F16,
    "scaler = torch.cuda.amp.GradScaler()": F16,
    "scaler = ShardedGradScaler()": F16,
    # Lightning, Fabric
    'trainer = Trainer(precision="16-mixed")': F16,
    'trainer = Trainer(precision="bf16-mixed", devices=2)': BF16,
    "trainer = pl.Trainer(max_epochs=3, precision=16)": F16,
    'trainer = Trainer(precision="16")': F16,
    "trainer = Trainer(precision='bf16')": BF16,
    'fabric = Fabric(accelerator="cuda", precision="bf16-mixed")': BF16,
    # HF Trainer, accelerate
    "args = TrainingArguments(output_dir, fp16=True)": F16,
    "args = Seq2SeqTrainingArguments(output_dir, bf16=True)": BF16,
    'accelerator = Accelerator(mixed_precision="fp16")': F16,
    "accelerator = Accelerator(mixed_precision='bf16')": BF16,
    "with accelerator.autocast():": F16,
    # mmengine, mmcv
    "optim_wrapper = AmpOptimWrapper(optimizer=optimizer)": F16,
    "optim_wrapper = dict(type='AmpOptimWrapper', optimizer=optimizer)": F16,
    "@auto_fp16()": F16,
    # fastai, Composer, Ignite, Catalyst, detectron2
    "learner = unet_learner(data, resnet34).to_fp16()": F16,
    'trainer = Trainer(precision="amp_fp16")': F16,
    "trainer = Trainer(precision='amp_bf16')": BF16,
    'trainer = create_supervised_trainer(model, optimizer, loss, amp_mode="amp")': F16,
    "runner.train(model=model, fp16=True)": F16,
    "trainer = AMPTrainer(model, loader, optimizer)": F16,
}
PURE = {
    "model.half()": F16,
    "model = model.to(device).bfloat16()": BF16,
    "x = x.to(torch.float16)": F16,
    'x = x.to(device="cuda", dtype=torch.bfloat16)': BF16,
    "model.to(device, torch.half)": F16,
    'pipe = from_pretrained("x", torch_dtype=torch.float16)': F16,
    'model = from_pretrained("x", dtype=torch.bfloat16)': BF16,
    "state = torch.zeros(3, dtype=torch.half)": F16,
    'trainer = Trainer(precision="16-true")': F16,
    "trainer = Trainer(precision='bf16-true')": BF16,
}
SILENT = [
    "with torch.no_grad():",
    "with torch.autocast(device_type=x.device.type, enabled=False):",
    "@torch.autocast('cuda', enabled=False)",
    "scaler = GradScaler(enabled=False)",
    'trainer = Trainer(precision="32-true")',
    "trainer = Trainer(precision=32)",
    "trainer = Trainer(precision=precision)",
    "args = TrainingArguments(fp16=False, bf16=args.bf16)",
    'accelerator = Accelerator(mixed_precision="no")',
    "# model.half()",
    '    # with torch.autocast("cuda"):',
    "if x.dtype == torch.float16:",
    "half = n // 2",
    "x = x.half_size()",
    "torch.is_autocast_enabled()",
    "low = torch.get_autocast_dtype('cuda')",
    "from torch.cuda.amp import autocast, GradScaler",
    "image = image.astype(np.float16)",
    "assert precision != 16",
]


@pytest.mark.parametrize("line", MIXED)
def test_mixed_precision(line: str) -> None:
    found = project(line)
    assert found.autocast is not None and found.half is None
    assert found.dtypes == {MIXED[line]} and not found.half_dtypes


@pytest.mark.parametrize("line", PURE)
def test_pure_half_precision(line: str) -> None:
    found = project(line)
    assert found.half is not None and found.autocast is None
    assert found.dtypes == found.half_dtypes == {PURE[line]}


@pytest.mark.parametrize("line", ["args.fp16_full_eval = True", "Args(bf16_full_eval=True)"])
def test_full_evaluation_in_half(line: str) -> None:
    found = project(line)
    assert found.half is not None and found.autocast is None


@pytest.mark.parametrize("line", SILENT)
def test_no_evidence(line: str) -> None:
    assert project(line) == Project()


def test_every_spelling_has_an_example() -> None:
    lines = [line.encode() + b"\n" for line in [*MIXED, *PURE, "fp16_full_eval=True"]]
    patterns = [re.compile(text.encode()) for _, text in amp.SPELLINGS]
    unused = [p.pattern for p in patterns if not any(map(p.search, lines))]
    assert unused == []


def test_the_dtype_of_a_region_is_no_pure_half() -> None:
    found = project("context = torch.autocast(device, dtype=torch.float16)")
    assert found.half is None and found.half_dtypes == frozenset()
    found = project("context = torch.autocast(device, dtype=torch.float16)", "model.bfloat16()")
    assert found.dtypes == {F16, BF16} and found.half_dtypes == {BF16}


def test_a_commented_line_does_not_hide_a_later_one() -> None:
    found = project("# model.half()", "model.half()")
    assert found.half is not None and found.half.start is not None
    assert found.half.start.row == 3


def test_evidence_names_its_place_and_quotes_the_line() -> None:
    found = project("", "with torch.autocast('cuda'):", "    pass", "model.half()")
    assert found.autocast is not None and found.autocast.start is not None
    assert (found.autocast.filename, found.autocast.start.row) == ("train.py", 3)
    assert found.autocast.message.endswith("`with torch.autocast('cuda'):`")
    assert found.half is not None and "model.half()" in found.half.message
    assert found.evidence == (found.autocast, found.half)


def test_the_first_place_is_kept_and_dtypes_add_up() -> None:
    first = project("scaler = GradScaler()")
    both = first.with_file("other.py", b"import torch\nTrainer(precision='bf16-mixed')\n")
    assert both.autocast == first.autocast
    assert both.dtypes == {F16, BF16}


def test_a_file_without_torch_says_nothing() -> None:
    assert Project().with_file("a.py", b"model.half()\n") == Project()


# a tree of files


def scan(root: Path, **files: str) -> Project:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path = path.with_name(path.name.replace("_py", ".py").replace("_txt", ".txt"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import torch\n{text}\n")
    return Project.scan(root, sorted(p for p in root.rglob("*") if p.is_file()))


def test_scan_reads_all_python_files(tmp_path: Path) -> None:
    found = scan(tmp_path, train_py="scaler = GradScaler()", src__eval_py="model.bfloat16()")
    assert found.dtypes == {F16, BF16} and found.half_dtypes == {BF16}
    assert found.half is not None and found.half.filename is not None
    assert found.half.filename.endswith("src/eval.py")


@pytest.mark.parametrize("place", ["tests__train_py", "src__test__train_py", "notes_txt"])
def test_scan_passes_over_tests_and_other_files(tmp_path: Path, place: str) -> None:
    assert scan(tmp_path, **{place: "model.half()"}) == Project()


def test_a_root_inside_of_tests_is_read(tmp_path: Path) -> None:
    root = tmp_path / "tests" / "sample"
    root.mkdir(parents=True)
    assert scan(root, train_py="model.half()").half is not None


def test_unreadable_and_huge_files_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    missing = [tmp_path / "gone.py", tmp_path / "never.py"]
    assert Project.scan(tmp_path, missing) == Project()
    monkeypatch.setattr(amp, "MAX_BYTES", 10)
    assert scan(tmp_path / "sub", train_py="model.half()") == Project()


def test_a_project_travels_to_other_processes() -> None:
    found = project("scaler = GradScaler()", "model.half()")
    assert pickle.loads(pickle.dumps(found)) == found
