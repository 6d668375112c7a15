"""The mathematical operations that the models share, each beside its plain reference."""

from vdenoise.ops.attention import attention, gaussian_attention
from vdenoise.ops.shrink import soft_threshold

__all__ = ["attention", "gaussian_attention", "soft_threshold"]
