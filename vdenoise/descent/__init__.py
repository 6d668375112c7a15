"""Layer descent: the constraint, its multipliers, the primal-dual step, and what it promises.

Knows nothing of video.
"""

from vdenoise.descent.bound import Bound, descent_bound
from vdenoise.descent.certificate import Stein, stein
from vdenoise.descent.constraint import LayerDescent, constant, geometric, linear
from vdenoise.descent.multipliers import Multipliers, project_cone
from vdenoise.descent.observed import Noise
from vdenoise.descent.primal_dual import PrimalDual, StepReport

__all__ = [
    "Bound",
    "LayerDescent",
    "Multipliers",
    "Noise",
    "PrimalDual",
    "Stein",
    "StepReport",
    "constant",
    "descent_bound",
    "geometric",
    "linear",
    "project_cone",
    "stein",
]
