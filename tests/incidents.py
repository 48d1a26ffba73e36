"""Code of five mixed-precision incidents, as a project would have it: before and after.

A line ``<name>`` in a frame is replaced by a part, at its indentation, so that a before and its
afters differ in nothing else.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field

Files = dict[str, str]
_PLACE = re.compile(r"^([ ]*)<(\w+)>\n", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """Files, and by code the fragments of the lines on which it is reported."""

    files: Files
    expected: dict[str, tuple[str, ...]] = field(default_factory=dict)


def fill(frame: str, **parts: str) -> str:
    """A frame with its ``<name>`` lines replaced; an empty part leaves nothing."""

    def part(match: re.Match[str]) -> str:
        text = textwrap.dedent(parts.pop(match[2])).strip("\n")
        return textwrap.indent(text, match[1]) + "\n" if text else ""

    filled = _PLACE.sub(part, frame)
    assert not parts, f"no place for {sorted(parts)}"
    return filled


def together(*modules: str) -> Files:
    """One file that holds all modules, as a small project starts out."""
    return {"train.py": "\n\n".join(modules)}


def apart(losses: str, trainer: str) -> Files:
    """The code at fault in a file that never mentions the half precision it runs in."""
    return {"losses.py": losses, "trainer.py": trainer}


# how training and evaluation switch half precision on

SCALED = """
import torch


