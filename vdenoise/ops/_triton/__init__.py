"""Triton kernels of the operations in :mod:`vdenoise.ops`; imported only where one of them runs."""
