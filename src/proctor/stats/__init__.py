"""Statistics over results: gains, aggregates, score@k, intervals, curves and summaries.

They read results and know nothing of running. Unknown is None, never 0; infrastructure failure, invalid artefact and
poor score stay three different things; every mean comes with the number of runs that it goes over.
"""

from proctor.stats.cells import Behaviour, CellSummary, Outcome, behaviour, outcome_of, summarise
from proctor.stats.curves import BudgetCurve, best_so_far, budget_curve, score_points
from proctor.stats.gains import Aggregate, aggregate, known, normalise, optimism, relative_gain
from proctor.stats.resample import Interval, bootstrap_interval, score_at_k

__all__ = [
    "Aggregate",
    "Behaviour",
    "BudgetCurve",
    "CellSummary",
    "Interval",
    "Outcome",
    "aggregate",
    "behaviour",
    "best_so_far",
    "bootstrap_interval",
    "budget_curve",
    "known",
    "normalise",
    "optimism",
    "outcome_of",
    "relative_gain",
    "score_at_k",
    "score_points",
    "summarise",
]
