"""How a model is spread over devices."""

from __future__ import annotations

from dataclasses import dataclass

from cache.errors import InvalidValueError, shown
from cache.shapes import LARGEST_COUNT
from stages.checks import require_int


@dataclass(frozen=True)
class Parallelism:
    """Sizes of the parallel groups of one deployment.

    Parameters
    ----------
    tp, dp, pp : int
        Tensor, data and pipeline parallel sizes; `tp * dp * pp` devices in all.
    ep : int
        Expert parallel size: over how many groups the experts are spread.
    moe_tp, moe_dp : int or None
        Tensor and data parallel sizes of the expert layers. Left out, `moe_dp` is 1 and `moe_tp`
        what is left of the `tp * dp` devices of one pipeline stage, as serving engines do
        when the attention runs data parallel (vLLM documentation, "Expert Parallel Deployment").

    Raises
    ------
    ValueError
        When a size is not positive, or ep * moe_tp * moe_dp is not tp * dp.
    """

    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    moe_tp: int | None = None
    moe_dp: int | None = None

    def __post_init__(self) -> None:
        for name in ("tp", "dp", "pp", "ep", "moe_tp", "moe_dp"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidValueError(f"{name} is {shown(value)}; a parallel size must be positive.")
            if value is not None:
                require_int(name, value, 1)
        width = self.tp * self.dp
        moe_dp = self.moe_dp if self.moe_dp is not None else self._rest(width, self.moe_tp, default=1)
        moe_tp = self.moe_tp if self.moe_tp is not None else max(width // (self.ep * moe_dp), 1)
        if self.ep * moe_tp * moe_dp != width:
            raise InvalidValueError(
                f"ep * moe_tp * moe_dp is {self.ep} * {moe_tp} * {moe_dp}; it must be tp * dp ({width}), "
                "the devices of one pipeline stage."
            )
        if self.num_devices > LARGEST_COUNT:
            raise InvalidValueError(
                f"tp * dp * pp is {self.num_devices}; it must be at most {LARGEST_COUNT} devices."
            )
        object.__setattr__(self, "moe_tp", moe_tp)
        object.__setattr__(self, "moe_dp", moe_dp)

    def _rest(self, width: int, moe_tp: int | None, default: int) -> int:
        return default if moe_tp is None else max(width // (self.ep * moe_tp), 1)

    @property
    def num_devices(self) -> int:
        """Devices of one deployment."""
        return self.tp * self.dp * self.pp

    def as_json(self) -> dict[str, int | None]:
        """Return all sizes, for identities and manifests."""
        return {
            "tp": self.tp,
            "dp": self.dp,
            "pp": self.pp,
            "ep": self.ep,
            "moe_tp": self.moe_tp,
            "moe_dp": self.moe_dp,
        }

    def __str__(self) -> str:
        text = f"TP={self.tp} | PP={self.pp} | DP={self.dp}"
        if self.ep > 1:
            text += f" | EP={self.ep} | MOE-TP={self.moe_tp} | MOE-DP={self.moe_dp}"
        return text
