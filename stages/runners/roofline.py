"""The roofline runner: an analytic latency of one forward pass.

Each operator takes the larger of its compute time (FLOPs over peak rate and efficiency) and its memory
time (bytes over bandwidth and efficiency), plus a fixed overhead (Williams, Waterman and Patterson,
"Roofline: An Insightful Visual Performance Model for Multicore Architectures", 2009). Communication adds
to that and overlaps with nothing. In the breakdown the whole time of an operator, overhead included, counts
for the larger side.

Sums and powers are computed the same on every platform and Python version (`math.fsum`, no `pow`; the
built-in `sum` of floats rounds differently from Python 3.12 on), so that a record is, too.

With pipeline parallelism the requests of a replica run as `pp` micro-batches (see `roofline_batch`), one in
each stage at a time, so that all of them get through in `pp` times the time of the slowest stage, plus
`pp - 1` transfers.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum
from typing import NamedTuple

from cache.errors import RunnerError
from cache.shapes import BOUND_TYPES, ForwardLatencyRecord, ForwardShapeKey
from stages.runners.architecture import LayerKind
from stages.runners.device import DeviceProfile
from stages.runners.quantization import BF16_BYTES
from stages.runners.roofline_batch import Batch, micro_batch, replica_segments
from stages.runners.roofline_communication import Fabric, Transfer
from stages.runners.roofline_experts import ExpertShare, expert_share
from stages.runners.roofline_memory import MemoryPlan, Stage, distinct_stages, split_stages
from stages.runners.roofline_operators import OperatorBuilder
from stages.runners.roofline_spec import RooflineSpec
from stages.runners.roofline_work import AttentionWork, Operator

ESTIMATOR = "roofline"

MEMORY, COMMUNICATION, MATRIX, VECTOR = range(4)
"""Positions of `BOUND_TYPES` in a list of seconds per bound."""

Bounds = list[float]


class TimedOperator(NamedTuple):
    """An operator in seconds: matrix, vector and memory time per token, memory time of its weights."""

    matrix_s: float
    vector_s: float
    weight_s: float
    token_s: float


class Rates:
    """Turns work into seconds on a device."""

    def __init__(self, device: DeviceProfile) -> None:
        peaks, share = device.peak_tflops, device.efficiency
        self.overhead_s = device.operator_overhead_us * 1e-6
        self.s_per_byte = 1 / (device.memory_bandwidth_gb_per_s * 1e9 * share.memory)
        self.s_per_vector_flop = 1 / (peaks.vector * 1e12 * share.compute)
        self.expert_slowdown = share.compute / (share.experts or share.compute)
        self.s_per_flop = {
            name: 1 / (peak * 1e12 * share.compute)
            for name, peak in peaks
            if peak is not None and name != "vector"
        }

    def timed(self, operators: Iterable[Operator], slowdown: float = 1.0) -> tuple[TimedOperator, ...]:
        """Return `operators` in seconds, their matrix products `slowdown` times slower than others."""
        return tuple(
            TimedOperator(
                operator.flops * self.s_per_flop[operator.compute_format] * slowdown,
                operator.vector_flops * self.s_per_vector_flop,
                operator.weight_bytes * self.s_per_byte,
                operator.bytes_per_token * self.s_per_byte,
            )
            for operator in operators
        )

    def add(
        self, bounds: Bounds, operators: tuple[TimedOperator, ...], tokens: float, weight_reads: float = 1.0
    ) -> None:
        """Add the time of `operators` on `tokens` tokens to `bounds`, weights read `weight_reads` times."""
        for matrix_s, vector_s, weight_s, token_s in operators:
            self.add_one(
                bounds, matrix_s * tokens, vector_s * tokens, weight_s * weight_reads + token_s * tokens
            )

    def add_one(self, bounds: Bounds, matrix_s: float, vector_s: float, memory_s: float) -> None:
        """Add one operator to the bound that takes longest."""
        if memory_s >= matrix_s and memory_s >= vector_s:
            bounds[MEMORY] += memory_s + self.overhead_s
        elif matrix_s >= vector_s:
            bounds[MATRIX] += matrix_s + self.overhead_s
        else:
            bounds[VECTOR] += vector_s + self.overhead_s


class TimedLayer:
    """One kind of layer in seconds."""

    def __init__(
        self,
        rates: Rates,
        builder: OperatorBuilder,
        kind: LayerKind,
        reduce: Transfer,
        share: ExpertShare | None,
    ) -> None:
        layer = builder.layer(kind)
        self._rates = rates
        self._token = rates.timed(layer.token)
        self._attention = (layer.prefill_attention, layer.decode_attention)
        self._context, self._decode = rates.timed(layer.prefill_context), rates.timed(layer.decode)
        self._experts = rates.timed(layer.experts, rates.expert_slowdown)
        self._share = share if kind.has_experts else None
        after = self._share.token_transfers if self._share is not None else (reduce,)
        self._transfers = tuple(transfer for transfer in (reduce, *after) if transfer.s_per_byte)

    def bounds(self, batch: Batch) -> Bounds:
        """Return the seconds per bound of one layer for one micro-batch."""
        rates, share = self._rates, self._share
        bounds = [0.0] * len(BOUND_TYPES)
        rates.add(bounds, self._token, batch.tokens)
        if batch.is_decode:
            rates.add(bounds, self._decode, batch.tokens)
        else:
            rates.add(bounds, self._context, batch.context_tokens)
        self._add_attention(bounds, self._attention[batch.is_decode], batch)
        for fixed_s, s_per_token in self._transfers:
            bounds[COMMUNICATION] += fixed_s + s_per_token * batch.tokens
        if share is not None:
            pairs = batch.group_tokens * share.pairs_per_token
            rates.add(bounds, self._experts, pairs, share.experts_hit(batch.group_tokens))
            for fixed_s, s_per_token in share.group_transfers:
                bounds[COMMUNICATION] += fixed_s + s_per_token * batch.group_tokens
        return bounds

    def _add_attention(self, bounds: Bounds, work: AttentionWork, batch: Batch) -> None:
        rates, pairs, context = self._rates, 0.0, 0
        for query_len, seq_len, requests in batch.segments:
            pairs += requests * work.pairs(query_len, seq_len)
            context += requests * work.context_tokens(query_len, seq_len)
        moved = work.bytes_per_context_token * context + work.bytes_per_new_token * batch.tokens
        # Attention computes in BF16 whatever the format of weights and KV cache.
        rates.add_one(
            bounds,
            pairs * work.flops_per_pair * rates.s_per_flop["bf16"],
            pairs * work.vector_flops_per_pair * rates.s_per_vector_flop,
            moved * rates.s_per_byte,
        )


class RooflineRunner:
    """Answers `forward` by the roofline; everything that no shape changes is computed once, here.

    Parameters
    ----------
    spec : RooflineSpec
        The deployment.
    """

    def __init__(self, spec: RooflineSpec) -> None:
        model, device, parallelism = spec.architecture, spec.device, spec.parallelism
        self._parallelism, self._num_mtp_tokens = parallelism, spec.num_mtp_tokens
        fabric, self._rates = Fabric(device), Rates(device)
        rates = self._rates
        builder = OperatorBuilder(model, parallelism, spec.quantization)
        row_bytes = model.hidden_size * BF16_BYTES
        self._reduce = fabric.all_reduce(parallelism.tp).scaled(row_bytes)
        self._gather_logits = fabric.all_gather(parallelism.tp).scaled(model.vocab_size * BF16_BYTES)
        self._send = fabric.send(parallelism.num_devices).scaled(row_bytes)
        share = None
        if model.experts is not None:
            share = expert_share(model, model.experts, parallelism, spec.quantization, fabric)
        self._pairs_per_token = share.pairs_per_token if share is not None else 0.0
        self._stages = distinct_stages(split_stages(model.layers, parallelism.pp))
        self._mtp_kind = model.mtp_layer_kind
        kinds = set(model.layers) | ({self._mtp_kind} if spec.num_mtp_tokens else set())
        self._layers = {kind: TimedLayer(rates, builder, kind, self._reduce, share) for kind in kinds}
        self._embedding = rates.timed([builder.embedding()])
        self._head, self._mtp_input = rates.timed(builder.head()), rates.timed(builder.mtp_input())
        self._memory = MemoryPlan(
            builder,
            self._stages,
            ep=parallelism.ep,
            block_size_tokens=spec.block_size,
            memory_gb=device.memory_gb,
            reserved_gb=spec.reserved_memory_gb,
            num_mtp_modules=min(model.num_mtp_layers, spec.num_mtp_tokens),
        )

    def forward(self, key: ForwardShapeKey) -> ForwardLatencyRecord:
        """Return the record of one forward pass.

        Raises
        ------
        RunnerError
            When the key has images: this runner knows text only.
        """
        if key.image_batch_size is not None or key.image_height is not None or key.image_width is not None:
            raise RunnerError(
                f"The roofline runner cannot answer for {key}, because it knows text only; use a runner that "
                "knows images, or leave the images out of the workload."
            )
        segments = replica_segments(key, self._parallelism.dp)
        batch = micro_batch(key, segments, self._parallelism)
        bounds = self._step_bounds(batch)
        memory, left_gb = self._memory.usage(segments, self._activation_bytes(batch))
        return ForwardLatencyRecord(
            latency_ms=fsum(bounds) * 1e3,
            memory_left_gb=left_gb,
            breakdowns={ESTIMATOR: dict(zip(BOUND_TYPES, bounds, strict=True))},
            memory=memory,
            sources={"analytic": 1.0},
        )

    def _activation_bytes(self, batch: Batch) -> float:
        return self._memory.activation_bytes(
            tokens=batch.tokens,
            logit_tokens=batch.logit_tokens,
            expert_pairs=batch.group_tokens * self._pairs_per_token,
            expanded_tokens=0 if batch.is_decode else batch.context_tokens,
        )

    def _step_bounds(self, batch: Batch) -> Bounds:
        """Return the seconds per bound until every micro-batch is through every stage."""
        layers = {kind: layer.bounds(batch) for kind, layer in self._layers.items()}
        stages = [self._stage_bounds(stage, batch, layers) for stage in self._stages]
        slowest, pp = max(stages, key=fsum), self._parallelism.pp
        if pp == 1:
            return slowest
        bounds = [pp * seconds for seconds in slowest]
        bounds[COMMUNICATION] += (pp - 1) * (self._send.fixed_s + self._send.s_per_byte * batch.tokens)
        return bounds

    def _stage_bounds(self, stage: Stage, batch: Batch, layers: dict[LayerKind, Bounds]) -> Bounds:
        bounds = [0.0] * len(BOUND_TYPES)
        for kind, count in stage.layers.items():
            for index, seconds in enumerate(layers[kind]):
                bounds[index] += count * seconds
        if stage.is_first:
            self._add_embedding(bounds, batch.tokens)
        if stage.is_last:
            self._add_head(bounds, batch.logit_tokens)
            if self._num_mtp_tokens:
                self._add_draft(bounds, batch, layers[self._mtp_kind])
        return bounds

    def _add_embedding(self, bounds: Bounds, tokens: int) -> None:
        self._rates.add(bounds, self._embedding, tokens)
        # Each device of a replica holds a part of the vocabulary; a sum completes the rows.
        bounds[COMMUNICATION] += self._reduce.fixed_s + self._reduce.s_per_byte * tokens

    def _add_head(self, bounds: Bounds, logit_tokens: int) -> None:
        self._rates.add(bounds, self._head, logit_tokens)
        bounds[COMMUNICATION] += self._gather_logits.fixed_s + self._gather_logits.s_per_byte * logit_tokens

    def _add_draft(self, bounds: Bounds, batch: Batch, layer: Bounds) -> None:
        """Add the multi-token prediction passes (DeepSeek-V3, arXiv:2412.19437, section 2.2).

        The first goes over all new tokens, because its layer has a KV cache of its own; each further
        speculative token of a decode step takes a pass over one token per request. In prefill the first
        pass alone is needed.
        """
        self._add_draft_pass(bounds, batch, layer)
        if not batch.is_decode or self._num_mtp_tokens == 1:
            return
        single = batch.one_token_each()
        single_layer = self._layers[self._mtp_kind].bounds(single)
        for _ in range(self._num_mtp_tokens - 1):
            self._add_draft_pass(bounds, single, single_layer)

    def _add_draft_pass(self, bounds: Bounds, batch: Batch, layer: Bounds) -> None:
        self._add_embedding(bounds, batch.tokens)
        self._rates.add(bounds, self._mtp_input, batch.tokens)
        for index, seconds in enumerate(layer):
            bounds[index] += seconds
        self._add_head(bounds, batch.requests)
