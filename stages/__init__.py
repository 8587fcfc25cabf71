"""Pure stage functions and the domain: plan, dedupe, prefetch, replay, aggregate."""

from stages.candidate import Candidate
from stages.evaluate import evaluate
from stages.parallelism import Parallelism
from stages.result import CandidateResult
from stages.workload import Engine, Workload

__all__ = ["Candidate", "CandidateResult", "Engine", "Parallelism", "Workload", "evaluate"]
