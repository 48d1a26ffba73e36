"""Functions of libraries around torch that act on tensors: what they do to dtypes, as documented."""

from __future__ import annotations

from typing import Final

from precision_lint.domains import dtypes
from precision_lint.torchmodel.operations import Operation

ATTENTION: Final = (
    "xformers.ops.memory_efficient_attention", "flash_attn.flash_attn_func",
    "flash_attn.flash_attn_interface.flash_attn_func", "sageattention.sageattn",
)  # fmt: skip
"""Kernels that take query, key and value in one dtype, and that autocast does not know."""
FIRST: Final = (
    "flash_attn.flash_attn_qkvpacked_func", "flash_attn.flash_attn_varlen_qkvpacked_func",
    "torchvision.ops.roi_align", "torchvision.ops.roi_pool", "torchvision.ops.ps_roi_align",
    "torchvision.ops.deform_conv2d", "torchvision.ops.box_convert", "torchvision.ops.drop_block2d",
    "torchvision.ops.clip_boxes_to_image", "torchvision.ops.stochastic_depth",
    "torch_scatter.scatter", "torch_scatter.scatter_add", "torch_scatter.scatter_mean",
    "torch_scatter.scatter_sum", "torch_scatter.segment_csr", "torch_scatter.gather_csr",
    "torch_geometric.utils.softmax", "torch_geometric.utils.scatter", "timm.layers.drop_path",
    "timm.models.layers.drop_path", "einops_exts.rearrange_with_anon_dims",
    "einops_exts.repeat_with_anon_dims",
)  # fmt: skip
"""Functions whose result has the dtype of their first argument."""
WIDE: Final = (
    "torchvision.ops.box_iou", "torchvision.ops.generalized_box_iou",
    "torchvision.ops.complete_box_iou", "torchvision.ops.distance_box_iou",
    "torchvision.ops.box_area",
    "diffusers.models.embeddings.get_timestep_embedding",
    "ldm.modules.diffusionmodules.util.timestep_embedding",
)  # fmt: skip
"""Functions that compute in float32 whatever they are given, and give that."""
RNN = "torch.nn.utils.rnn."
PADDED = tuple([
    RNN + name
    for name in ("pack_padded_sequence", "pad_packed_sequence", "pad_sequence", "pack_sequence")
])  # fmt: skip
"""Functions that put sequences of different lengths into one tensor, or back."""
INDICES = ("torchvision.ops.nms", "torchvision.ops.batched_nms", "torchvision.ops.boxes.nms")
VIEWS: Final = frozenset({"rearrange", "repeat", "asnumpy"})
"""Functions of einops that move numbers, and keep their dtype."""
VIEWS_OF_MANY: Final = frozenset({"rearrange_many", "repeat_many", "unpack"})
"""The same for several tensors, or for parts of one."""


PROCESSED: Final = {
    **dict.fromkeys(
        ("pixel_values", "pixel_values_videos", "input_features", "input_values", "audio_values"),
        dtypes.FLOAT32,
    ),
    **dict.fromkeys(
        ("input_ids", "attention_mask", "token_type_ids", "position_ids", "labels",
         "decoder_input_ids", "image_grid_thw", "video_grid_thw"),
        dtypes.INTEGER,
    ),
}  # fmt: skip
"""What processors of ``transformers`` give with ``return_tensors="pt"``, by name."""
SENSED: Final = frozenset({
    "images", "image", "videos", "audio", "audios", "raw_speech", "sampling_rate",
})  # fmt: skip
"""Arguments of processors that are given more than text."""
UNCAST: Final = tuple(
    f"transformers.{name}"
    for name in ("Align", "Clap", "Flava", "GroundingDino", "GroupViT", "LayoutLMv3", "MMGroundingDino",
                 "OmDetTurbo", "Tvp")
)  # fmt: skip
"""Models of text with images or sound that do not cast these to the dtype of their weights, of transformers
5.23 (by reading); all others of both do, as do CLIP's and SigLIP's towers in models that generate text."""
IDS: Final = frozenset({"encode", "apply_chat_template"})
"""Methods of theirs that give ids alone."""
SCHEDULES: Final = {"alphas_cumprod": "cumprod"}
"""Attributes of the schedulers of ``diffusers`` that are tables in float32, from 0 to 1, and what made them."""
TRANSFORMS: Final = ("torchvision.transforms.v2.Transform",)
"""Classes of transformations of data, whatever derives from them."""
SCALER_OWNERS: Final = frozenset({"timm.utils.NativeScaler", "timm.utils.cuda.NativeScaler"})
"""Classes that own a GradScaler, which is on wherever they are made."""
ACCELERATORS: Final = frozenset({
    "accelerate.Accelerator", "accelerate.accelerator.Accelerator", "lightning.Fabric",
    "lightning.fabric.Fabric", "lightning_fabric.Fabric",
})  # fmt: skip
"""Classes whose objects wrap models in a region: ``prepare`` and ``setup``."""
TRAINERS: Final = frozenset({
    "lightning.Trainer", "lightning.pytorch.Trainer", "pytorch_lightning.Trainer",
})  # fmt: skip
"""Classes whose objects run the steps of Lightning's modules in a region."""
LIGHTNING: Final = frozenset({
    "lightning.LightningModule", "lightning.pytorch.LightningModule",
    "pytorch_lightning.LightningModule",
})  # fmt: skip
"""Classes of models whose ``self.optimizers()`` are Lightning's."""
HUGGING_FACE: Final = frozenset({"transformers.Trainer", "transformers.Seq2SeqTrainer"})
FRAMEWORKS: Final = ACCELERATORS | TRAINERS | HUGGING_FACE
LANGUAGE_MODELS: Final = (
    "ForCausalLM",
    "ForSeq2SeqLM",
    "LMHeadModel",
    "ForVision2Seq",
    "ForImageTextToText",
)
"""How classes of ``transformers`` and ``peft`` end whose ``generate`` gives ids; others give sounds."""
NETWORKS: Final = frozenset({
    "LightningModule", "PreTrainedModel", "ModelMixin", "BaseModule", "BaseModel", "PyTorchModelHubMixin",
    "FlashAttention", "MegatronModule", "FairseqModel", "BaseFairseqModel", "TorchModelV2",
    "ComposerModel", "GenerationMixin",
})  # fmt: skip
"""Classes of libraries that are modules, by their last name."""
HEADS: Final = (
    *LANGUAGE_MODELS,
    "Model",
    "ForConditionalGeneration",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMaskedLM",
    "ForMultipleChoice",
    "ForImageClassification",
    "ForPreTraining",
)
"""How the classes of models of ``transformers`` end."""


