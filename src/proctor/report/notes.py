"""What every number in a report means; the same words in every format."""

from __future__ import annotations

NOTES: tuple[tuple[str, str], ...] = (
    (
        "Outcome",
        "Every planned run has exactly one. Scored: a valid score counts. Invalid: the agent left nothing that could "
        "be scored. Voided: an integrity finding took the score away. Infrastructure: the machine or Proctor failed, "
        "and whatever was scored before does not count. Stopped: a person ended the run before anything valid was "
        "there. Unfinished: there is no result (yet). How a run ended (submitted, exited, deadline, killed) is a "
        "separate fact: a run that hit its deadline with a valid artefact is scored.",
    ),
    (
        "Missing numbers",
        "An em dash with a reason, told once in a row of a table. Missing is never counted or shown as 0, which would "
        "be a perfect score wherever lower is better.",
    ),
    (
        "Score",
        "Under the sealed protocol, the hidden score of the artefact whose visible score was best (or that came last, "
        "where the task says so), taken once, after the end. Under the published protocol, the best score on the "
        "split that the agent saw: chosen on what it is scored on, and so too good by an unknown amount.",
    ),
    (
        "Mean ± deviation",
        "Over the scored runs of a cell, n of them. The deviation is that of the sample (n − 1); one run has none.",
    ),
    (
        "Success rate",
        "Scored runs over the agent's attempts: scored, invalid and voided runs. Runs that were lost to the machine, "
        "stopped by hand or are unfinished are no attempts; they are counted apart.",
    ),
    (
        "Relative gain",
        "(s − b) / |b| where higher is better, (b − s) / |b| where lower is, with the starting solution's score b: "
        "positive is better. There is none if b is 0. For a score on a logarithmic scale its size depends on the unit; "
        "the normalised score's does not. In the tables: the mean over scored runs.",
    ),
    (
        "Normalised score",
        "0 at the starting solution, 1 at the reference solution: (y − start) / (reference − start), below the start "
        "0, without an upper cap. In the results table: the mean over scored runs. In the standings an invalid or "
        "voided attempt counts 0, as in RE-Bench.",
    ),
    (
        "Agg",
        "As in 1GC-7RC: the mean over tasks of the relative gain of the agent's mean score. A failed run leaves the "
        "mean and only lowers the success rate. Two values compare only over the same tasks.",
    ),
    (
        "Score@k",
        "The mean, over all choices of k of the attempts, of the best normalised score among them, averaged over "
        "tasks. Exact, without sampling. k is the smallest number of attempts that any of the tasks has.",
    ),
    (
        "95 % interval",
        "Percentile bootstrap: 5000 times, every task's runs are drawn again with replacement. None where a task has "
        "fewer than two runs. With few runs such intervals are too narrow.",
    ),
    (
        "Visible best, sealed, optimism",
        "What the agent saw at best, the hidden score of that same artefact, and the difference, signed so that "
        "positive means that the visible score promised too much.",
    ),
    (
        "Time",
        "The agent's clock: it starts with the agent's process and stops when its process tree is dead. A scoring is "
        "shown at the moment at which its artefact was frozen. Hidden scores over time come from snapshots that were "
        "scored after the end; the agent saw none of them.",
    ),
    (
        "Integrity findings",
        "What a rule saw, with its evidence. A void finding takes the score of that scoring away; a warning asks a "
        "person to look; a note has no effect. No findings means that no rule fired, not that nothing happened.",
    ),
)
