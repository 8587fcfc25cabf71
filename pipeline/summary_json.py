"""The summary of a run for scripts: one JSON document, of a documented form."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pipeline.findings import nearest_stops, pareto_front, why, winners, with_derived
from pipeline.ratios import run_ratios
from pipeline.run import SweepRun
from stages.candidate import MODES, Mode

SUMMARY_VERSION = 1


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CandidateSummary(_Part):
    """One candidate."""

    mode: Mode
    runner: str
    model: str
    device: str
    num_devices: int
    parallelism: str
    workload: str = Field(description="The workload in words.")
    input_length: int = Field(description="Prompt tokens.")
    output_length: int = Field(description="Generated tokens.")
    max_batched_tokens: int
    batch_size: int = Field(description="Requests per data-parallel replica.")
    concurrency: int = Field(description="Requests in flight over all replicas.")
    ttft_ms: float | None = Field(description="Mean time to first token; null where the mode has none.")
    tpot_ms: float | None = Field(description="Mean time per later token; null where the mode has none.")
    tokens_per_s: float | None = Field(description="Output tokens, or input tokens in prefill mode.")
    tokens_per_s_per_device: float | None
    memory_left_gb: float = Field(description="Least memory left on a device, GiB.")
    identity: str = Field(description="The shape table that the latencies come from.")


class StoppedSummary(CandidateSummary):
    """One candidate that is not feasible."""

    stop_reason: str = Field(description="prefill_oom, decode_oom, ttft_limit or tpot_limit.")
    why: str = Field(description="The reason in words.")


class RatioSummary(_Part):
    """The best prefill/decode pair of one model, device and workload."""

    model: str
    device: str
    prefill_parallelism: str
    prefill_batch_size: int
    decode_parallelism: str
    decode_batch_size: int
    pd_ratio: float = Field(description="Prefill instances per decode instance.")
    p_qps: float = Field(description="Requests/s of one prefill instance.")
    d_qps: float = Field(description="Requests/s of one decode instance.")
    balanced_qps: float = Field(description="The smaller of the two.")


class Counts(_Part):
    """How much was asked and done."""

    candidates: int
    feasible: int
    out_of_memory: int
    shapes_needed: int
    shapes_reused: int
    shapes_computed: int


class RunSummary(_Part):
    """What `shapecast run --json` prints."""

    summary_version: int = Field(description="1; a change that breaks readers raises it.")
    out: str = Field(description="The output folder, as given.")
    counts: Counts
    best: list[CandidateSummary] = Field(
        description="The best candidate of each mode, workload, runner, model and device."
    )
    pareto: list[CandidateSummary] = Field(
        description="The candidates on the Pareto fronts, per mode, model and workload."
    )
    ratios: list[RatioSummary]
    nearest_stopped: list[StoppedSummary] = Field(
        description="When nothing is feasible: per deployment, the candidate nearest to feasible."
    )


def summary_json(run: SweepRun) -> str:
    """Return the summary of a run as one JSON document."""
    frame = with_derived(run.frame)
    best = winners(frame)
    front = [row for mode in MODES for row in pareto_front(frame, mode)]
    counts = Counts(
        candidates=len(frame),
        feasible=int(frame["feasible"].sum()),
        out_of_memory=run.counts.stopped,
        shapes_needed=run.counts.needed,
        shapes_reused=run.counts.reused,
        shapes_computed=run.counts.computed,
    )
    return RunSummary(
        summary_version=SUMMARY_VERSION,
        out=str(run.out),
        counts=counts,
        best=[_candidate(row) for row in best.to_dict("records")],
        pareto=[_candidate(row) for row in frame.iloc[front].to_dict("records")],
        ratios=[
            RatioSummary(
                model=str(group["model"]),
                device=str(group["device"]),
                prefill_parallelism=pairs[0].prefill.parallelism,
                prefill_batch_size=pairs[0].prefill.batch_size,
                decode_parallelism=pairs[0].decode.parallelism,
                decode_batch_size=pairs[0].decode.batch_size,
                **{name: getattr(pairs[0], name) for name in ("pd_ratio", "p_qps", "d_qps", "balanced_qps")},
            )
            for group, pairs in run_ratios(frame)
            if pairs
        ],
        nearest_stopped=[] if len(best) else [_stopped(row) for row in nearest_stops(frame)],
    ).model_dump_json(indent=2)


def _candidate(row: dict[Any, Any]) -> CandidateSummary:
    return CandidateSummary(**_fields(row))


def _stopped(row: dict[Any, Any]) -> StoppedSummary:
    return StoppedSummary(**_fields(row), stop_reason=row["stop_reason"], why=why(row))


def _fields(row: dict[Any, Any]) -> dict[str, Any]:
    fields = {name: row[name] for name in CandidateSummary.model_fields}
    return {name: None if _is_no_number(value) else value for name, value in fields.items()}


def _is_no_number(value: object) -> bool:
    """Whether JSON has no number for this value."""
    return isinstance(value, float) and not math.isfinite(value)
