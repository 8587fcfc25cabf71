"""What is asked of a forward-latency model, and what it answers: key and record."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cache.errors import InvalidShapeError, InvalidValueError, shown

BOUND_TYPES = ("memory_bound", "communication_bound", "compute_bound_mma", "compute_bound_gp")
"""The resources that can limit an operator, in the order in which breakdowns are printed."""

MEMORY_FIELDS = ("total_gb", "weight_gb", "kv_cache_gb", "activation_gb", "reserved_gb")
LARGEST_COUNT = 2**31 - 1
"""The largest count or length that is accepted: beyond what anyone serves, within what files hold."""

_TEXT = (None, None, None)
IMAGE_FIELDS = ("image_batch_size", "image_height", "image_width")


class Segment(NamedTuple):
    """Requests of one length in a pass that holds requests of several lengths.

    Attributes
    ----------
    query_len : int
        New tokens per request; > 0.
    seq_len : int
        Tokens per request after the pass; >= query_len.
    requests : int
        Requests of this length in each data-parallel replica; > 0.
    """

    query_len: int
    seq_len: int
    requests: int


@dataclass(frozen=True, slots=True)
class ForwardShapeKey:
    """One forward pass, as far as its shape can change its latency.

    Everything else that can change a latency (model, device, parallelism, ...) belongs to the
    table identity.

    Parameters
    ----------
    is_decode : bool
        Whether the pass generates tokens for running requests (decode) or fills the KV cache (prefill).
    model_concurrency : int
        Requests in the pass, over all data-parallel replicas; > 0.
    query_len : int
        New tokens per request; > 0.
    seq_len : int
        Tokens per request after the pass, cached ones included; >= query_len.
    image_batch_size, image_height, image_width : int or None
        Images per pass and their size in pixels; None for text.
    segments : tuple of Segment or None
        What each replica computes when its requests differ in length: at least two kinds, each once, in
        ascending order. Then `query_len` and `seq_len` are the largest of the segments, and
        `model_concurrency` is a multiple of their count. None where all requests are of one length.
        `ForwardShapeKey.of_segments` brings any multiset into this form.

    Raises
    ------
    ValueError
        When a field is out of its range, above `LARGEST_COUNT`, or no whole number. NumPy's whole numbers
        are taken and become Python's.
    """

    is_decode: bool
    model_concurrency: int
    query_len: int
    seq_len: int
    image_batch_size: int | None = None
    image_height: int | None = None
    image_width: int | None = None
    segments: tuple[Segment, ...] | None = None
    # Keys are looked up far more often than made.
    _hash: int = field(init=False, repr=False, compare=False)

    @classmethod
    def of_segments(
        cls,
        is_decode: bool,
        segments: Iterable[tuple[int, int, int]],
        replicas: int = 1,
        images: tuple[int | None, int | None, int | None] = (None, None, None),
    ) -> ForwardShapeKey:
        """Return the key of a pass in which each of `replicas` computes a multiset of segments.

        Equal multisets give equal keys, in whatever order and however grouped they come. Where all
        requests are of one length this is the key without segments.

        Parameters
        ----------
        is_decode : bool
            Whether the pass decodes.
        segments : iterable of (query_len, seq_len, requests)
            The requests of one replica.
        replicas : int
            Data-parallel replicas, all alike.
        images : tuple
            `image_batch_size`, `image_height`, `image_width`.

        Raises
        ------
        ValueError
            When there is no segment, or one is out of its range.
        """
        counts: dict[tuple[int, int], int] = {}
        for query_len, seq_len, requests in segments:
            counts[query_len, seq_len] = counts.get((query_len, seq_len), 0) + requests
        if not counts:
            raise InvalidShapeError("A pass without segments was asked for; give at least one.")
        kinds = tuple(Segment(*lengths, requests) for lengths, requests in sorted(counts.items()))
        concurrency = replicas * sum(segment.requests for segment in kinds)
        query_len = max(segment.query_len for segment in kinds)
        seq_len = max(segment.seq_len for segment in kinds)
        return cls(is_decode, concurrency, query_len, seq_len, *images, kinds if len(kinds) > 1 else None)

    def __post_init__(self) -> None:
        # Keys are made by the ten thousand, so the usual types are told by identity.
        if (
            type(self.is_decode) is not bool
            or not type(self.model_concurrency) is type(self.query_len) is type(self.seq_len) is int
        ):
            self._make_plain()
        if self.model_concurrency > LARGEST_COUNT or self.seq_len > LARGEST_COUNT:
            name = "seq_len" if self.seq_len > LARGEST_COUNT else "model_concurrency"
            raise InvalidShapeError(
                f"{name} is {shown(getattr(self, name))}; it must be at most {LARGEST_COUNT}."
            )
        if self.model_concurrency <= 0:
            raise InvalidShapeError(f"model_concurrency is {self.model_concurrency}; it must be positive.")
        if self.query_len <= 0:
            raise InvalidShapeError(f"query_len is {self.query_len}; it must be positive.")
        if self.seq_len < self.query_len:
            raise InvalidShapeError(
                f"seq_len is {self.seq_len}; it must be at least query_len ({self.query_len}), "
                "because the new tokens are part of the sequence."
            )
        images = (self.image_batch_size, self.image_height, self.image_width)
        if images != _TEXT:
            for name, value in zip(IMAGE_FIELDS, images, strict=True):
                if value is not None and not 0 < self._plain(name, value) <= LARGEST_COUNT:
                    raise InvalidShapeError(
                        f"{name} is {shown(value)}; it must be positive and at most {LARGEST_COUNT}, or None "
                        "for text."
                    )
        if self.segments is not None:
            self._check_segments(self._plain_segments(self.segments))
        object.__setattr__(self, "_hash", hash(self._fields()))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[ForwardShapeKey], tuple[object, ...]]:
        # A hash is good in one process only (that of None is an address), so it is made anew.
        return ForwardShapeKey, self._fields()

    def _fields(self) -> tuple[object, ...]:
        return (
            self.is_decode, self.model_concurrency, self.query_len, self.seq_len,
            self.image_batch_size, self.image_height, self.image_width, self.segments,
        )  # fmt: skip

    def _make_plain(self) -> None:
        if type(self.is_decode) is not bool:
            if type(self.is_decode).__name__ not in ("bool", "bool_"):  # NumPy's
                raise InvalidShapeError(f"is_decode is {shown(self.is_decode)}; it must be True or False.")
            object.__setattr__(self, "is_decode", bool(self.is_decode))
        for name in ("model_concurrency", "query_len", "seq_len"):
            self._plain(name, getattr(self, name))

    def _plain(self, name: str, value: Any) -> int:
        """Return and keep a field as Python's int."""
        plain = _whole(name, value)
        if plain is not value:
            object.__setattr__(self, name, plain)
        return plain

    def _plain_segments(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """Return and keep the segments with Python's ints."""
        if not all(type(number) is int for segment in segments for number in segment):
            plain = (Segment(*(_whole("segments", number) for number in segment)) for segment in segments)
            segments = tuple(plain)
            object.__setattr__(self, "segments", segments)
        return segments

    def _check_segments(self, segments: tuple[Segment, ...]) -> None:
        for query_len, seq_len, requests in segments:
            if not 0 < query_len <= seq_len or requests <= 0:
                raise InvalidShapeError(
                    f"A segment is {requests} x {query_len} tokens at length {seq_len}; all must be positive "
                    "and the length no less than the tokens."
                )
        lengths = [segment[:2] for segment in segments]
        largest = tuple(max(column, default=0) for column in zip(*lengths, strict=True))
        concurrency = sum(segment.requests for segment in segments)
        if (
            len(segments) < 2
            or lengths != sorted(set(lengths))
            or largest != (self.query_len, self.seq_len)
            or self.model_concurrency % concurrency
        ):
            raise InvalidShapeError(
                f"segments is {[tuple(segment) for segment in segments]} in a pass of "
                f"{self.model_concurrency} x {self.query_len} tokens at length {self.seq_len}; it must hold "
                "two kinds or more in ascending order, with these largest lengths and a count that divides "
                "the concurrency: use ForwardShapeKey.of_segments."
            )

    def __str__(self) -> str:
        phase = "decode" if self.is_decode else "prefill"
        text = f"{phase} of {self.model_concurrency} x {self.query_len} tokens at length {self.seq_len}"
        if self.segments is not None:
            parts = [f"{requests} x {query} at {length}" for query, length, requests in self.segments]
            shown = parts if len(parts) <= 4 else [*parts[:3], f"{len(parts) - 3} more kinds"]
            text = f"{phase} of {self.model_concurrency} requests of several lengths ({', '.join(shown)})"
        if self.image_height is not None or self.image_width is not None or self.image_batch_size is not None:
            text += f" with {self.image_batch_size} images of {self.image_height} x {self.image_width}"
        return text


def _whole(name: str, value: Any) -> int:
    if type(value) is not bool:
        with suppress(TypeError):
            return operator.index(value)
    raise InvalidShapeError(f"{name} is {shown(value)}; it must be a whole number.")


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """How the memory of one device is used during a forward pass, in GiB."""

    total_gb: float
    weight_gb: float
    kv_cache_gb: float
    activation_gb: float
    reserved_gb: float

    def as_json(self) -> dict[str, float]:
        """Return the parts by name."""
        return {name: float(getattr(self, name)) for name in MEMORY_FIELDS}


@dataclass(frozen=True, slots=True)
class ForwardLatencyRecord:
    """What a model runner says of one forward pass.

    Parameters
    ----------
    latency_ms : float
        Raw forward latency, never folded by speculative acceptance.
    memory_left_gb : float
        Device memory left, GiB; negative means out of memory.
    breakdowns : mapping
        Estimator name -> bound type (`BOUND_TYPES`) -> seconds.
    memory : DeviceMemory or None
        The parts of the device memory, where the runner knows them.
    sources : mapping
        How the latency came about: kind ("measured", "interpolated", "analytic") -> share of the
        latency, summing to 1; empty where the runner does not know.
    """

    latency_ms: float
    memory_left_gb: float
    breakdowns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    memory: DeviceMemory | None = None
    sources: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "latency_ms", float(self.latency_ms))
        object.__setattr__(self, "memory_left_gb", float(self.memory_left_gb))
        if not 0 <= self.latency_ms < float("inf"):
            raise InvalidValueError(
                f"latency_ms is {self.latency_ms}; a model runner must answer with a finite, "
                "non-negative latency."
            )
        if math.isnan(self.memory_left_gb):
            raise InvalidValueError("memory_left_gb is NaN; a model runner must answer with a number.")

    @property
    def out_of_memory(self) -> bool:
        """Whether the pass does not fit the device."""
        return self.memory_left_gb < 0

    def as_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values, the form that is compared and digested."""
        return {
            "latency_ms": self.latency_ms,
            "memory_left_gb": self.memory_left_gb,
            "breakdowns": {
                name: {bound: float(seconds) for bound, seconds in parts.items()}
                for name, parts in self.breakdowns.items()
            },
            "memory": None if self.memory is None else self.memory.as_json(),
            "sources": {kind: float(share) for kind, share in self.sources.items()},
        }
