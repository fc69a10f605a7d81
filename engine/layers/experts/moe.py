"""A mixture of experts as a feed-forward network, described by a :class:`...model_config.spec.mlp.MoESpec`."""

from functools import partial
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from stentor import kernels
from stentor.kernels.forward import Traced

from ...model_config.spec.mlp import MoESpec
from ..elementwise import elementwise
from ..forward_batch import ForwardBatch, Texts
from ..linear.adapters import AdapterRows
from ..linear.layer_context import LayerContext
from ..linear.linear import Linear, summed_
from ..linear.quantized import Input, Stream, changed
from ..linear.weights import WeightError, WeightMap
from ..mlp import MLP
from ..norm import RMSNorm, ScaledFirstNorm
from .expert_adapters import AdaptedExperts
from .experts import PackedExperts, experts_of
from .router_network import RouterNetwork


class MoE:
    """Σ over a token's experts of weight · down(act(gate(x)) · up(x)), or without a gate of weight · down(act(up(x))),
    plus the output of shared experts.

    If workers split the model, each has a part of the inner units of every expert, or some of the experts; their
    outputs are summed once. Tokens of media may have experts of their own, which are numbered behind the others.

    The router's product is float32 in any compute dtype, because rounding can change the choice between near scores.
    """

    input: Linear | None = None
    """Router and experts take plain inputs."""

    def __init__(self, weights: WeightMap, prefix: str, spec: MoESpec, hidden: int, context: LayerContext) -> None:
        """``prefix``: of the layer."""
        self._hidden, self._dtype, self._stream = hidden, context.dtype, context.stream
        self._num_experts, self._tells_experts = spec.experts, context.tells_experts
        self._own, self._identities, self._skips = spec.own, spec.identities, spec.skips
        self._capacity = spec.capacity
        self._always, self._scale = spec.always, spec.router.scale
        rule = replace(spec.router, renormalize=False, scale=1.0) if spec.always else spec.router
        self._rule = kernels.Router(**msgspec.structs.asdict(rule))
        names = spec.names[0]
        part, correction = f"{prefix}.{names.router}", f"{prefix}.{names.correction}"
        places = context.adapters
        router, exact = {part: spec.choices}, context.exact(part)
        adapted = context.adapted(router, hidden)
        self._router: Linear | RouterNetwork
        if spec.network is not None:
            self._router = RouterNetwork(weights, prefix, spec, hidden, context)
        else:
            self._router = Linear(weights, router, hidden, exact, bias=spec.router_bias, adapted=adapted)
        if names.router_bare:
            weights.alias(part, f"{part}.weight")
        if names.router_turned:
            weights.arrange(f"{part}.weight", (hidden, spec.choices), lambda stored: stored.T)
        if names.correction_at:  # of a tensor that has another mixture's too
            tensor, _, ending = correction.rpartition(".")
            weights.share(tensor, f"{tensor}.{names.correction_at}")
            correction = f"{tensor}.{names.correction_at}.{ending}"
        self._correction: torch.Tensor | None = None
        if spec.correction:
            self._correction = context.empty(spec.corrected, dtype=torch.float32)
            shape = (names.correction_rows, spec.corrected) if names.correction_rows else None
            if spec.correction_stored:
                read = (lambda rows: rows[names.correction_at]) if names.correction_rows else None
                weights.add(correction, self._correction, shape=shape, read=read)
            else:
                weights.offer(correction, self._correction)
                if not context.filled:
                    self._correction.zero_()
        self._media_correction: torch.Tensor | None = None
        if spec.media_correction:
            self._media_correction = context.empty(spec.corrected, dtype=torch.float32)
            weights.add(f"{prefix}.{spec.media_correction}", self._media_correction)
        self._table: torch.Tensor | None = None
        if spec.table:
            self._table = context.empty(spec.table, spec.router.top_k, dtype=torch.int64)
            read = partial(_experts_of_tokens, spec.experts)
            weights.add(f"{prefix}.{spec.table_name}", self._table, read=read)
        self._factor: torch.Tensor | None = None
        if spec.factor:
            self._factor = context.empty(1, dtype=torch.float32)
            weights.add(f"{prefix}.{spec.factor}", self._factor)
        for others in spec.names[1:]:
            for ending in ("weight", "bias"):
                weights.alias(f"{prefix}.{others.router}.{ending}", f"{part}.{ending}")
            weights.alias(f"{prefix}.{others.correction}", correction)
        self._experts = experts_of(weights, prefix, spec, spec.width(hidden), context)
        for which in names.into if spec.identities else ():  # transformers stores gates and ups of these experts too
            every = range(spec.experts, spec.choices)
            weights.pass_over(*(f"{prefix}.{which.format(expert)}" for expert in every if "{}" in which))
        self._adapted: AdaptedExperts | None = None
        if places is not None and spec.norms is None and not spec.always:
            width, packed, invariant = spec.width(hidden), context.packed, context.invariant
            self._adapted = AdaptedExperts(places, prefix, spec, width, packed=packed, invariant=invariant)
        latents = [
            Linear.of(weights, prefix, projection, context, adaptable=True) for projection in spec.latents(hidden)
        ]
        self._latents = (latents[0], latents[1]) if latents else None
        self._logit_scale = spec.logit_scale
        self._norms: tuple[RMSNorm, ScaledFirstNorm] | None = None
        if (norms := spec.norms) is not None:
            inner = replace(context, dtype=torch.float32)
            self._norms = (
                RMSNorm(weights, f"{prefix}.{norms.into}", spec.latent, norms.eps, inner, plus_one=True),
                ScaledFirstNorm(weights, f"{prefix}.{norms.out}", spec.latent, norms.out_eps, context),
            )
        self._sum_norm: RMSNorm | None = None
        if (norm := spec.sum_norm) is not None:
            self._sum_norm = RMSNorm(weights, f"{prefix}.{norm.name}", spec.latent, norm.eps, context)
        self._media = MoE(weights, prefix, spec.media, hidden, replace(context, adapters=None)) if spec.media else None
        self._shared = MLP(weights, prefix, spec.shared, hidden, context, summed=False) if spec.shared else None
        self._ranks = context.ranks
        self._shared_scale = spec.shared_scale
        self._shared_gate: Linear | None = None
        if spec.shared_gate:
            gate = {f"{prefix}.{spec.shared_gate}": 1}
            self._shared_gate = Linear(weights, gate, hidden, context, adapted=context.adapted(gate, hidden))

    def __call__(self, x: Input, batch: ForwardBatch) -> Stream:
        """x [tokens, hidden] → [tokens, hidden]"""
        if isinstance(x, Traced):
            return summed_(self._traced(x, batch), self._ranks)
        assert isinstance(x, torch.Tensor)
        routed = self._routed(x, batch).to(self._stream)
        return summed_(routed if self._shared is None else routed + self._of_shared(x, batch), self._ranks)

    def _routing(self, logits: torch.Tensor, batch: ForwardBatch) -> kernels.Routing:
        """Choose experts by the router's product, float32 [tokens, experts]; records them in the batch."""
        if self._table is not None:
            assert isinstance(batch.tokens, torch.Tensor)
            routing = kernels.route_to(logits, self._rule, self._table[batch.tokens])
        else:
            chosen_from = logits[:, : logits.shape[1] - self._always]
            routing = kernels.route(chosen_from, self._rule, self._correction)
            if self._media_correction is not None and (places := _expert_places(batch)) is not None:
                of_media = kernels.route(chosen_from[places[1]], self._rule, self._media_correction)
                pairs = zip(routing, of_media, strict=True)
                routing = kernels.Routing(*(every.index_copy(0, places[1], own) for every, own in pairs))
        if batch.routed is not None:
            batch.routed.append(routing.experts)
        if self._capacity and batch.texts is not None:
            routing = _within(self._capacity, self._num_experts, routing, batch.texts)
        return self._with_always(logits, routing) if self._always else routing

    def _with_always(self, logits: torch.Tensor, routing: kernels.Routing) -> kernels.Routing:
        """The chosen experts, weighted by their scores alone, and those that every token uses, with weights over all of
        them."""
        behind = logits[:, -self._always :]
        scores = torch.cat([routing.weights, elementwise(torch.sigmoid, behind)], dim=1)
        weights = scores / scores.sum(1, keepdim=True) * self._scale
        first = logits.shape[1] - self._always
        numbers = torch.arange(first, logits.shape[1], dtype=routing.experts.dtype, device=logits.device)
        experts = torch.cat([routing.experts, numbers.expand(len(logits), -1)], dim=1)
        return kernels.Routing(experts, weights if self._factor is None else weights * self._factor)

    def _routed(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """x [tokens, hidden] → the experts' sum, [tokens, hidden]"""
        if self._media is None or (places := _expert_places(batch)) is None:
            return self._of_routed(x, batch)
        texts, media = places
        if batch.adapter_rows is not None:  # which are numbered by all tokens
            texts = torch.arange(len(x), device=x.device)
        told = batch.routed
        made = x.new_zeros(len(x), self._hidden)
        if len(texts):
            made.index_copy_(0, texts, self._of_routed(x[texts], batch).to(made.dtype))
        made.index_copy_(0, media, self._media._of_routed(self._media._taken(x[media]), batch).to(made.dtype))
        if told is not None:
            chosen = told.pop() + self._num_experts
            every = chosen.new_zeros(len(x), chosen.shape[1])
            if len(texts):
                every.index_copy_(0, texts, told.pop())
            told.append(every.index_copy_(0, media, chosen))
        return made

    def _of_routed(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        rows = batch.adapter_rows
        routing = self._routing(self._logits(x.float(), batch), batch)
        if self._latents is None:
            return self._of_experts(x, routing, rows)
        there, back = self._latents
        latent = there(x, rows)
        if self._norms is not None:
            latent = self._norms[0].exact(latent)
        made = self._with_norm(self._of_experts(latent.to(x.dtype), routing, rows))
        assert isinstance(made, torch.Tensor)
        return back(made, rows)

    def _with_norm(self, made: Stream) -> Stream:
        """The experts' sum [tokens, latent], normed if the model says so. A norm is of the sum over all workers, of
        which the first brings it back."""
        if self._sum_norm is None:
            return made
        made = summed_(made, self._ranks)
        norm = self._sum_norm
        made = norm.plain(made) if isinstance(made, Traced) else norm.exact(made).to(made.dtype)
        if self._ranks is not None and self._ranks.rank:
            made = changed(made, "another worker's sum", lambda rows: rows.zero_())
        return made

    def _logits(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """The router's product of x, float32 [tokens, hidden]."""
        if isinstance(self._router, RouterNetwork):
            return self._router(x, batch)
        logits = self._router(x, batch.adapter_rows)
        return logits if self._logit_scale == 1.0 else logits * self._logit_scale

    def _of_experts(self, x: torch.Tensor, routing: kernels.Routing, rows: AdapterRows | None) -> torch.Tensor:
        """The output of this worker's experts, with the rows' adapters."""
        if self._identities:
            return self._of_identities(x, routing, rows)
        if self._skips:
            routing = routing._replace(experts=routing.experts.masked_fill(routing.experts >= self._num_experts, -1))
        return self._of_matrices(x, routing, rows)

    def _of_identities(self, x: torch.Tensor, routing: kernels.Routing, rows: AdapterRows | None) -> torch.Tensor:
        """The output of all experts, some of which return their input; the first of several workers adds all of
        those."""
        idle = routing.experts >= self._num_experts
        made = self._of_matrices(x, routing._replace(experts=routing.experts.masked_fill(idle, -1)), rows)
        if self._ranks is not None and self._ranks.rank:
            return made
        weights = (routing.weights * idle).sum(1, keepdim=True)
        return made + (x.float() * weights).to(made.dtype)

    def _of_matrices(self, x: torch.Tensor, routing: kernels.Routing, rows: AdapterRows | None) -> torch.Tensor:
        """The output of experts with matrices; those with a number below 0 have none."""
        if self._own is not None:
            first, count = self._own
            experts = routing.experts - first
            routing = routing._replace(experts=experts.masked_fill((experts < 0) | (experts >= count), -1))
        if self._norms is not None:
            return self._of_normed(x, routing, self._norms[1])
        return self._experts(x, routing) if self._adapted is None else self._adapted(self._experts, x, routing, rows)

    def _of_normed(self, x: torch.Tensor, routing: kernels.Routing, norm: ScaledFirstNorm) -> torch.Tensor:
        """The sum of the experts' normed outputs, each of which is computed as the only one of a row."""
        tokens, top_k = routing.experts.shape
        alone = kernels.Routing(routing.experts.reshape(-1, 1), torch.ones_like(routing.weights).view(-1, 1))
        made = norm.exact(self._experts(x.repeat_interleave(top_k, 0), alone)).view(tokens, top_k, -1)
        return (made * routing.weights.unsqueeze(2)).sum(1).to(x.dtype)

    def _of_shared(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        assert self._shared is not None
        made = self._shared(x, batch)
        assert isinstance(made, torch.Tensor)
        if self._shared_gate is not None:
            return elementwise(torch.sigmoid, self._shared_gate(x, batch.adapter_rows)).to(made.dtype) * made
        return made if self._shared_scale == 1.0 else made * self._shared_scale

    def _traced(self, x: Traced, batch: ForwardBatch) -> Traced:
        """Record as instructions, or as calls for experts that are not packed, not all here or without matrices, and
        gates of one column."""
        if (self._media is not None or self._media_correction is not None) and batch.media is not None:
            routed = x.call("experts of media", self._called_routed, self._hidden)
        elif self._adapted is not None and batch.adapter_rows is not None:
            routed = x.call("experts that adapters may change", self._called_routed, self._hidden)
        elif (
            isinstance(self._experts, PackedExperts)
            and self._own is None
            and self._table is None
            and not self._identities
            and not self._always
            and self._norms is None
            and self._logit_scale == 1.0
            and isinstance(self._router, Linear)
        ):
            logits = self._router(x)
            assert isinstance(logits, Traced)
            if self._tells_experts:
                logits = logits.call("experts that are told", self._told, self._num_experts)
            there, back = self._latents or (None, None)
            taken = x if there is None else there(x)
            assert isinstance(taken, Traced)
            routed = self._experts.traced(taken, logits, self._rule, self._correction)
            if back is not None:
                brought = back(self._with_norm(routed))
                assert isinstance(brought, Traced)
                routed = brought
        else:
            routed = x.call("experts", self._called_routed, self._hidden)
        if self._shared is None:
            return routed
        if self._shared_gate is None:
            shared = self._shared(x, batch)
            assert isinstance(shared, Traced)
            shared = shared * self._shared_scale
        else:
            shared = x.call("a shared expert's gate", self._called_shared, self._hidden)
        return routed.add_(shared)

    def _told(self, logits: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """Record the experts between stretches of a program, before the instruction that chooses by the same scores."""
        self._routing(logits, batch)
        return logits

    def _called_routed(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        """Called between stretches of a program."""
        return self._routed(self._taken(x), batch)

    def _taken(self, x: torch.Tensor) -> torch.Tensor:
        """x in the dtype that the experts take: float32 for packed ones, as their instruction does."""
        return x.float() if isinstance(self._experts, PackedExperts) else x.to(self._dtype)

    def _called_shared(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        """Called between stretches of a program; takes float32."""
        return self._of_shared(x.to(self._dtype), batch)


def _expert_places(batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor] | None:
    """See :attr:`..forward_batch.MediaBatch.expert_places`."""
    return None if batch.media is None else batch.media.expert_places


def _experts_of_tokens(experts: int, table: torch.Tensor) -> torch.Tensor:
    """Raises :class:`..linear.weights.WeightError` for a number that is no expert's."""
    if not 0 <= int(table.min()) <= int(table.max()) < experts:
        raise WeightError(f"the table of experts by token has numbers outside the {experts} that there are")
    return table


class NormedMoE(MoE):
    """norm(experts(norm(x))) + norm(network(norm(x))) of an unnormed stream x (Gemma 4). The router has its own
    norm."""

    def __init__(
        self, weights: WeightMap, prefix: str, spec: MoESpec, hidden: int, eps: float, context: LayerContext
    ) -> None:
        """``prefix``: of the layer."""
        super().__init__(weights, prefix, spec, hidden, context)
        names = spec.part_norms
        assert names is not None
        self._experts_in, self._experts_out, self._shared_in, self._shared_out = (
            RMSNorm(weights, f"{prefix}.{name}", hidden, eps, context)
            for name in (names.experts_in, names.experts_out, names.shared_in, names.shared_out)
        )
        self._router_in = RMSNorm(weights, None, hidden, eps, context)
        self._router_scale = context.empty(hidden, dtype=torch.float32)
        weights.add(f"{prefix}.{names.router_scale}", self._router_scale)
        self._expert_scale = context.empty(spec.experts, dtype=torch.float32)
        weights.add(f"{prefix}.{names.expert_scale}", self._expert_scale)

    def __call__(self, x: Input, batch: ForwardBatch) -> Stream:
        """x [tokens, hidden], the stream → [tokens, hidden]"""
        if isinstance(x, Traced):
            return x.call("experts with norms of their own", self._made, self._hidden)
        assert isinstance(x, torch.Tensor)
        return self._made(x, batch).to(self._stream)

    def _made(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        """x of float32 or the stream's dtype → float32"""
        assert self._shared is not None
        chosen = self._router_in.exact(x) * self._router_scale * self._hidden**-0.5
        routing = self._routing(self._logits(chosen, batch), batch)
        routing = routing._replace(weights=routing.weights * self._expert_scale[routing.experts.long()])
        routed = self._of_experts(self._experts_in.exact(x).to(self._dtype), routing, batch.adapter_rows)
        shared = self._shared(self._shared_in.exact(x).to(self._dtype), batch)
        assert isinstance(shared, torch.Tensor)
        if self._ranks is not None:
            routed, shared = self._ranks.sum_(torch.stack((routed.float(), shared.float())))
        return self._experts_out.exact(routed) + self._shared_out.exact(shared)


def _within(capacity: int, experts: int, routing: kernels.Routing, texts: Texts) -> kernels.Routing:
    """The routing of tokens to one of ``experts`` each, with weights of 0 for all but the first ``capacity`` tokens of
    an expert in each text."""
    weights = routing.weights.clone()
    numbers = torch.arange(experts, device=weights.device)
    begin = 0
    for length in texts.varlen.lengths:
        rows = slice(begin, begin + length)
        chosen = routing.experts[rows] == numbers  # [tokens, experts]
        weights[rows] *= ((chosen.cumsum(0) <= capacity) & chosen).any(1, keepdim=True)
        begin += length
    return kernels.Routing(routing.experts, weights)
