"""Lets a torchvision that was built for CUDA be imported beside a torch that was not.

Its operators do not load there, and its import misses these. mosaicml-streaming uses none of them.
"""

import torch

if torch.version.cuda is None:
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
