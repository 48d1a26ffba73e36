"""How frameworks spell half precision in Python, and what looks like it and is not."""

from __future__ import annotations

import pytest

from precision_lint.project.amp import Project

F, B = "float16", "bfloat16"
LINES = {
    # source: kind, dtypes, strength
    # torch: regions
    'with torch.autocast("cuda"): pass': ("autocast", F, "on"),
    'with torch.autocast(device_type="cuda", dtype=torch.float16): pass': ("autocast", F, "on"),
    "with torch.cuda.amp.autocast(): pass": ("autocast", F, "on"),
    "with torch.cuda.amp.autocast(True): pass": ("autocast", F, "on"),
    "with torch.cuda.amp.autocast(dtype=torch.bfloat16): pass": ("autocast", B, "on"),
    "with torch.cpu.amp.autocast(): pass": ("autocast", B, "on"),
    'with torch.autocast("cpu"): pass': ("autocast", B, "on"),
    'with torch.amp.autocast("cuda", torch.half): pass': ("autocast", F, "on"),
    "with torch.autocast(\n    device,\n    dtype=dtype,\n): pass": ("autocast", "", "on"),
    "with no_sync(), torch.autocast('cuda', dtype=torch.half): pass": ("autocast", F, "on"),
    "with torch.cuda.amp.autocast(enabled=use_amp): pass": ("autocast", F, "flag"),
    "with torch.cuda.amp.autocast(self.fp16): pass": ("autocast", F, "flag"),
    "with torch.autocast('cuda', enabled=x.is_cuda): pass": ("autocast", F, "on"),
    "with torch.autocast('cuda', enabled=self.amp and x.is_cuda): pass": ("autocast", F, "flag"),
    "if args.amp:\n    with torch.autocast('cuda'): pass": ("autocast", F, "flag"),
    "if torch.cuda.is_available():\n    with autocast(): pass": ("autocast", F, "on"),
    '@torch.autocast("cuda")\ndef f(): pass': ("autocast", F, "on"),
    "@autocast()\ndef f(): pass": ("autocast", F, "on"),
    "from torch.cuda.amp import autocast as mixed\nwith mixed(): pass": ("autocast", F, "on"),
    "import torch.cuda.amp as ta\nwith ta.autocast(): pass": ("autocast", F, "on"),
    "from torch.cuda import amp\nwith amp.autocast(): pass": ("autocast", F, "on"),
    "ctx = torch.autocast(kind, dtype=torch.bfloat16)": ("autocast", B, "on"),
    "ctx = nullcontext() if cpu else torch.autocast('cuda', torch.float16)": ("autocast", F, "on"),
    "stack.enter_context(torch.autocast('cuda'))": ("autocast", F, "on"),
    'ctx = partial(torch.autocast, device_type="cuda")': ("autocast", F, "on"),
    "ctx = functools.partial(torch.cuda.amp.autocast)": ("autocast", F, "on"),
    "ctx = partial(torch.autocast, 'cuda', dtype=torch.bfloat16)": ("autocast", B, "on"),
    "amp_autocast = torch.cuda.amp.autocast": ("autocast", "", "on"),
    "def region():\n    return torch.autocast": ("autocast", "", "on"),
    "with self.maybe_autocast(dtype=torch.float16): pass": ("autocast", F, "flag"),
    "with accelerator.autocast(): pass": ("autocast", "", "on"),
    "with fabric.autocast(): pass": ("autocast", "", "on"),
    "torch.set_autocast_enabled('cuda', True)": ("autocast", "", "on"),
    "amp_dtype = torch.bfloat16": ("autocast", B, "flag"),
    # torch: scalers
    'scaler = torch.amp.GradScaler("cuda")': ("autocast", F, "on"),
    "scaler = torch.cuda.amp.GradScaler()": ("autocast", F, "on"),
    "scaler = ShardedGradScaler()": ("autocast", F, "on"),
    "scaler = GradScaler(enabled=args.amp)": ("autocast", F, "flag"),
    "scaler = GradScaler() if use_amp else None": ("autocast", F, "flag"),
    # torch: tensors and models
    "model.half()": ("half", F, "on"),
    "self.encoder.half()": ("half", F, "on"),
    "model = model.to(device).bfloat16()": ("half", B, "on"),
    "model.to(device, torch.half)": ("half", F, "on"),
    "net.to(dtype=torch.bfloat16)": ("half", B, "on"),
    "x = x.half()": ("half", F, "local"),
    "x = x.to(torch.float16)": ("half", F, "local"),
    'x = x.to(\n    device="cuda",\n    dtype=torch.bfloat16,\n)': ("half", B, "local"),
    "x = x.type(torch.cuda.HalfTensor)": ("half", F, "local"),
    "x = torch.zeros(3, dtype=torch.half)": ("half", F, "local"),
    "if args.half:\n    model.half()": ("half", F, "flag"),
    "torch.set_default_dtype(torch.bfloat16)": ("half", B, "on"),
    "torch.set_default_tensor_type(torch.cuda.HalfTensor)": ("half", F, "on"),
    'torch.set_default_tensor_type("torch.HalfTensor")': ("half", F, "on"),
    "weight_dtype = torch.float16": ("half", F, "flag"),
    "policy = MixedPrecision(param_dtype=torch.bfloat16)": ("half", B, "on"),
    # Apex
    'model, opt = amp.initialize(model, opt, opt_level="O1")': ("autocast", F, "on"),
    'model, opt = amp.initialize(model, opt, opt_level="O2")': ("half", F, "on"),
    "model, opt = amp.initialize(model, opt)": ("autocast", F, "on"),
    "with amp.scale_loss(loss, opt) as scaled: pass": ("autocast", F, "on"),
    "model = network_to_half(model)": ("half", F, "on"),
    # Lightning, Fabric
    'trainer = Trainer(precision="16-mixed")': ("autocast", F, "on"),
    'trainer = L.Trainer(precision="bf16-mixed", devices=2)': ("autocast", B, "on"),
    "trainer = pl.Trainer(max_epochs=3, precision=16)": ("autocast", F, "on"),
    'trainer = Trainer(precision="16")': ("autocast", F, "on"),
    "trainer = Trainer(precision='bf16')": ("autocast", B, "on"),
    'fabric = Fabric(accelerator="cuda", precision="bf16-mixed")': ("autocast", B, "on"),
    'trainer = Trainer(precision="16-true")': ("half", F, "on"),
    "trainer = Trainer(precision='bf16-true')": ("half", B, "on"),
    "Trainer(precision='transformer-engine-float16')": ("autocast", F, "on"),
    "Trainer(precision=16 if args.amp else 32)": ("autocast", F, "flag"),
    "Trainer(precision=16 if torch.cuda.is_available() else 32)": ("autocast", F, "on"),
    'Trainer(plugins=[MixedPrecision("16-mixed", "cuda")])': ("autocast", F, "on"),
    'Trainer(plugins=MixedPrecisionPlugin("bf16-mixed", "cuda"))': ("autocast", B, "on"),
    'Trainer(plugins=HalfPrecision("bf16-true"))': ("half", B, "on"),
    "trainer_args = dict(gpus=1, precision=16)": ("autocast", F, "on"),
    'trainer_kwargs = {"precision": "bf16-mixed"}': ("autocast", B, "on"),
    "cfg.trainer.precision = 16": ("autocast", F, "on"),
    # Transformers
    "TrainingArguments(output_dir, fp16=True)": ("autocast", F, "on"),
    "Seq2SeqTrainingArguments(output_dir, bf16=True)": ("autocast", B, "on"),
    "TrainingArguments(fp16=False, bf16=args.bf16)": ("autocast", B, "flag"),
    "TrainingArguments(output_dir, fp16_full_eval=True)": ("half", F, "on"),
    "args.bf16_full_eval = True": ("half", B, "on"),
    "args.fp16 = True": ("autocast", F, "on"),
    'AutoModel.from_pretrained("x", torch_dtype=torch.float16)': ("half", F, "on"),
    'AutoModel.from_pretrained("x", dtype=torch.bfloat16)': ("half", B, "on"),
    'AutoModel.from_pretrained("x", torch_dtype="float16")': ("half", F, "on"),
    'pipeline("text", dtype="bfloat16")': ("half", B, "on"),
    "BitsAndBytesConfig(bnb_4bit_compute_dtype=torch.bfloat16)": ("half", B, "on"),
    "half = True if torch.cuda.is_available() else False": ("half", F, "local"),
    # accelerate
    'Accelerator(mixed_precision="fp16")': ("autocast", F, "on"),
    "Accelerator(mixed_precision='bf16')": ("autocast", B, "on"),
    "Accelerator(mixed_precision=args.mixed_precision)": ("autocast", "", "flag"),
    'Accelerator(mixed_precision="fp16" if amp else "no")': ("autocast", F, "flag"),
    'os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"': ("autocast", B, "on"),
    # DeepSpeed
    'config = {"train_batch_size": 8, "fp16": {"enabled": True}}': ("half", F, "on"),
    'deepspeed.initialize(config={"bf16": {"enabled": True}})': ("half", B, "on"),
    'config = {"fp16": {"enabled": "auto", "loss_scale": 0}}': ("half", F, "flag"),
    'config = {"torch_autocast": {"enabled": True}}': ("autocast", F, "on"),
    'config.update({"fp16": {"enabled": True}})': ("half", F, "on"),
    # MMEngine, MMCV
    "optim_wrapper = AmpOptimWrapper(optimizer=optimizer)": ("autocast", F, "on"),
    "optim_wrapper = dict(type='AmpOptimWrapper', optimizer=o)": ("autocast", F, "on"),
    "cfg.optim_wrapper.type = 'AmpOptimWrapper'": ("autocast", F, "on"),
    "if args.amp:\n    cfg.optim_wrapper.type = 'AmpOptimWrapper'": ("autocast", F, "flag"),
    "optimizer_config = dict(type='Fp16OptimizerHook', loss_scale=512.)": ("autocast", F, "local"),
    "fp16 = dict(loss_scale=512.)": ("autocast", F, "local"),
    "fp16 = dict(loss_scale=dict(init_scale=512))": ("autocast", F, "local"),
    "@auto_fp16()\ndef forward(self, x): pass": ("autocast", F, "local"),
    "@force_fp32(apply_to=('x',))\ndef loss(self, x): pass": ("autocast", F, "local"),
    "from mmcv.runner import auto_fp16\nself.fp16_enabled = True": ("autocast", F, "local"),
    "from mmcv.runner import wrap_fp16_model\nparser.add_argument('--fp16', action='store_true')": (
        "autocast", F, "local",
    ),
    "from mmcv.runner import auto_fp16\nwith torch.autocast('cuda'): pass": ("autocast", F, "on"),
    "model = dict(decoder=dict(attn_cfgs=[dict(fp16=True)]))": ("autocast", F, "local"),
    "factory_kwargs = {'device': 'cuda', 'dtype': torch.float16}": ("half", F, "local"),
    # layers
    "class A(Module):\n    def forward(self):\n        with torch.autocast('cuda'): pass": (
        "autocast", F, "layer",
    ),
    "class A(Module):\n    @autocast()\n    def forward(self): pass": ("autocast", F, "layer"),
    "class A(Module):\n    def __init__(self, amp=True): pass\n    def forward(self): pass": (
        "autocast", F, "layer",
    ),
    "def detector():\n    amp = True\n    return Layer(amp=amp)": ("autocast", F, "layer"),
    "class A(LightningModule):\n    def forward(self):\n        with autocast(): pass\n"
    "    def training_step(self): pass": ("autocast", F, "on"),
    "class A(Module):\n    def forward(self):\n        with torch.autocast('cuda'): pass\n"
    "def step(): loss.backward()": ("autocast", F, "on"),
    # fastai, Composer, Ignite, Catalyst
    "learner = unet_learner(data, resnet34).to_fp16()": ("autocast", F, "on"),
    "learner = learner.to_native_fp16()": ("autocast", F, "on"),
    "from fastai.callback.fp16 import *\nNativeMixedPrecision()": ("autocast", F, "on"),
    'trainer = Trainer(precision="amp_fp16")': ("autocast", F, "on"),
    "trainer = Trainer(precision='amp_bf16')": ("autocast", B, "on"),
    "trainer = Trainer(precision=Precision.AMP_FP16)": ("autocast", F, "on"),
    'create_supervised_trainer(model, opt, loss, amp_mode="amp")': ("autocast", F, "on"),
    "step = supervised_training_step_amp(model, opt)": ("autocast", F, "on"),
    "runner.train(model=model, fp16=True)": ("autocast", F, "on"),
    "engine = dl.GPUEngine(fp16=True)": ("autocast", F, "on"),
    # timm, ultralytics, detectron2, fairseq, nerfstudio
    "loss_scaler = NativeScaler()": ("autocast", F, "on"),
    "with amp_autocast(): pass": ("autocast", F, "flag"),
    "model.train(data='coco8.yaml', amp=True)": ("autocast", F, "on"),
    "model.predict(source, half=True)": ("half", F, "on"),
    "trainer = AMPTrainer(model, loader, optimizer)": ("autocast", F, "on"),
    "(AMPTrainer if cfg.SOLVER.AMP.ENABLED else SimpleTrainer)(model)": ("autocast", F, "flag"),
    "cfg.SOLVER.AMP.ENABLED = True": ("autocast", F, "on"),
    "_C.SOLVER.AMP.ENABLED = False": ("autocast", F, "flag"),
    "train.amp.enabled = True": ("autocast", F, "on"),
    "train = dict(amp=dict(enabled=True))": ("autocast", F, "on"),
    "optimizer = MemoryEfficientFP16Optimizer(args, params)": ("half", F, "on"),
    "TrainerConfig(mixed_precision=True)": ("autocast", F, "on"),
    "TrainerConfig(use_grad_scaler=True)": ("autocast", F, "on"),
    # options: command lines, fields, parameters
    'parser.add_argument("--fp16", action="store_true")': ("autocast", F, "flag"),
    'parser.add_argument("-a", "--use-amp", action="store_true")': ("autocast", F, "flag"),
    'parser.add_argument("--bf16", action="store_true")': ("autocast", B, "flag"),
    'parser.add_argument("--half", action="store_true")': ("half", F, "flag"),
    'parser.add_argument("--no-amp", action="store_true")': ("autocast", F, "flag"),
    'parser.add_argument("--precision", default=16, type=int)': ("autocast", F, "on"),
    'parser.add_argument("--precision", default="32", choices=["32", "16"])': (
        "autocast", F, "flag",
    ),
    'parser.add_argument("--mixed_precision", default="no")': ("autocast", F, "flag"),
    'parser.add_argument("--opt-level", default="O1")': ("autocast", F, "on"),
    'parser.add_argument("--amp-dtype", default="bfloat16")': ("autocast", B, "flag"),
    '@click.option("--amp/--no-amp", default=False)\ndef f(amp): pass': ("autocast", F, "flag"),
    'flags.DEFINE_bool("use_amp", False, "mixed precision")': ("autocast", F, "flag"),
    "class Config:\n    fp16: bool = False": ("autocast", F, "flag"),
    "class Config:\n    use_amp: bool = field(default=True)": ("autocast", F, "on"),
    'class Config:\n    precision: str = "bf16-mixed"': ("autocast", B, "on"),
    "def train(model, use_amp=True): pass": ("autocast", F, "flag"),
    "def train(model, *, fp16: bool = False): pass": ("autocast", F, "flag"),
    "def load(name, torch_dtype=torch.float16): pass": ("half", F, "flag"),
    "use_amp = True": ("autocast", F, "on"),
    "try:\n    from apex import amp\n    use_amp = True\nexcept ImportError: pass": (
        "autocast", F, "flag",
    ),
    "AMP_ENABLED = True": ("autocast", F, "on"),
}  # fmt: skip
SILENT = [
    "with torch.no_grad(): pass",
    "with torch.autocast(device_type=x.device.type, enabled=False): pass",
    "with torch.autocast(\n    device_type=x.device.type,\n    enabled=False,\n): pass",
    "with torch.autocast('cuda', dtype=torch.float32): pass",
    "with torch.cuda.amp.autocast(False): pass",
    "@torch.autocast('cuda', enabled=False)\ndef f(): pass",
    "ctx = partial(torch.autocast, device_type='cuda', enabled=False)",
    "scaler = GradScaler(enabled=False)",
    "with tf.autocast('cuda'): pass",
    "with te.pytorch.autocast(recipe=recipe): pass",
    "ctx = partial(tf.autocast, 'cuda')",
    "def maybe_autocast(enabled): pass",
    "class AMPTrainer(SimpleTrainer): pass",
    "x = _stack_without_autocast(x)",
    'trainer = Trainer(precision="32-true")',
    "trainer = Trainer(precision=32)",
    "trainer = Trainer(precision=precision)",
    "TrainingArguments(fp16=False, bf16=False)",
    'TrainingArguments(fp16_opt_level="O1")',
    'Accelerator(mixed_precision="no")',
    "Accelerator(mixed_precision=None)",
    'config = {"fp16": {"enabled": False, "loss_scale": 0}}',
    'config = {"amp": {"enabled": False, "opt_level": "O1"}}',
    "fp16 = None",
    "cfg.SOLVER.AMP.ENABLED = False",
    "train.amp.enabled = False",
    'amp.initialize(model, opt, opt_level="O0")',
    "self.fp16_enabled = False",
    "model.train(amp=False, half=False)",
    # other meanings of the words
    "torch.set_printoptions(precision=16)",
    "print(round(x, precision=16))",
    "x = wave(amp=1.0)",
    "x = wave(amp=amp)",
    "half = n // 2",
    "x = split(x, half=2)",
    "state = serialize_model(model, half=True)",
    "def window(n, half=True): pass",
    "x = x.half_size()",
    "momentum_dtype = torch.float16",
    "precision, recall = score(pred)",
    'metrics = {"precision": 16, "recall": 3}',
    'NAMES = {"fp16": "float16", "bf16": "bfloat16"}',
    'AMP = "amp"',
    "tolerance = {torch.float16: 1e-3}",
    "image = image.astype(np.float16)",
    "a = np.zeros(3, dtype='float16')",
    "image = tf.cast(image, dtype=tf.bfloat16)",
    "builder.build(fp16_mode=True)",
    # handling of half, which says nothing of who makes it
    "if x.dtype == torch.float16: x = x.float()",
    "tiny = torch.finfo(torch.float16).tiny",
    "torch.is_autocast_enabled()",
    "low = torch.get_autocast_dtype('cuda')",
    "from torch.cuda.amp import autocast, GradScaler",
    "@custom_fwd(cast_inputs=torch.float16)\ndef forward(ctx, x): pass",
    "assert precision != 16",
    "isinstance(region, torch.autocast)",
    # not code
    "# model.half()",
    '# with torch.autocast("cuda"):',
    '"""\nwith torch.autocast("cuda"):\n    model.half()\n"""',
    'def f():\n    """Example:\n\n    >>> model.half()\n    """',
    'print("use --fp16 or precision=16")',
    'TEXT = """\nmodel = Model.from_pretrained(x, torch_dtype=torch.float16)\n"""',
]


