"""How far are the roofline's forward latencies from measured silicon, shape by shape?

Run `python benchmarks/roofline_accuracy.py` (needs `pip install 'shapecast[silicon]'`; takes a minute): it
compares the roofline runner with the `aiconfigurator` runner over models, devices, prefill chunks and decode
batches and writes the tables of docs/accuracy.md. `--points FILE` keeps the silicon latencies between runs.

Ratios are roofline / silicon: below 1 the roofline is too fast. Both runners get the same number formats.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from silicon_points import BLIND, DEVICES, FITTED, MODELS, SEEN, deployments, load_points

from cache.shapes import ForwardShapeKey
from stages.runners.device import DeviceProfile
from stages.runners.roofline_spec import RooflineOptions, RooflineSpec

DOC = Path(__file__).parents[1] / "docs" / "accuracy.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"

OVERHEAD = "operator_overhead_us"

UNFITTED: dict[str, float] = {"compute": 0.7, "memory": 0.8, "communication": 0.8, OVERHEAD: 2.0}
"""What the profiles of devices without measurements have."""

Specs = dict[tuple[str, str, str], RooflineSpec]


def specs(points: pd.DataFrame) -> Specs:
    """Return the roofline spec of every (model, device, sizes) among the points."""
    wanted = set(points[["model", "device", "sizes"]].itertuples(index=False, name=None))
    found: Specs = {}
    for model, deployment, sizes in deployments():
        if (model.name, deployment.device, sizes) in wanted:
            fields = {"kind": "roofline", "quantization": model.formats.roofline}
            spec = RooflineOptions.model_validate(fields).spec(deployment)
            found[model.name, deployment.device, sizes] = spec
    return found


def with_factors(device: DeviceProfile, factors: dict[str, float]) -> DeviceProfile:
    """Return a profile with other efficiencies and another overhead per operator."""
    shares = {"experts": None} | {name: value for name, value in factors.items() if name != OVERHEAD}
    efficiency = device.efficiency.model_copy(update=shares)
    return device.model_copy(update={"efficiency": efficiency, OVERHEAD: factors[OVERHEAD]})


def roofline(points: pd.DataFrame, known: Specs, factors: dict[str, float] | None = None) -> pd.DataFrame:
    """Return the roofline's latency and communication at every point, ms.

    Without factors, they are those of the shipped profiles.
    """
    runners: dict[tuple[str, str, str], Any] = {}
    answers = []
    for row in points.itertuples():
        name = (row.model, row.device, row.sizes)
        if name not in runners:
            spec = known[name]
            if factors is not None:
                spec = replace(spec, device=with_factors(spec.device, factors))
            runners[name] = spec.build()
        record = runners[name].forward(ForwardShapeKey(*json.loads(row.key)))
        answers.append((record.latency_ms, 1000 * record.breakdowns["roofline"]["communication_bound"]))
    return pd.DataFrame(answers, columns=["ms", "communication_ms"], index=points.index)


def tables(points: pd.DataFrame) -> str:
    """Return the tables of docs/accuracy.md."""
    known = specs(points)
    shipped, unfitted = roofline(points, known), roofline(points, known, UNFITTED)
    rest_ms = points.silicon_ms - points.silicon_communication_ms
    data = points.assign(
        broad=[kind.split(",")[0] for kind in points.kind],
        ratio=shipped.ms / points.silicon_ms,
        before=unfitted.ms / points.silicon_ms,
        communication=shipped.communication_ms / points.silicon_communication_ms,
        rest=(shipped.ms - shipped.communication_ms) / rest_ms,
    )
    title = f"{len(points):,} points: {points.model.nunique()} models on {points.device.nunique()} devices."
    return "\n\n".join([title, _errors(data), _ratios(data), _parts(data)])


def _errors(data: pd.DataFrame) -> str:
    rows = []
    for broad in ("dense", "experts"):
        for use in (FITTED, SEEN, BLIND):
            group = data[(data.broad == broad) & (data.use == use)]
            for column, text in (("before", "as without measurements"), ("ratio", "as shipped")):
                errors = (group[column] - 1).abs()
                medians = [errors[group.device == device].median() for device in DEVICES]
                rows.append([broad, use, text, *(_percent(error) for error in (*medians, errors.median()))])
    return "### Median absolute error\n\n" + _markdown(["models", "", "factors", *DEVICES, "all"], rows)


def _percent(error: float) -> str:
    return "-" if math.isnan(error) else f"{error:.1%}"


def _ratios(data: pd.DataFrame) -> str:
    rows = []
    for model in MODELS:
        for phase in ("prefill", "decode"):
            group = data[(data.model == model.name) & (data.phase == phase)]
            cells = [_spread(group.ratio[group.device == device]) for device in DEVICES]
            rows.append([model.name, f"{model.kind}, {model.use}", phase, *cells])
    title = "### Roofline / silicon: median (P10 to P90)\n\n"
    return title + _markdown(["model", "", "phase", *DEVICES], rows)


def _spread(ratios: pd.Series[float]) -> str:
    if ratios.empty:
        return "-"
    low, middle, high = ratios.quantile([0.1, 0.5, 0.9])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _parts(data: pd.DataFrame) -> str:
    several = data[data.silicon_communication_ms > 0]
    rows = [
        [broad, phase, device, f"{group.communication.median():.2f}", f"{group.rest.median():.2f}"]
        for (broad, phase, device), group in several.groupby(["broad", "phase", "device"])
    ]
    title = (
        "### Median ratio of communication, and of all else\n\nOver the points on several devices for "
        "which the package tells what bounds every operator.\n\n"
    )
    return title + _markdown(["models", "phase", "device", "communication", "all else"], rows)


def _markdown(header: list[str], rows: Iterable[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows))


def main() -> None:
    """Write the tables of docs/accuracy.md."""
    parser = argparse.ArgumentParser(description="Compare roofline and silicon forward latencies.")
    parser.add_argument("--points", type=Path, help="Parquet file that keeps the silicon latencies")
    parser.add_argument("--print", action="store_true", help="print the tables, leave docs/accuracy.md alone")
    arguments = parser.parse_args()
    text = tables(load_points(arguments.points))
    if arguments.print:
        print(text)
        return
    before, _, rest = DOC.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    DOC.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
    print(f"Wrote the tables of {DOC}.")


if __name__ == "__main__":
    main()
