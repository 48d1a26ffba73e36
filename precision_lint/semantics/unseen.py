"""What names suggest of functions that nobody has seen, where gradients are scaled."""

from __future__ import annotations

import re

KNOWN_HOMES = frozenset({
    "torch", "numpy", "math", "os", "sys", "time", "logging", "random", "json", "copy", "typing",
    "functools", "itertools", "collections", "pathlib", "argparse", "warnings", "tqdm", "wandb",
    "tensorboard", "tensorboardX", "matplotlib", "PIL", "cv2", "scipy", "pandas", "torchvision",
    "transformers", "datasets", "yaml", "re", "shutil", "contextlib", "dataclasses",
})  # fmt: skip
"""Packages whose functions leave a training loop's gradients alone, torch's clips aside."""
METHODS = frozenset({"backward", "scale", "unscale_", "step", "update", "zero_grad"})
"""Methods of a stand-in that does nothing mean what they would mean of the real one."""
WORTH = re.compile(r"optim|scaler|grad|param|model|net|loss|engine|trainer|self", re.IGNORECASE)
ABOUT = re.compile(r"grad|clip|step|backward|optim|scal|update|train", re.IGNORECASE)
HANDS_BACK = frozenset({
    "print", "isinstance", "hasattr", "getattr", "id", "type", "len", "repr", "str", "bool",
    "info", "debug", "warning", "save", "state_dict", "load_state_dict", "append", "dict",
    "save_checkpoint", "load_checkpoint", "save_model", "load_model", "super", "is_scaler",
})  # fmt: skip
"""Callees that are given a scaler and don't use it."""
INSPECTING = re.compile(
    r"grad|norm|nan|inf|finite|check|valid|log|monitor|clip|stat|hist|anomal|bad|explo|clamp"
)
"""Parts of names of functions, or parameters, through which gradients may come in."""