def project(text: str) -> Project:
    return Project().with_file("train.py", f"import torch\n{text}\n".encode())


@pytest.mark.parametrize("text", LINES)
def test_half_precision(text: str) -> None:
    kind, dtype, strength = LINES[text]
    found = project(text)
    named = {dtype} if dtype else set()
    if kind == "half":
        assert (found.half_strength, found.autocast) == (strength, None)
        assert found.half_dtypes == named
    else:
        assert (found.autocast_strength, found.half) == (strength, None)
        assert found.half_dtypes == set()
    assert named <= found.dtypes <= {dtype, F}


def test_levels_of_apex_that_are_chosen_mean_either() -> None:
    found = project("model = amp.initialize(model, opt_level=args.level)")
    assert (found.autocast_strength, found.half_strength) == ("flag", "flag")
    assert found.half_instead and found.half_dtypes == {F}
    assert not project('model = amp.initialize(model, opt_level="O1")').half_instead


@pytest.mark.parametrize("text", SILENT)
def test_no_half_precision(text: str) -> None:
    assert project(text) == Project()


@pytest.mark.parametrize("text", [t for t, (kind, *_) in LINES.items() if kind == "autocast"])
def test_no_spelling_counts_inside_of_a_string(text: str) -> None:
    assert project(f"'''\n{text}\n'''") == Project()


