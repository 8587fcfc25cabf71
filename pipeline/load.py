"""A run in a notebook: pandas frames and plotly figures, nothing written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from cache.errors import InvalidValueError, shown
from pipeline.findings import pareto_front, stops, winners, with_derived
from pipeline.ratios import run_ratios
from pipeline.report import figures, part_figures
from pipeline.rows import ranked
from pipeline.saved import SavedRun, read_run
from stages.candidate import MODES, Mode

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def load_run(out: str | Path) -> LoadedRun:
    """Return the run that a folder holds.

    Parameters
    ----------
    out : str or Path
        The output folder of a run; only its results.parquet is read.

    Raises
    ------
    OutputError
        When the folder is no run, its results are missing or damaged, or a newer version wrote them.
    """
    return LoadedRun(read_run(Path(out)))


class LoadedRun:
    """A run as frames and figures.

    Parameters
    ----------
    saved : SavedRun
        Rows and facts of the run.
    """

    def __init__(self, saved: SavedRun) -> None:
        self._saved = replace(saved, frame=with_derived(saved.frame))

    @property
    def results(self) -> pd.DataFrame:
        """One row per candidate, with the columns of results.parquet and of `findings.with_derived`."""
        return self._saved.frame

    @property
    def config(self) -> Mapping[str, Any]:
        """The sweep config, defaults filled in."""
        return self._saved.facts.config

    @property
    def tables(self) -> pd.DataFrame:
        """The shape tables used: id, label, identity, number of records and their digest."""
        return pd.DataFrame(self._saved.facts.tables)

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions that made the run, by package."""
        return self._saved.facts.versions

    @cached_property
    def best(self) -> pd.DataFrame:
        """The feasible rows, best first within each mode, with their `rank`."""
        return ranked(self.results)

    @cached_property
    def winners(self) -> pd.DataFrame:
        """The best row of each mode, workload, runner, model and device."""
        return winners(self.results)

    @cached_property
    def stops(self) -> pd.DataFrame:
        """Per deployment, the first load that does not fit, and `why`."""
        return stops(self.results)

    @cached_property
    def ratios(self) -> pd.DataFrame:
        """The prefill/decode pairs, best first within each model, device and workload."""
        return pd.DataFrame(
            {
                **group,
                **{
                    f"{name}_{field}": getattr(half, field)
                    for name, half in (("prefill", pair.prefill), ("decode", pair.decode))
                    for field in ("parallelism", "batch_size", "concurrency")
                },
                **{name: getattr(pair, name) for name in ("pd_ratio", "p_qps", "d_qps", "balanced_qps")},
            }
            for group, pairs in run_ratios(self.results)
            for pair in pairs
        )

    def frontier(self, mode: Mode | None = None) -> pd.DataFrame:
        """Return the rows on the Pareto fronts of a mode: throughput per device against speed per user."""
        return self.results.iloc[pareto_front(self.results, self._mode(mode))]

    def trade_off(self, mode: Mode | None = None) -> Figure:
        """Return throughput per device against speed per user, with the fronts."""
        return self._figure(figures.trade_off(self.results, self._mode(mode), self._looks))

    def latency(self, which: Literal["ttft", "tpot"], mode: Mode | None = None) -> Figure:
        """Return TTFT or TPOT against concurrency, with the limits.

        Raises
        ------
        ValueError
            When `which` is neither.
        """
        if which not in ("ttft", "tpot"):
            raise InvalidValueError(f"which is {shown(which)}; it must be 'ttft' or 'tpot'.")
        return self._figure(figures.latency(self.results, self._mode(mode), f"{which}_ms", self._looks))

    def memory(self) -> Figure:
        """Return the memory of one device for each best deployment, by its parts."""
        return self._figure(part_figures.memory(self.winners))

    def bounds(self) -> Figure:
        """Return the time of each best deployment by what bounds it."""
        return self._figure(part_figures.bounds(self.winners))

    def outcomes(self) -> Figure:
        """Return how many candidates are feasible, and what stops the others."""
        return self._figure(part_figures.stop_counts(self.results))

    def chunks(self, place: int = 0) -> Figure:
        """Return the latency per prefill chunk of a best deployment; `place` is its row in `winners`."""
        return self._figure(part_figures.chunks(self._trace(place)))

    def timeline(self, place: int = 0) -> Figure:
        """Return the schedule of a best deployment over time; `place` is its row in `winners`."""
        return self._figure(part_figures.timeline(self._trace(place)))

    @cached_property
    def _looks(self) -> figures.Styles:
        return figures.styles(self.results)

    @cached_property
    def _texts(self) -> dict[int, str]:
        return {row["row"]: figures.hover_text(row) for row in self.results.to_dict("records")}

    def _mode(self, mode: Mode | None) -> Mode:
        swept = [one for one in MODES if one in set(self.results["mode"])]
        if mode is None:
            return swept[0]
        if mode not in swept:
            raise InvalidValueError(f"mode is {shown(mode)}; this run has {', '.join(swept)}.")
        return mode

    def _trace(self, place: int) -> Mapping[str, Any]:
        row = int(self.winners["row"].iloc[place])
        for trace in self._saved.facts.traces:
            if trace["row"] == row:
                return trace
        raise InvalidValueError(
            f"The run keeps no trace of row {row}; it keeps those of the first "
            f"{len(self._saved.facts.traces)} rows of winners."
        )

    def _figure(self, figure: figures.Figure) -> Figure:
        from plotly.graph_objects import Figure

        return Figure(figures.with_hover(figure, self._texts))
