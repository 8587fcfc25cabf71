"""Which efficiencies make the roofline meet measured silicon best?

Run `python benchmarks/roofline_fit.py` (needs `pip install 'shapecast[silicon]'`; takes a minute): for each
device it looks for the factors of its profile (the shares of the compute peak that products and products of
experts reach, the shares of memory and link bandwidth, and the overhead per operator) with the least loss
over the points of the fitted models. The loss is the mean of |log(roofline / silicon)| in which every model
and phase weighs the same, plus a quarter of the same mean over communication alone where the package tells
it: without that part the links take the blame for whatever else is too fast.

The search is that of Nelder and Mead ("A Simplex Method for Function Minimization", 1965), on the log-odds of
shares and the log of the overhead, so that none leaves its range. It has no random part.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from roofline_accuracy import OVERHEAD, UNFITTED, roofline, specs
from scipy.optimize import minimize
from silicon_points import DEVICES, FITTED, load_points

SHARES = ("compute", "memory", "communication", "experts")
START = UNFITTED | {"experts": 0.35}
COMMUNICATION_WEIGHT = 0.25
EVALUATIONS = 1200
FIRST_STEP = 0.7

Vector = npt.NDArray[np.float64]


def fit(points: pd.DataFrame) -> tuple[dict[str, float], float]:
    """Return the factors that fit the points of one device best, and the loss that is left."""
    known = specs(points)
    weights = 1 / points.groupby(["model", "phase"])["key"].transform("size").to_numpy(float)
    weights /= weights.sum()
    silicon_ms = points.silicon_ms.to_numpy(float)
    moving_ms = points.silicon_communication_ms.to_numpy(float)
    moves = moving_ms > 0

    def loss(position: Vector) -> float:
        answers = roofline(points, known, _factors(position))
        whole = weights @ np.abs(np.log(answers.ms.to_numpy() / silicon_ms))
        if not moves.any():
            return float(whole)
        moving = np.abs(np.log(answers.communication_ms.to_numpy()[moves] / moving_ms[moves])).mean()
        return float(whole + COMMUNICATION_WEIGHT * moving)

    shares = np.array([START[share] for share in SHARES])
    start = np.append(np.log(shares / (1 - shares)), np.log(START[OVERHEAD]))
    simplex = np.vstack([start, start + FIRST_STEP * np.eye(start.size)])
    options = {"maxfev": EVALUATIONS, "xatol": 1e-3, "fatol": 1e-5, "initial_simplex": simplex}
    found = minimize(loss, start, method="Nelder-Mead", options=options)
    return _factors(found.x), float(found.fun)


def _factors(position: Vector) -> dict[str, float]:
    shares = dict(zip(SHARES, (1 / (1 + np.exp(-position[:-1]))).tolist(), strict=True))
    return {**shares, OVERHEAD: float(np.exp(position[-1]))}


def main() -> None:
    """Print the factors of every device."""
    parser = argparse.ArgumentParser(description="Fit the roofline's efficiencies to silicon latencies.")
    parser.add_argument("--points", type=Path, help="Parquet file that keeps the silicon latencies")
    points = load_points(parser.parse_args().points)
    for device in DEVICES:
        chosen = points[(points.use == FITTED) & (points.device == device)]
        factors, loss = fit(chosen)
        text = ", ".join(f"{name}: {value:.2f}" for name, value in factors.items())
        print(f"{device}: {text}; loss {loss:.3f} over {len(chosen)} points")


if __name__ == "__main__":
    main()
