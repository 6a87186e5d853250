"""mosaicml-streaming, where its torchvision is built for another torch."""

from __future__ import annotations

import torch

if torch.version.cuda is None:
    # torchvision is built for CUDA: beside a CPU torch its operators do not load, and its import misses these.
    # mosaicml-streaming uses only base classes of torchvision's datasets, and none of them here.
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from streaming import MDSWriter, StreamingDataset

__all__ = ["MDSWriter", "StreamingDataset"]
