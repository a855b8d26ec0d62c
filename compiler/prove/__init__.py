"""Proof of what runs on CUDA: the kernel of every attention site and the nodes left to the CPU.

On a GPU they are read from a run. Without one they are selected (dry run): ONNX Runtime's own CUDA provider places nodes and
chooses kernels over a stand-in device (`device.cpp`) that computes nothing. So values, speed and memory stay unproven.
"""

from .build import Missing, standin
from .proof import FUSED, Found, beyond_sizes, cases_of, observe, prove, ready

__all__ = ["FUSED", "Found", "Missing", "beyond_sizes", "cases_of", "observe", "prove", "ready", "standin"]
