"""What decides between "possible" and what shows by default, where one file does not say it."""

from __future__ import annotations

from pathlib import Path

from precision_lint.api import Confidence
from tests import projects
from tests.projects import found

COMPONENTS = """
    import torch
    import torch.nn.functional as F


    def components(image):
        mask = image > 0.5
        b, _, h, w = image.shape
        labels = torch.arange(1, b * h * w + 1, device=image.device, dtype=image.dtype)
        labels = labels.view(b, 1, h, w)
        for _ in range(8):
            labels = F.max_pool2d(labels, kernel_size=3, stride=1, padding=1)
            labels = torch.mul(labels, mask)
        return labels.view_as(image)
"""
ROW = """
    import torch


    def positions(image):
        b, _, h, w = image.shape
        labels = torch.arange(1, w + 1, device=image.device, dtype=image.dtype)
        return labels.view_as(image) > 7
"""
SERVE = """
    import torch
    from model import Net


    def serve(checkpoint):
        net = Net()
        net.load_state_dict(torch.load(checkpoint))
        return net.half().eval()
"""
ASSIGNER = """
    import torch


    def pairwise_iou(a, b):
        low = torch.max(a[:, None, :2] - a[:, None, 2:] / 2, b[:, :2] - b[:, 2:] / 2)
        high = torch.min(a[:, None, :2] + a[:, None, 2:] / 2, b[:, :2] + b[:, 2:] / 2)
        shared = (high - low).clamp(min=0).prod(dim=2)
        return shared / (a[:, 2:].prod(dim=1)[:, None] + b[:, 2:].prod(dim=1) - shared)


    class Assigner:
        def matched(self, pred_boxes, targets, stride):
            return pairwise_iou(targets, pred_boxes * stride)
"""
TRAIN = """
    import torch
    from assigner import Assigner


    def train(model, images, targets):
        with torch.autocast("cuda", dtype=torch.float16):
            boxes = model(images)
            return Assigner().matched(boxes, targets, 32)
"""
SOLVER = """
    import torch


    class Solver:
        def __init__(self, cfg):
            self.dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[cfg.amp_dtype]
            if cfg.sharded:
                needs_scale = cfg.param_dtype == "fp16"
            else:
                needs_scale = cfg.amp and TEST
            if needs_scale:
                self.scaler = torch.amp.GradScaler("cuda")
"""


def shown(root: Path, code: str, confidence: Confidence, **texts: str) -> list[str]:
    projects.write(root, {f"{name}.py": text for name, text in texts.items()})
    rows = found(projects.check(root, confidence=confidence))
    return [row for row in rows if row.endswith(code)]


def test_numbers_of_all_cells_show_where_a_model_is_half(tmp_path: Path) -> None:
    got = shown(tmp_path, "MP404", Confidence.LIKELY, components=COMPONENTS, row=ROW, serve=SERVE)
    assert got == ["components.py:9 MP404"]


def test_predicted_boxes_show_in_a_region_of_another_file(tmp_path: Path) -> None:
    got = shown(tmp_path, "MP607", Confidence.LIKELY, assigner=ASSIGNER, train=TRAIN)
    assert got == ["assigner.py:14 MP607"]


def test_a_switch_that_asks_for_float16_says_enough(tmp_path: Path) -> None:
    """Without the assignment that names the dtype, the scaler may serve bfloat16."""
    asks = SOLVER.replace("TEST", "self.dtype is torch.float16")
    silent = asks.replace('cfg.param_dtype == "fp16"', "cfg.scale")
    silent = silent.replace("self.dtype is torch.float16", "cfg.cuda")
    assert shown(tmp_path / "asks", "MP112", Confidence.POSSIBLE, solver=asks) == []
    got = shown(tmp_path / "silent", "MP112", Confidence.POSSIBLE, solver=silent)
    assert got == ["solver.py:13 MP112"]
