"""The roofline runner: an analytic latency of one forward pass.

Each operator takes the larger of its compute time (FLOPs over peak rate and efficiency) and its memory
time (bytes over bandwidth and efficiency), plus a fixed overhead (Williams, Waterman and Patterson,
"Roofline: An Insightful Visual Performance Model for Multicore Architectures", 2009). Communication adds
to that and overlaps with nothing. In the breakdown the whole time of an operator, overhead included, counts
for the larger side.

Sums and powers are computed the same on every platform and Python version (`math.fsum`, no `pow`; the
built-in `sum` of floats rounds differently from Python 3.12 on), so that a record is, too.

A key's concurrency is that of all data-parallel replicas: one has `ceil(concurrency / dp)` requests. With
pipeline parallelism these run as `pp` micro-batches of `ceil(requests / pp)`, one in each stage at a time, so
that all of them get through in `pp` times the time of the slowest stage, plus `pp - 1` transfers.
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
        self.s_per_flop = {
            name: 1 / (peak * 1e12 * share.compute)
            for name, peak in peaks
            if peak is not None and name != "vector"
        }

    def timed(self, operators: Iterable[Operator]) -> tuple[TimedOperator, ...]:
        """Return `operators` in seconds."""
        return tuple(
            TimedOperator(
                operator.flops * self.s_per_flop[operator.compute_format],
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


class Batch(NamedTuple):
    """What one micro-batch asks of a replica."""

    is_decode: bool
    requests: int
    query_len: int
    seq_len: int
    group_tokens: int


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
        self._experts, self._share = rates.timed(layer.experts), share if kind.has_experts else None
        after = self._share.token_transfers if self._share is not None else (reduce,)
        self._transfers = tuple(transfer for transfer in (reduce, *after) if transfer.s_per_byte)

    def bounds(self, batch: Batch) -> Bounds:
        """Return the seconds per bound of one layer for one micro-batch."""
        rates, share = self._rates, self._share
        bounds = [0.0] * len(BOUND_TYPES)
        tokens = batch.requests * batch.query_len
        rates.add(bounds, self._token, tokens)
        if batch.is_decode:
            rates.add(bounds, self._decode, tokens)
        else:
            rates.add(bounds, self._context, batch.requests * batch.seq_len)
        self._add_attention(bounds, self._attention[batch.is_decode], batch)
        for fixed_s, s_per_token in self._transfers:
            bounds[COMMUNICATION] += fixed_s + s_per_token * tokens
        if share is not None:
            pairs = batch.group_tokens * share.pairs_per_token
            rates.add(bounds, self._experts, pairs, share.experts_hit(batch.group_tokens))
            for fixed_s, s_per_token in share.group_transfers:
                bounds[COMMUNICATION] += fixed_s + s_per_token * batch.group_tokens
        return bounds

    def _add_attention(self, bounds: Bounds, work: AttentionWork, batch: Batch) -> None:
        rates, requests, query_len = self._rates, batch.requests, batch.query_len
        pairs = requests * work.pairs(query_len, batch.seq_len)
        moved = work.bytes_per_context_token * work.context_tokens(query_len, batch.seq_len)
        moved += work.bytes_per_new_token * query_len
        # Attention computes in BF16 whatever the format of weights and KV cache.
        rates.add_one(
            bounds,
            pairs * work.flops_per_pair * rates.s_per_flop["bf16"],
            pairs * work.vector_flops_per_pair * rates.s_per_vector_flop,
            requests * moved * rates.s_per_byte,
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
        requests = -(-key.model_concurrency // self._parallelism.dp)
        batch = self._micro_batch(key, requests)
        bounds = self._step_bounds(batch)
        memory, left_gb = self._memory.usage(
            requests, key.query_len, key.seq_len, self._activation_bytes(batch)
        )
        return ForwardLatencyRecord(
            latency_ms=fsum(bounds) * 1e3,
            memory_left_gb=left_gb,
            breakdowns={ESTIMATOR: dict(zip(BOUND_TYPES, bounds, strict=True))},
            memory=memory,
            sources={"analytic": 1.0},
        )

    def _micro_batch(self, key: ForwardShapeKey, requests: int) -> Batch:
        """Return the largest micro-batch of a replica of `requests` requests."""
        sizes = self._parallelism
        micro = -(-requests // sizes.pp)
        # All replicas meet in the expert layers, but together they never have more than the key says.
        meeting = min(key.model_concurrency, micro * sizes.dp) * key.query_len
        return Batch(key.is_decode, micro, key.query_len, key.seq_len, -(-meeting // (sizes.moe_dp or 1)))

    def _activation_bytes(self, batch: Batch) -> float:
        tokens = batch.requests * batch.query_len
        return self._memory.activation_bytes(
            tokens=tokens,
            logit_tokens=tokens if batch.is_decode else batch.requests,
            expert_pairs=batch.group_tokens * self._pairs_per_token,
            expanded_tokens=0 if batch.is_decode else batch.requests * batch.seq_len,
        )

    def _step_bounds(self, batch: Batch) -> Bounds:
        """Return the seconds per bound until every micro-batch is through every stage."""
        layers = {kind: layer.bounds(batch) for kind, layer in self._layers.items()}
        stages = [self._stage_bounds(stage, batch, layers) for stage in self._stages]
        slowest, pp = max(stages, key=fsum), self._parallelism.pp
        if pp == 1:
            return slowest
        bounds = [pp * seconds for seconds in slowest]
        tokens = batch.requests * batch.query_len
        bounds[COMMUNICATION] += (pp - 1) * (self._send.fixed_s + self._send.s_per_byte * tokens)
        return bounds

    def _stage_bounds(self, stage: Stage, batch: Batch, layers: dict[LayerKind, Bounds]) -> Bounds:
        bounds = [0.0] * len(BOUND_TYPES)
        for kind, count in stage.layers.items():
            for index, seconds in enumerate(layers[kind]):
                bounds[index] += count * seconds
        tokens = batch.requests * batch.query_len
        if stage.is_first:
            self._add_embedding(bounds, tokens)
        if stage.is_last:
            # Prefill needs the logits of each request's last token; decode checks every new token.
            self._add_head(bounds, tokens if batch.is_decode else batch.requests)
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
        per_request = -(-batch.group_tokens // batch.query_len)
        single = batch._replace(query_len=1, group_tokens=per_request)
        single_layer = self._layers[self._mtp_kind].bounds(single)
        for _ in range(self._num_mtp_tokens - 1):
            self._add_draft_pass(bounds, single, single_layer)

    def _add_draft_pass(self, bounds: Bounds, batch: Batch, layer: Bounds) -> None:
        tokens = batch.requests * batch.query_len
        self._add_embedding(bounds, tokens)
        self._rates.add(bounds, self._mtp_input, tokens)
        for index, seconds in enumerate(layer):
            bounds[index] += seconds
        self._add_head(bounds, batch.requests)