def is_network(name: str) -> bool:
    """Whether a class of a library is a module, by its dotted name."""
    last = name.rpartition(".")[2]
    if name.startswith("transformers.") and last.endswith(HEADS):
        return True
    return last in NETWORKS


def _table() -> dict[str, Operation]:
    found = {name: _made(name, "first", strict=(0, 1, 2)) for name in ATTENTION}
    found |= {name: _made(name, "first") for name in FIRST}
    found |= {name: _made(name, "float32") for name in WIDE}
    found |= {name: _made(name, "int") for name in INDICES}
    return found


def _made(name: str, result: str, strict: tuple[int, ...] = ()) -> Operation:
    parameters = ("query", "key", "value") if strict else ("input",)
    last = name.rpartition(".")[2]
    return Operation(last, parameters, strict or (0,), result=result, strict=strict)


FUNCTIONS: Final = _table()
"""Operations by their dotted name."""

ARRAYS: Final = frozenset({
    "PIL", "SimpleITK", "cupy", "cv2", "dask", "geopandas", "h5py", "imageio", "jax", "librosa",
    "mindspore", "mlx", "networkx", "nibabel", "paddle", "pandas", "polars", "pydicom", "rasterio",
    "scipy", "shapely", "skimage", "sklearn", "soundfile", "statsmodels", "tensorflow",
    "tensorflow_model_optimization", "tifffile", "trimesh", "xarray", "zarr",
})  # fmt: skip
"""Packages whose functions and objects give arrays, or tensors of their own, never torch's."""
READERS: Final = frozenset({"av", "datasets", "decord", "eva_decord", "torchcodec", "webdataset"})
"""Packages that read data: what their objects give may be torch's tensors, which no mode makes half."""
TQDM: Final = tuple([
    f"tqdm.{module}"
    for module in ("", "auto.", "std.", "notebook.", "autonotebook.", "asyncio.", "rich.", "gui.")
])  # fmt: skip
"""Where ``tqdm`` has its bars."""
BARS: Final = frozenset({
    *[module + name for module in TQDM
      for name in ("tqdm", "tqdm_notebook", "tqdm_asyncio", "tqdm_rich", "tqdm_gui")],
    "rich.progress.track", "accelerate.utils.tqdm", "accelerate.utils.tqdm.tqdm", "alive_progress.alive_it",
    "fastprogress.progress_bar", "fastprogress.master_bar", "fastprogress.fastprogress.progress_bar",
    "fastprogress.fastprogress.master_bar", "progressbar.progressbar",
    "mmcv.track_iter_progress", "mmengine.track_iter_progress", "mmengine.utils.track_iter_progress",
    "diffusers.utils.logging.tqdm", "transformers.utils.logging.tqdm", "datasets.utils.logging.tqdm",
    "datasets.utils.tqdm", "huggingface_hub.utils.tqdm",
})  # fmt: skip
"""Bars that show how far a loop came: iterating over one gives what iterating over its argument gives."""
RANGES: Final = frozenset([module + name for module in TQDM for name in ("trange", "tnrange")])
"""Such bars over a range."""
PLAIN: Final = frozenset({
    "calendar", "csv", "datetime", "gc", "getpass", "glob", "hashlib", "json", "locale", "logging", "os",
    "pathlib", "platform", "psutil", "re", "resource", "secrets", "shutil", "socket", "statistics", "string",
    "struct", "subprocess", "sys", "tempfile", "textwrap", "time", "urllib", "uuid", "zlib",
})  # fmt: skip
"""Packages whose functions give numbers and texts, never tensors."""