def test_all_choices_of_an_option_count() -> None:
    text = 'parser.add_argument("--mixed_precision", choices=["no", "fp16", "bf16"])'
    found = project(text)
    assert found.autocast_strength == "flag" and found.dtypes == {F, B}


def test_the_dtype_of_a_region_is_no_pure_half() -> None:
    found = project("dtype = torch.bfloat16\nctx = torch.autocast('cuda', dtype=dtype)")
    assert found.half is None
    assert found.dtypes == {B} and found.half_dtypes == set()


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        ('Trainer(\n  precision="16-mixed")', "Lightning's `Trainer(precision='16-mixed')`"),
        ("\ncfg.SOLVER.AMP.ENABLED = True", "`cfg.SOLVER.AMP.ENABLED = True`"),
        ("\nrunner.train(fp16=True)", "`train(fp16=True)`"),
    ],
)
def test_evidence_names_framework_spelling_and_row(text: str, ending: str) -> None:
    found = project(text).autocast
    assert found is not None and found.start is not None
    assert (found.filename, found.start.row) == ("train.py", 3)
    assert found.message == f"the project uses mixed precision: {ending}"


def test_the_engine_of_deepspeed_makes_models_half() -> None:
    found = project('x = {\n"fp16": {\n"enabled": True}}')
    assert found.autocast is None and found.half is not None and found.half.start is not None
    assert found.half.start.row == 4  # behind an import
    assert found.half.message == (
        "the project uses half precision tensors: DeepSpeed config: fp16.enabled"
    )
