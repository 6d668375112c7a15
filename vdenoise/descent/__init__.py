"""Layer descent: the constraint, its multipliers, and the primal-dual step. Knows nothing of video."""

from vdenoise.descent.constraint import LayerDescent, constant, geometric, linear
from vdenoise.descent.multipliers import Multipliers, project_cone
from vdenoise.descent.primal_dual import PrimalDual, StepReport

__all__ = [
    "LayerDescent",
    "Multipliers",
    "PrimalDual",
    "StepReport",
    "constant",
    "geometric",
    "linear",
    "project_cone",
]
