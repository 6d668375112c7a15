"""The mathematical operations that the models share, each beside its plain reference.

``backend`` chooses between formula and fused Triton kernel; see :mod:`vdenoise.ops._dispatch`.
"""

from vdenoise.ops import _library as _library  # registers what the kernels are to autograd and torch.compile
from vdenoise.ops.attention import attention, gaussian_attention
from vdenoise.ops.mix import gaussian_mix
from vdenoise.ops.shrink import soft_threshold

__all__ = ["attention", "gaussian_attention", "gaussian_mix", "soft_threshold"]