def train_one_epoch(model, criterion, loader, optimizer, scaler):
    for batch, targets in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.amp.autocast():
            loss = criterion(model(batch), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
BFLOAT16 = """
import torch


def train_one_epoch(model, criterion, loader, optimizer):
    for batch, targets in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.amp.autocast(dtype=torch.bfloat16):
            loss = criterion(model(batch), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
"""
HALF = """
import torch


def finetune(model, criterion, loader, optimizer):
    model = model.half()
    for batch, targets in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(batch.half()), targets)
        loss.backward()
        optimizer.step()
"""
FULL = """
import torch


def train_one_epoch(model, criterion, loader, optimizer):
    for batch, targets in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(batch), targets)
        loss.backward()
        optimizer.step()
"""

# a sum over 16,224 mask pixels

POOLING = '''
import torch
from torch import nn


class CrossAttentionHead(nn.Module):
    """One vector a mask, mixed with the kernel that proposed the mask."""

    def __init__(self, dim=256):
        super().__init__()
        self.mix = nn.Linear(2 * dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, features, mask_logits, kernels):
        """features (b, c, h, w), mask_logits (b, n, h, w), kernels (b, n, c)."""
        hard_masks = (mask_logits.sigmoid() > 0.5).float()
        <pool>
        return self.norm(self.mix(torch.cat([f, kernels], dim=-1)))
'''
SUMMED = fill(POOLING, pool="f = torch.einsum('bnhw,bchw->bnc', hard_masks, features)")
DIVIDED_AFTER = fill(
    POOLING,
    pool="""
    mask_area = hard_masks.sum(dim=(2, 3)).clamp(min=1.0)
    f = torch.einsum('bnhw,bchw->bnc', hard_masks, features) / mask_area[..., None]
    """,
)
DIVIDED_BEFORE = fill(
    POOLING,
    pool="""
    share = hard_masks / hard_masks.sum(dim=(2, 3), keepdim=True).clamp(min=1.0)
    f = torch.einsum('bnhw,bchw->bnc', share, features)
    """,
)
UPCAST_ONLY = fill(
    POOLING,
    pool="f = torch.einsum('bnhw,bchw->bnc', hard_masks.float(), features.float())",
)
OUTSIDE = fill(
    POOLING,
    pool="""
    with torch.cuda.amp.autocast(enabled=False):
        f = torch.einsum('bnhw,bchw->bnc', hard_masks.float(), features.float())
    """,
)
OUTSIDE_BY_NAME = fill(
    POOLING,
    pool="""
    with torch.cuda.amp.autocast(enabled=False):
        masks_f32 = hard_masks.float()
        features_f32 = features.float()
        # kept in float32: cast back it would be inf again
        f = torch.einsum('bnhw,bchw->bnc', masks_f32, features_f32)
    """,
)

# gradients inspected while they are scaled, later unscaled twice

TRAINER = """
import logging

import torch

logger = logging.getLogger(__name__)


class Trainer:
    def __init__(self, model, criterion, optimizer, mixed_precision=True, clip=0.5):
        self.model = model
        self.criterion = criterion
        self.optimizer = optimizer
        self.mixed_precision = mixed_precision
        self.gradient_clip_norm = clip
        self.scaler = torch.amp.GradScaler("cuda", enabled=mixed_precision)

    def train_epoch(self, loader):
        self.model.train()
        for step, (images, targets) in enumerate(loader):
            self.optimizer.zero_grad()
            with torch.autocast("cuda", enabled=self.mixed_precision):
                loss = self.criterion(self.model(images), targets)

            if self.mixed_precision:
                self.scaler.scale(loss).backward()
                <after_backward>
            else:
                loss.backward()

            <check>

            <before_clip>
            if self.gradient_clip_norm > 0:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.gradient_clip_norm)

            if self.mixed_precision:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()

    def has_broken_gradients(self):
        for name, parameter in self.model.named_parameters():
            if parameter.grad is None:
                continue
            if not torch.isfinite(parameter.grad).all():
                logger.warning("NaN/Inf gradient in %s", name)
                return True
        return False
"""
SKIP = """
    logger.error("NaN/Inf gradients at batch %d, step skipped", step)
    self.optimizer.zero_grad()
    continue
"""
SKIP_AND_UPDATE = SKIP.replace("continue", "self.scaler.update()\n    continue")
INLINE = """
broken = False
for name, parameter in self.model.named_parameters():
    if parameter.grad is not None:
        if torch.isnan(parameter.grad).any() or torch.isinf(parameter.grad).any():
            logger.warning("NaN/Inf gradient in %s", name)
            broken = True
if broken:"""
HELPER = "if self.has_broken_gradients():"
UNSCALE = "self.scaler.unscale_(self.optimizer)"
LATE = f"if self.mixed_precision:\n    {UNSCALE}  # before clipping"


def trainer(check: str, after_backward: str = "", before_clip: str = "") -> Files:
    return together(
        fill(TRAINER, check=check, after_backward=after_backward, before_clip=before_clip)
    )


# logarithms of small probabilities

DFL = '''
import torch
import torch.nn.functional as F
from torch import nn


class DFLoss(nn.Module):
    """Negative log-likelihood of the two bins next to a continuous target."""

    def __init__(self, reg_max=16):
        super().__init__()
        self.reg_max = reg_max

    def forward(self, pred, target):
        """pred (n, 4, reg_max + 1) logits, target (n, 4) distances in bins."""
        target = target.clamp(0, self.reg_max - 0.01)
        target_l = target.long()
        target_r = target_l + 1
        weight_left = target_r - target
        weight_right = 1 - weight_left
        rows = torch.arange(pred.shape[0], device=pred.device)
        loss = pred.new_zeros(pred.shape[0])
        for i in range(4):
            <bins>
            loss = loss + loss_left * weight_left[:, i] + loss_right * weight_right[:, i]
        return loss.mean()
'''
DFL_EPS = fill(
    DFL,
    bins="""
    dist = F.softmax(pred[:, i], dim=-1)
    prob_left = dist[rows, target_l[:, i]]
    prob_right = dist[rows, target_r[:, i]]
    loss_left = -torch.log(prob_left + 1e-7)
    loss_right = -torch.log(prob_right + 1e-7)
    """,
)
DFL_CLAMP = fill(
    DFL,
    bins="""
    dist = F.softmax(pred[:, i], dim=-1)
    prob_left = torch.clamp(dist[rows, target_l[:, i]], min=1e-6, max=1.0)
    prob_right = torch.clamp(dist[rows, target_r[:, i]], min=1e-6, max=1.0)
    loss_left = torch.clamp(-torch.log(prob_left), max=20.0)
    loss_right = torch.clamp(-torch.log(prob_right), max=20.0)
    """,
)
DFL_LOG_SOFTMAX = fill(
    DFL,
    bins="""
    log_dist = F.log_softmax(pred[:, i], dim=-1)
    loss_left = -log_dist[rows, target_l[:, i]]
    loss_right = -log_dist[rows, target_r[:, i]]
    """,
)
DFL_UPCAST = fill(
    DFL,
    bins="""
    dist = F.softmax(pred[:, i].float(), dim=-1)
    prob_left = dist[rows, target_l[:, i]]
    prob_right = dist[rows, target_r[:, i]]
    loss_left = -torch.log(prob_left + 1e-7)
    loss_right = -torch.log(prob_right + 1e-7)
    """,
)

SUPCON = '''
import torch
from torch import nn


class SupConLoss(nn.Module):
    def __init__(self, temperature=0.07):
        super().__init__()
        self.temperature = temperature

    def forward(self, features, labels):
        """features (n, d) of unit length, labels (n,)."""
        not_self = 1 - torch.eye(len(features), device=features.device, dtype=features.dtype)
        positives = (labels[:, None] == labels[None, :]) * not_self
        logits = torch.matmul(features, features.T) / self.temperature
        logits = logits - logits.max(dim=1, keepdim=True).values.detach()
        <log_prob>
        count = positives.sum(1).clamp(min=1.0)
        return -((positives * log_prob).sum(1) / count).mean()
'''
SUPCON_EPS = fill(
    SUPCON,
    log_prob="""
    exp_logits = torch.exp(logits) * not_self
    log_prob = logits - torch.log(exp_logits.sum(1, keepdim=True) + 1e-7)
    """,
)
SUPCON_CLAMP = fill(
    SUPCON,
    log_prob="""
    exp_logits = torch.exp(logits) * not_self
    exp_sum = torch.clamp(exp_logits.sum(1, keepdim=True), min=1e-6)
    log_prob = logits - torch.log(exp_sum)
    """,
)
SUPCON_LOGSUMEXP = fill(
    SUPCON,
    log_prob="""
    others = logits.masked_fill(not_self == 0, float("-inf"))
    log_prob = logits - torch.logsumexp(others, dim=1, keepdim=True)
    """,
)

CPE = '''
import torch
from torch import nn


class CPELoss(nn.Module):
    """Pulls each foreground embedding to the prototypes of its class, away from all others."""

    def forward(self, similarity, labels):
        """similarity (n, c) of embeddings to prototypes, labels (n,)."""
        losses = []
        for i, label in enumerate(labels):
            pos_sim = similarity[i, label : label + 1]
            neg_sim = torch.cat([similarity[i, :label], similarity[i, label + 1 :]])
            max_sim = neg_sim.max()
            exp_all = torch.exp(neg_sim - max_sim) * (neg_sim > -1.0)
            <loss>
            losses.append(loss_i)
        return torch.stack(losses).mean()
'''
CPE_EPS = fill(
    CPE,
    loss="""
    loss_i = -torch.log(
        torch.exp(pos_sim - max_sim).sum() / (exp_all.sum() + 1e-7)
    )
    """,
)
CPE_LOGSUMEXP = fill(
    CPE,
    loss="loss_i = torch.logsumexp(neg_sim, 0) - torch.logsumexp(pos_sim, 0)",
)

FOCAL = '''
import torch
from torch import nn


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0, alpha=0.25):
        super().__init__()
        self.gamma = gamma
        self.alpha = alpha

    def forward(self, logits, targets):
        """logits (n, c), targets (n, c) of 0 and 1."""
        <probability>
        return (-self.alpha * (1 - p) ** self.gamma * log_p * targets).mean()
'''
FOCAL_EPS = fill(FOCAL, probability="p = torch.sigmoid(logits)\nlog_p = torch.log(p + 1e-8)")
FOCAL_CLAMP = fill(
    FOCAL, probability="p = torch.sigmoid(logits)\nlog_p = torch.log(p.clamp(min=1e-6))"
)
FOCAL_RELU = fill(
    FOCAL, probability="p = (logits / 6 + 0.5).clamp(0, 1)\nlog_p = torch.log(p + 1e-7)"
)
FOCAL_UPCAST = fill(
    FOCAL, probability="p = torch.sigmoid(logits.float())\nlog_p = torch.log(p + 1e-8)"
)
FOCAL_LOGSIGMOID = fill(
    FOCAL,
    probability="p = torch.sigmoid(logits)\nlog_p = nn.functional.logsigmoid(logits)",
)

# distances between boxes

MATCHER = """
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn


class HungarianMatcher(nn.Module):
    @torch.no_grad()
    def forward(self, outputs, targets):
        out_prob = outputs["pred_logits"].flatten(0, 1).softmax(-1)
        out_bbox = outputs["pred_boxes"].flatten(0, 1)
        tgt_ids = torch.cat([t["labels"] for t in targets])
        tgt_bbox = torch.cat([t["boxes"] for t in targets])
        cost_class = -out_prob[:, tgt_ids]
        <distance>
        cost = (5.0 * cost_bbox + cost_class).cpu()
        return [linear_sum_assignment(cost)]


class SetCriterion(nn.Module):
    def __init__(self):
        super().__init__()
        self.matcher = HungarianMatcher()

    def forward(self, outputs, targets):
        rows, columns = self.matcher(outputs, targets)[0]
        boxes = torch.cat([t["boxes"] for t in targets])
        return (outputs["pred_boxes"].flatten(0, 1)[rows] - boxes[columns]).abs().mean()
"""
EVALUATION = """
import torch


@torch.no_grad()
def evaluate(model, criterion, loader):
    model.eval()
    model.half()
    losses = []
    for images, targets in loader:
        outputs = model(images.half())
        targets = [{"labels": t["labels"], "boxes": t["boxes"].half()} for t in targets]
        losses.append(criterion(outputs, targets).item())
    return sum(losses) / len(losses)
"""
BOXES = """
import torch


def box_cost(out_bbox, tgt_bbox):
    out_bbox, tgt_bbox = out_bbox.half(), tgt_bbox.half()
    return torch.cdist(out_bbox, tgt_bbox, p=1)
"""
CDIST = fill(MATCHER, distance="cost_bbox = torch.cdist(out_bbox, tgt_bbox, p=1)")
CDIST_PACKED = f"{CDIST}\n\ndef pack(model):\n    return model.half()\n"
CDIST_UPCAST = fill(
    MATCHER, distance="cost_bbox = torch.cdist(out_bbox.float(), tgt_bbox.float(), p=1)"
)
CDIST_BRANCH = fill(
    MATCHER,
    distance="""
    if out_bbox.dtype == torch.float16 or tgt_bbox.dtype == torch.float16:
        cost_bbox = torch.cdist(out_bbox.float(), tgt_bbox.float(), p=1)
    else:
        cost_bbox = torch.cdist(out_bbox, tgt_bbox, p=1)
    """,
)

# cameras, points and tensors without a dtype

ALIGNED = '''
import torch
import torch.nn.functional as F
from torch import nn


class PixelAlignedRefiner(nn.Module):
    """Image features at the pixels that 3D points project to."""

    def __init__(self, dim=256):
        super().__init__()
        self.to_points = nn.Linear(dim, 3)

    def forward(self, tokens, feature_map, intrinsics, extrinsics):
        """tokens (b, n, d), feature_map (b, c, h, w); 3 x 3 intrinsics, 4 x 4 extrinsics."""
        points_3d = self.to_points(tokens)
        <project>
        grid = 2 * points_2d / feature_map.shape[-1] - 1
        return F.grid_sample(feature_map, grid[:, None].to(feature_map.dtype))
'''
PROJECT = fill(
    ALIGNED,
    project="""
    ones = torch.ones(*points_3d.shape[:2], 1, device=points_3d.device)
    points_homo = torch.cat([points_3d, ones], dim=-1)
    points_cam = torch.matmul(points_homo, extrinsics.transpose(-1, -2))[..., :3]
    points_2d_homo = torch.matmul(points_cam, intrinsics.transpose(-1, -2))
    points_2d = points_2d_homo[..., :2] / points_2d_homo[..., 2:]
    """,
)
PROJECT_DOWN = fill(
    ALIGNED,
    project="""
    ones = torch.ones(*points_3d.shape[:2], 1, device=points_3d.device, dtype=points_3d.dtype)
    points_homo = torch.cat([points_3d, ones], dim=-1)
    points_cam = torch.matmul(
        points_homo, extrinsics.to(points_homo.dtype).transpose(-1, -2)
    )[..., :3]
    points_2d_homo = torch.matmul(points_cam, intrinsics.to(points_cam.dtype).transpose(-1, -2))
    points_2d = points_2d_homo[..., :2] / points_2d_homo[..., 2:]
    """,
)
PROJECT_UP = fill(
    ALIGNED,
    project="""
    with torch.autocast(device_type=points_3d.device.type, enabled=False):
        points = points_3d.float()
        ones = torch.ones(*points.shape[:2], 1, device=points.device, dtype=points.dtype)
        points_homo = torch.cat([points, ones], dim=-1)
        points_cam = torch.matmul(points_homo, extrinsics.float().transpose(-1, -2))[..., :3]
        points_2d_homo = torch.matmul(points_cam, intrinsics.float().transpose(-1, -2))
        points_2d = points_2d_homo[..., :2] / points_2d_homo[..., 2:]
    """,
)

REPROJECTION = '''
import torch
from torch import nn


class ReprojectionLoss(nn.Module):
    def forward(self, joints_3d, joints_2d, intrinsics):
        """joints_3d (b, j, 3) in camera space, joints_2d (b, j, 2) in pixels."""
        <project>
        joints_2d_proj = joints_2d_proj[..., :2] / joints_2d_proj[..., 2:].clamp(min=1e-3)
        return (joints_2d_proj - joints_2d).abs().mean()
'''
REPROJECT = fill(
    REPROJECTION,
    project="joints_2d_proj = torch.matmul(joints_3d, intrinsics.transpose(-1, -2))",
)
REPROJECT_UP = fill(
    REPROJECTION,
    project="""
    with torch.autocast(device_type=joints_3d.device.type, enabled=False):
        joints_2d_proj = torch.matmul(joints_3d.float(), intrinsics.float().transpose(-1, -2))
    """,
)

HAND = '''
import torch
from torch import nn


class HandEncoder(nn.Module):
    """Vertices in the frames that joints span."""

    def __init__(self, dim=256):
        super().__init__()
        self.refine = nn.Linear(4, dim)

    def transform_vertices_to_frames(self, vertices, rotations, origins):
        """vertices (b, v, 3), rotations (b, j, 3, 3), origins (b, j, 3)."""
        centred = vertices[:, None] - origins[:, :, None]
        <rotate>
        return local

    def forward(self, vertices, rotations, origins):
        local = self.transform_vertices_to_frames(vertices, rotations, origins)
        <create>
        return self.refine(torch.cat([local, homo], dim=-1))
'''
ROTATE = fill(
    HAND,
    rotate="local = torch.matmul(centred, rotations)",
    create="homo = torch.ones(*local.shape[:-1], 1, device=local.device)",
)
ROTATE_UP = fill(
    HAND,
    rotate="""
    with torch.autocast(device_type=vertices.device.type, enabled=False):
        local = torch.matmul(centred.float(), rotations.float()).to(vertices.dtype)
    """,
    create="homo = torch.ones(*local.shape[:-1], 1, device=local.device, dtype=local.dtype)",
)

DATASET = '''
import numpy as np
import torch
from torch.utils.data import Dataset


class GraspDataset(Dataset):
    """Frames with the camera that took them."""

    def __init__(self, frames, cameras):
        self.frames = frames
        self.cameras = cameras

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index):
        fx, fy, cx, cy = self.cameras[index]
        intrinsics = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]], dtype=np.float32)
        joints = np.asarray(self.frames[index]["joints"], dtype=np.float32)
        return {
            "joints_3d": torch.from_numpy(joints),
            "intrinsics": torch.from_numpy(intrinsics),
        }
'''
BATCH = '''
import torch
from torch import nn


class BatchReprojectionLoss(nn.Module):
    def forward(self, joints_3d, batch):
        """joints_3d (b, j, 3) from the model, the rest from the dataset."""
        <project>
        return (uvw[..., :2] / uvw[..., 2:] - batch["joints_2d"]).abs().mean()
'''
BATCH_DOWN_HERE = fill(
    BATCH,
    project="""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        uvw = joints_3d @ batch["intrinsics"].to(joints_3d.dtype).transpose(-1, -2)
    """,
)
BATCH_AS_IT_COMES = fill(
    BATCH, project='uvw = torch.matmul(joints_3d, batch["intrinsics"].transpose(-1, -2))'
)
BATCH_UP = fill(
    BATCH,
    project="""
    with torch.autocast(device_type=joints_3d.device.type, enabled=False):
        uvw = torch.matmul(joints_3d.float(), batch["intrinsics"].float().transpose(-1, -2))
    """,
)


def both(name: str, losses: str, trainer: str, **expected: tuple[str, ...]) -> dict[str, Case]:
    """The same code with its trainer in one file, and in two."""
    return {
        f"{name}, in one file": Case(together(losses, trainer), expected),
        f"{name}, in two files": Case(apart(losses, trainer), expected),
    }


_EINSUM = ("torch.einsum(",)
_DFL = ("loss_left = ", "loss_right = ")
_LOG = ("torch.log(",)
_FOCAL = ("log_p = ",)
_CDIST = ("torch.cdist(out_bbox, tgt_bbox, p=1)",)
_CAMERA = ("points_cam = ", "points_2d_homo = ")
_JOINTS = ("joints_2d_proj = torch.matmul(",)

BEFORE: dict[str, Case] = {
    **both("mask pooling", SUMMED, SCALED, MP201=_EINSUM),
    **both("mask pooling, divided by the area afterwards", DIVIDED_AFTER, SCALED, MP201=_EINSUM),
    **both("mask pooling, upcast inside autocast", UPCAST_ONLY, SCALED, MP201=_EINSUM),
    "gradients checked in line before unscale_": Case(
        trainer(INLINE + SKIP, before_clip=LATE), {"MP101": ("torch.isnan(parameter.grad)",)}
    ),
    "gradients checked in a helper before unscale_": Case(
        trainer(HELPER + SKIP, before_clip=LATE), {"MP101": (HELPER,)}
    ),
    "gradients clipped without unscale_": Case(trainer(""), {"MP102": ("clip_grad_norm_(",)}),
    "unscale_ moved up, the later one kept": Case(
        trainer(INLINE + SKIP_AND_UPDATE, UNSCALE, LATE), {"MP103": ("# before clipping",)}
    ),
    "unscale_ moved up, the step skipped without update": Case(
        trainer(HELPER + SKIP, UNSCALE), {"MP103": (UNSCALE,)}
    ),
    **both("DFL in half", DFL_EPS, HALF, MP301=_DFL),
    **both("DFL in half, clamped", DFL_CLAMP, HALF, MP301=_DFL),
    **both("SupCon in half", SUPCON_EPS, HALF, MP301=_LOG),
    **both("SupCon in half, clamped", SUPCON_CLAMP, HALF, MP301=_LOG),
    **both("CPE in half", CPE_EPS, HALF, MP301=_LOG),
    **both("focal loss in half", FOCAL_EPS, HALF, MP301=_FOCAL),
    **both("focal loss under autocast", FOCAL_EPS, SCALED, MP301=_FOCAL),
    **both("focal loss under autocast, clamped", FOCAL_CLAMP, SCALED, MP301=_FOCAL),
    **both("custom probability under autocast", FOCAL_RELU, SCALED, MP301=_FOCAL),
    **both("matcher under autocast", CDIST_PACKED, SCALED, MP214=_CDIST),
    **both("matcher in half evaluation", CDIST, EVALUATION, MP504=_CDIST),
    **both("boxes made half, elsewhere autocast", BOXES, SCALED, MP504=_CDIST),
    **both("projection under autocast", PROJECT, SCALED, MP501=_CAMERA),
    **both("projection under bfloat16 autocast", PROJECT, BFLOAT16, MP501=_CAMERA),
    **both("projection in half", PROJECT, HALF, MP401=("ones = ",), MP501=_CAMERA),
    **both("reprojection under bfloat16 autocast", REPROJECT, BFLOAT16, MP501=_JOINTS),
    **both("hand frames under autocast", ROTATE, SCALED, MP501=("local = torch.matmul(",)),
    **both(
        "hand frames in half", ROTATE, HALF, MP401=("homo = ",), MP501=("local = torch.matmul(",)
    ),
    "camera of the dataset meets half points": Case(
        {"dataset.py": DATASET, "losses.py": BATCH_AS_IT_COMES, "trainer.py": HALF},
        {"MP501": ("uvw = ",)},
    ),
    "matrix cast down to the points inside a region": Case(
        together(BATCH_DOWN_HERE), {"MP501": ("uvw = ",)}
    ),
}
"""Code that broke, and repairs that do not cure it."""

AFTER: dict[str, Case] = {
    **both("mask pooling outside autocast", OUTSIDE, SCALED),
    **both("mask pooling outside autocast, upcast before", OUTSIDE_BY_NAME, SCALED),
    **both("mask pooling with masks that sum to one", DIVIDED_BEFORE, SCALED),
    "gradients checked in line after unscale_": Case(trainer(INLINE + SKIP_AND_UPDATE, UNSCALE)),
    "gradients checked in a helper after unscale_": Case(
        trainer(HELPER + SKIP_AND_UPDATE, UNSCALE)
    ),
    "gradients clipped after unscale_": Case(trainer("", before_clip=LATE)),
    **both("DFL in half, log_softmax", DFL_LOG_SOFTMAX, HALF),
    **both("DFL in half, upcast at its origin", DFL_UPCAST, HALF),
    **both("SupCon in half, logsumexp", SUPCON_LOGSUMEXP, HALF),
    **both("CPE in half, logsumexp", CPE_LOGSUMEXP, HALF),
    **both("DFL under CUDA autocast: softmax is float32", DFL_EPS, SCALED),
    **both("SupCon under CUDA autocast: exp and sum are float32", SUPCON_EPS, SCALED),
    **both("CPE under CUDA autocast: exp and sum are float32", CPE_EPS, SCALED),
    **both("focal loss under autocast, upcast at its origin", FOCAL_UPCAST, SCALED),
    **both("focal loss under autocast, logsigmoid", FOCAL_LOGSIGMOID, SCALED),
    **both("matcher under autocast, upcast", CDIST_UPCAST, SCALED),
    **both("matcher in half evaluation, upcast", CDIST_UPCAST, EVALUATION),
    **both("matcher under autocast, upcast in the branch of half", CDIST_BRANCH, SCALED),
    **both("matcher in half evaluation, upcast in the branch of half", CDIST_BRANCH, EVALUATION),
    **both("projection under autocast, points up", PROJECT_UP, SCALED),
    **both("projection in half, points up", PROJECT_UP, HALF),
    **both("reprojection under bfloat16 autocast, points up", REPROJECT_UP, BFLOAT16),
    **both("hand frames under autocast, up", ROTATE_UP, SCALED),
    **both("hand frames in half, up, dtype given", ROTATE_UP, HALF),
    "camera of the dataset meets half points, both up": Case(
        {"dataset.py": DATASET, "losses.py": BATCH_UP, "trainer.py": HALF}
    ),
    **{
        f"{name} in full precision": Case(apart(code, FULL))
        for name, code in {
            "mask pooling": SUMMED,
            "DFL": DFL_EPS,
            "focal loss": FOCAL_EPS,
            "matcher": CDIST,
            "projection": PROJECT,
            "hand frames": ROTATE,
        }.items()
    },
}
"""Repairs that the measurements support, and the same code where nothing is half."""
