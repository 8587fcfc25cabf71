"""Scheduling policies: the two kinds, their registry, and the example of the documentation."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache import ForwardLatencyRecord, ForwardLatencyTable, ForwardShapeKey
from stages import Candidate, Engine, Parallelism, Workload, evaluate
from stages.evaluate import plan_and_prefetch
from stages.plan import plan, plans_dry
from stages.scheduler import AskRecord, DecodeFirstSlack, LazyScheduler, Scheduler, SchedulingPolicy, Step
from stages.scheduler_registry import get_scheduler, is_built_in, make_scheduler, scheduler_names
from stages.step_time_budget import StepTimeBudget
from tests.conftest import Shapecast
from tests.formula import formula_forward
from tests.literal import Forward, Literal
from tests.test_exactness import FORMULAS, candidates, close, forward_of
from tests.test_golden import FORMULA_CASES, formula_candidate

DOCS = Path(__file__).parent.parent / "docs" / "schedulers.md"


@dataclass(frozen=True)
class AskingSlack(LazyScheduler):
    """Decides as decode_first_slack does, without a look at the records."""

    name: ClassVar[str] = "asking_slack"

    def decide(self, step: Step, record: AskRecord) -> tuple[int, int]:
        return DecodeFirstSlack().decide(step.ready, step.front, step.query_len, step.budget)


class SteadyAskingSlack(AskingSlack):
    """Says as well for how long its decisions stay."""

    def equal_decisions(
        self, ready: int, change: int, front: int, prefill: int, query_len: int, budget: int
    ) -> int:
        return DecodeFirstSlack().equal_decisions(ready, change, front, prefill, query_len, budget)


def with_scheduler(candidate: Candidate, scheduler: SchedulingPolicy) -> Candidate:
    return replace(candidate, engine=replace(candidate.engine, scheduler=scheduler))


MIXED_CASES = [
    case for case in FORMULA_CASES if not plans_dry(with_scheduler(formula_candidate(case), AskingSlack()))
]


@pytest.mark.parametrize("scheduler", [AskingSlack(), SteadyAskingSlack()], ids=["asked", "steady"])
@pytest.mark.parametrize("case", MIXED_CASES, ids=lambda case: case["id"])
def test_a_lazy_policy_that_decides_alike_gives_the_recorded_figures(
    case: dict[str, Any], scheduler: LazyScheduler
) -> None:
    dry, lazy = formula_candidate(case), with_scheduler(formula_candidate(case), scheduler)
    forward = formula_forward(case["formula"])
    dry_table, lazy_table = ForwardLatencyTable(forward), ForwardLatencyTable(forward)
    expected, result = evaluate(dry, dry_table), evaluate(lazy, lazy_table)
    # A plan knows the shapes behind an out-of-memory one; who asks never gets to them.
    if result.out_of_memory:
        expected = replace(expected, forward_shape_count=lazy_table.forward_calls)
    assert result == expected
    assert lazy_table.forward_calls == dry_table.forward_calls == case["expected"]["forward_calls"]


def test_the_golden_cases_have_mixed_steps_that_stop_in_both_phases() -> None:
    stops = {case["expected"]["early_stop_reason"] for case in MIXED_CASES}
    assert len(MIXED_CASES) > 50
    assert {"prefill_oom", "decode_oom", None} <= stops


class LiteralTimeBudget(Literal):
    """Asks for one prompt, then two, four, ... as long as the step stays within its time."""

    def __init__(self, candidate: Candidate, forward: Forward, step_ms: float) -> None:
        super().__init__(candidate, forward)
        self.step_ms = step_ms

    def decide(self, ready: int, front: int, query_len: int, chunk: int) -> tuple[int, int]:
        most, decode = super().decide(ready, front, query_len, chunk)
        taken = 0
        while (count := 2 * taken or 1) <= most:
            prefill_ms = self.prefill_ms(count, chunk)
            if max(prefill_ms, self.decode_ms(decode) if decode else 0.0) > self.step_ms:
                break
            taken = count
        return (taken or int(decode == 0), decode) if most else (0, decode)


@given(candidates(mode="aggregated"), FORMULAS, st.floats(0.5, 60))
def test_the_time_budget_agrees_with_its_literal_steps_and_asks_for_the_same_shapes(
    candidate: Candidate, formula: dict[str, float], step_ms: float
) -> None:
    candidate = with_scheduler(candidate, StepTimeBudget(step_ms))
    forward = forward_of(formula)
    expected = LiteralTimeBudget(candidate, forward, step_ms).run()
    asked: list[ForwardShapeKey] = []

    def counted(key: ForwardShapeKey) -> ForwardLatencyRecord:
        asked.append(key)
        return forward(key)

    result = evaluate(candidate, ForwardLatencyTable(counted))
    assert asked == expected.keys
    assert close(result.ttft_ms, expected.ttft_ms)
    assert close(result.tpot_ms, expected.tpot_ms)
    assert close(result.tokens_per_s, expected.tokens_per_s)
    assert result.stop_reason == expected.stop_reason


def long_prompts(scheduler: str | SchedulingPolicy, **changes: Any) -> Candidate:
    engine = Engine(10, scheduler=scheduler)
    return replace(Candidate("aggregated", Workload(50, 8), engine, Parallelism(dp=4), 6), **changes)


def times(prefill_ms: float, decode_ms: float, most_prefills: int = 1000) -> Forward:
    def forward(key: ForwardShapeKey) -> ForwardLatencyRecord:
        if key.is_decode:
            return ForwardLatencyRecord(decode_ms, 1.0)
        left_gb = 1.0 if key.model_concurrency <= most_prefills else -1.0
        return ForwardLatencyRecord(prefill_ms * key.model_concurrency, left_gb)

    return forward


def test_steps_stay_within_the_time_budget_where_one_prompt_does() -> None:
    planned, records = plan_and_prefetch(
        long_prompts(StepTimeBudget(25.0)), ForwardLatencyTable(times(10.0, 3.0))
    )
    used = [planned.schedule.keys[index] for index in planned.schedule.run_prefill if index >= 0]
    assert {key.model_concurrency for key in used} == {2}
    # It looked at four prompts (40 ms) and left it at that.
    assert 4 in {key.model_concurrency for key in planned.keys}
    assert set(planned.keys) == set(records)


def test_a_prompt_is_taken_however_long_it_takes_when_nothing_decodes() -> None:
    result = evaluate(long_prompts(StepTimeBudget(5.0)), ForwardLatencyTable(times(10.0, 3.0)))
    assert result.feasible
    # One prompt after the other, chunk by chunk; decode goes on alone once prompts would hold it up.
    assert result.tpot_ms is not None
    assert result.ttft_ms is not None
    assert result.ttft_ms > 24 * 5 * 10 / 2


def test_a_shape_that_is_asked_for_and_does_not_fit_ends_the_candidate() -> None:
    table = ForwardLatencyTable(times(10.0, 3.0, most_prefills=1))
    result = evaluate(long_prompts(StepTimeBudget(1000.0)), table)
    assert result.stop_reason == "prefill_oom"
    assert result.tokens_per_s == 0
    assert result.ttft_ms == 20.0
    assert table.forward_calls == result.forward_shape_count == 2
    assert evaluate(long_prompts("decode_first_slack"), table).stop_reason == "prefill_oom"


def test_the_next_candidate_begins_without_the_stop_of_the_one_before() -> None:
    table = ForwardLatencyTable(times(10.0, 3.0, most_prefills=1))
    assert evaluate(long_prompts(StepTimeBudget(1000.0)), table).out_of_memory
    assert evaluate(long_prompts(StepTimeBudget(15.0), batch_size=1), table).stop_reason == "prefill_oom"
    roomy = ForwardLatencyTable(times(10.0, 3.0, most_prefills=2))
    assert not evaluate(long_prompts(StepTimeBudget(15.0), batch_size=1), roomy).out_of_memory


def test_known_records_need_no_runner() -> None:
    table = ForwardLatencyTable(times(10.0, 3.0))
    candidate = long_prompts(StepTimeBudget(25.0))
    planned, records = plan_and_prefetch(candidate, table)

    def never(key: ForwardShapeKey) -> ForwardLatencyRecord:
        raise AssertionError(f"{key} was computed")

    warm = evaluate(candidate, ForwardLatencyTable(never, records))
    assert warm == evaluate(candidate, table)
    assert warm.forward_shape_count == len(planned.keys) == len(records)


@pytest.mark.parametrize(
    ("changes", "dry"),
    [
        ({}, False),
        ({"mode": "prefill"}, True),
        ({"mode": "decode"}, True),
        ({"workload": Workload(10, 8)}, True),
    ],
)
def test_only_mixed_steps_of_a_lazy_policy_cannot_be_planned_dry(changes: dict[str, Any], dry: bool) -> None:
    assert plans_dry(long_prompts(StepTimeBudget(25.0), **changes)) is dry
    assert plans_dry(long_prompts("decode_first_slack", **changes))


def test_planning_a_lazy_policy_without_records_is_refused() -> None:
    with pytest.raises(ValueError, match=r"step_time_budget\(step_ms=25.0\) decides by latencies"):
        plan(long_prompts(StepTimeBudget(25.0)))


def test_a_lazy_policy_must_stay_within_what_is_waiting_and_make_progress() -> None:
    class Greedy(AskingSlack):
        def decide(self, step: Step, record: AskRecord) -> tuple[int, int]:
            return step.front + 1, 0

    class Idle(AskingSlack):
        def decide(self, step: Step, record: AskRecord) -> tuple[int, int]:
            return 0, 0

    for policy, message in ((Greedy(), "25 prefills of 24"), (Idle(), "makes no progress")):
        with pytest.raises(ValueError, match=message):
            evaluate(long_prompts(policy), ForwardLatencyTable(times(1.0, 1.0)))


def test_a_policy_owns_how_long_a_step_takes() -> None:
    @dataclass(frozen=True)
    class OneAfterTheOther(AskingSlack):
        def step_latency_ms(self, prefill_ms: Any, decode_ms: Any) -> Any:
            return prefill_ms + decode_ms

    together = evaluate(long_prompts(AskingSlack()), ForwardLatencyTable(times(10.0, 3.0)))
    one_by_one = evaluate(long_prompts(OneAfterTheOther()), ForwardLatencyTable(times(10.0, 3.0)))
    assert one_by_one.tokens_per_s < together.tokens_per_s


def test_policies_are_found_by_name_and_settings() -> None:
    assert {"decode_first_slack", "step_time_budget"} <= set(scheduler_names())
    assert get_scheduler("decode_first_slack") == DecodeFirstSlack()
    assert make_scheduler("step_time_budget", {"step_ms": 40}) == StepTimeBudget(40.0)
    assert str(StepTimeBudget(40.0)) == repr(StepTimeBudget(40.0)) == "step_time_budget(step_ms=40.0)"
    assert get_scheduler(StepTimeBudget(40.0)) == StepTimeBudget(40.0)
    assert is_built_in(StepTimeBudget(1.0))
    assert not is_built_in(AskingSlack())


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("step_time_bugdet", {}, "There is no scheduler 'step_time_bugdet'; use step_time_budget."),
        (
            "step_time_budget",
            {},
            "needs the setting 'step_ms'; write {kind: step_time_budget, step_ms: ...}.",
        ),
        ("step_time_budget", {"ms": 1}, "has no setting 'ms'; it takes step_ms."),
        ("decode_first_slack", {"slack": 1}, "has no setting 'slack'; it takes none."),
        ("step_time_budget", {"step_ms": 0}, "is 0; it must be a positive number of milliseconds."),
        ("step_time_budget", {"step_ms": "a"}, "is 'a'; it must be a positive number of milliseconds."),
    ],
)
def test_policies_that_cannot_be_are_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make_scheduler(name, settings)


SWEEP = """
name: schedulers
runner: {kind: roofline, quantization: {weights: fp8, activations: fp8, kv_cache: bf16}}
models: [Qwen/Qwen3-8B]
devices: [H100-SXM-80G, L40S-48G]
parallelism: [{dp: 2}]
modes: [aggregated, prefill]
workloads: [{input_length: 6000, output_length: 64}]
engine: {max_batched_tokens: 512, scheduler: %s}
concurrency: {batch_sizes: [2, 16]}
"""


def digests(out: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in out.iterdir()
        if path.suffix != ".log"
    }


def test_a_sweep_with_a_lazy_policy_repeats_exactly_wherever_it_runs(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    policies = "[decode_first_slack, {kind: step_time_budget, step_ms: 12}]"
    (tmp_path / "schedulers.yaml").write_text(SWEEP % policies, encoding="utf-8")
    shapecast("run", "schedulers.yaml", "--out", "a")
    again = shapecast("run", "schedulers.yaml", "--out", "b")
    assert " 0 computed;" in again.stdout
    shapecast(
        *("run", "schedulers.yaml", "--out", "c", "--scheduler", "processes", "--jobs", 2),
        *("--tables", "others"),
    )
    assert digests(tmp_path / "a") == digests(tmp_path / "b") == digests(tmp_path / "c")

    frame = pd.read_parquet(tmp_path / "a/results.parquet")
    rows = frame[(frame["mode"] == "aggregated") & (frame["batch_size"] == 16)]
    rows = rows[rows["device"] == "H100-SXM-80G"].set_index("scheduler")
    slack, budget = rows.loc["decode_first_slack"], rows.loc["step_time_budget(step_ms=12.0)"]
    assert budget["tpot_ms"] < slack["tpot_ms"]


def test_a_plan_follows_a_lazy_policy_as_far_as_records_lead(shapecast: Shapecast, tmp_path: Path) -> None:
    text = (SWEEP % "{kind: step_time_budget, step_ms: 12}").replace(
        "[H100-SXM-80G, L40S-48G]", "H100-SXM-80G"
    )
    (tmp_path / "schedulers.yaml").write_text(
        text.replace("[aggregated, prefill]", "aggregated"), encoding="utf-8"
    )
    before = json.loads(shapecast("plan", "schedulers.yaml", "--json").stdout)
    assert (before["shapes_known"], before["shapes_to_compute_at_most"], before["open_cells"]) == (0, 1, 1)
    said = " ".join(shapecast("plan", "schedulers.yaml").stdout.split())
    assert "schedulers that look at latencies), 1 meet a shape that has no record;" in said
    refused = shapecast("run", "schedulers.yaml", "--out", "a", "--frozen", expect=1)
    assert "1 of 1 shapes have no record" in " ".join(refused.stderr.split())

    run = shapecast("run", "schedulers.yaml", "--out", "a")
    after = json.loads(shapecast("plan", "schedulers.yaml", "--json").stdout)
    assert (after["shapes_to_compute_at_most"], after["open_cells"]) == (0, 0)
    assert f"Shapes: {after['shapes_known']} needed" in run.stdout
    shapecast("run", "schedulers.yaml", "--out", "b", "--frozen")
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_a_search_walks_a_lazy_policy(shapecast: Shapecast, tmp_path: Path) -> None:
    text = SWEEP % "{kind: step_time_budget, step_ms: 12}"
    text = text.replace("batch_sizes: [2, 16]", "search: bisect, range: [1, 8]")
    (tmp_path / "schedulers.yaml").write_text(text, encoding="utf-8")
    shapecast("run", "schedulers.yaml", "--out", "a")
    again = shapecast("run", "schedulers.yaml", "--out", "b")
    assert " 0 computed;" in again.stdout
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    frame = pd.read_parquet(tmp_path / "a/results.parquet")
    assert (frame[frame["mode"] == "aggregated"]["scheduler"] == "step_time_budget(step_ms=12.0)").all()


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        ("fifo", "engine.scheduler: There is no scheduler 'fifo';"),
        (
            "step_time_budget",
            "engine.scheduler: The scheduler 'step_time_budget' needs the setting 'step_ms';",
        ),
        ("{kind: step_time_budget, step_ms: -1}", "engine.scheduler: The setting step_ms of the scheduler"),
        ("{step_ms: 1}", "engine.scheduler.kind: this field is missing; it is required."),
    ],
)
def test_a_scheduler_that_cannot_be_is_one_sentence(
    shapecast: Shapecast, tmp_path: Path, scheduler: str, message: str
) -> None:
    (tmp_path / "schedulers.yaml").write_text(SWEEP % scheduler, encoding="utf-8")
    done = shapecast("run", "schedulers.yaml", "--out", "a", expect=1)
    assert message in " ".join(done.stderr.split())


def block(language: str, containing: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (text,) = [one for one in found if containing in one]
    return str(text)


def install(folder: Path, modules: dict[str, str], points: dict[str, str]) -> str:
    """Put a package with entry points where an interpreter finds it, and return the PYTHONPATH for that."""
    folder.mkdir()
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    info = folder / "my_schedulers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: my-schedulers\nVersion: 1.0\n", encoding="utf-8"
    )
    lines = [f"{name} = {place}" for name, place in points.items()]
    (info / "entry_points.txt").write_text("[shapecast.schedulers]\n" + "\n".join(lines), encoding="utf-8")
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def test_the_example_of_the_documentation_runs(shapecast: Shapecast, tmp_path: Path) -> None:
    project = tomllib.loads(block("toml", "entry-points"))["project"]
    points = project["entry-points"]["shapecast.schedulers"]
    path = install(tmp_path / "site", {"my_schedulers": block("python", "PrefillFirst")}, points)
    (tmp_path / "policies.yaml").write_text(block("yaml", "prefill_first"), encoding="utf-8")
    shapecast("run", "policies.yaml", "--out", "a", PYTHONPATH=path)
    again = shapecast("run", "policies.yaml", "--out", "b", "--scheduler", "processes", PYTHONPATH=path)
    assert " 0 computed;" in again.stdout
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    frame = pd.read_parquet(tmp_path / "a/results.parquet")
    rows = frame[frame["batch_size"] == 16].set_index("scheduler")
    assert set(rows.index) == {"decode_first_slack", "prefill_first", "decode_guard(decode_ms=6.5)"}
    assert rows.loc["prefill_first", "ttft_ms"] == pytest.approx(rows["ttft_ms"].min())
    assert rows["tpot_ms"].nunique() == 3


def test_the_first_config_of_the_documentation_names_policies_that_there_are() -> None:
    text = block("yaml", "step_ms: 40")
    for name in ("decode_first_slack", "step_time_budget"):
        assert name in text
        assert name in scheduler_names()


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({"mine": "missing_module:Mine"}, "registered as missing_module:Mine, which cannot be imported"),
        ({"mine": "my_module:NoPolicy"}, "which is no Scheduler or LazyScheduler class."),
        ({"mine": "my_module:Other"}, "whose name is 'other'; both must be the same."),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_one_sentence(
    shapecast: Shapecast, tmp_path: Path, points: dict[str, str], message: str
) -> None:
    module = (
        "from stages.scheduler import DecodeFirstSlack\n"
        "class NoPolicy:\n    pass\n"
        "class Other(DecodeFirstSlack):\n    name = 'other'\n"
    )
    path = install(tmp_path / "site", {"my_module": module}, points)
    (tmp_path / "schedulers.yaml").write_text(SWEEP % "mine", encoding="utf-8")
    done = shapecast("run", "schedulers.yaml", "--out", "a", expect=1, PYTHONPATH=path)
    assert message in " ".join(done.stderr.split())


def test_schedulers_of_both_kinds_are_policies_of_one_form() -> None:
    assert issubclass(Scheduler, SchedulingPolicy)
    assert issubclass(LazyScheduler, SchedulingPolicy)
    assert not issubclass(LazyScheduler, Scheduler)
