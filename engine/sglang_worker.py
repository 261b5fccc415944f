"""SGLang's speculative worker for RECGUIDE: from its batches to our rounds, and back.

SGLang decides who is prefilled, who runs and who gives way, and keeps pages, prefixes and streams. A prefill is its own
forward; every step of decoding is ours.
"""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sglang
import torch
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from torch import Tensor

from recguide.engine.forced import Forced
from recguide.engine.inputs import counts_up_to
from recguide.engine.model import ModelConfig
from recguide.engine.outcomes import Change
from recguide.engine.requests import Wish
from recguide.engine.runlog import prefill_work
from recguide.engine.scores import blank
from recguide.engine.serving import MAX_RUNNING
from recguide.engine.sglang_forwards import SglangBackbone, SglangForwards
from recguide.engine.sglang_inputs import Carried
from recguide.engine.sglang_log import Server, write_run
from recguide.engine.sglang_options import Plan, plan_of
from recguide.engine.sglang_requests import SglangLive, attach, check, live_of, play, synced
from recguide.engine.sglang_rounds import ScheduledRounds
from recguide.engine.ways import AsFound, Judge, Setup
from recguide.sim.batching import batching_named
from recguide.sim.steps import Work

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.server_args import ServerArgs

FAILED = 500
MANY = 1_000_000


class RecGuideWorker(BaseSpecWorker):
    """Drafts and verifies with the target model alone."""

    rounds: ScheduledRounds
    """There as soon as SGLang has its KV pool."""

    def __init__(
        self, server_args: "ServerArgs", gpu_id: int, nccl_port: int, target_worker: "TpModelWorker", **_: object
    ) -> None:
        super().__init__()
        self._target_worker = target_worker
        self.arguments = server_args
        self.plan: Plan = plan_of(server_args)

    @property
    def draft_worker(self) -> None:
        """There is none."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the target has
        # SGLang asks its model worker for everything that the target's knows
        if name == "_target_worker":
            raise AttributeError(name)
        return getattr(self._target_worker, name)

    def init_cuda_graphs(self) -> None:
        """Everything else is there by now: get ready to serve."""
        runner, options = self._target_worker.model_runner, self.plan.options
        backbone = SglangBackbone(runner, shape_of(runner, self.arguments), get_parallel().tp_size)
        graphs = options.cuda_graphs and not self.arguments.disable_cuda_graph
        self.forwards = SglangForwards(backbone, runner.page_size, graphs)
        trace, context = self.plan.trace, runner.model_config.context_len
        judge: Judge = AsFound()
        if trace is not None:
            judge, context = Forced(trace, backbone.config), min(context, trace.provenance.max_context)
        setup = Setup(self.forwards, judge, self.plan.block_sizes, context)
        keep = options.log is not None
        ahead = self.forwards.cuda if options.ahead is None else options.ahead
        batching, aside = batching_named(options.batching), self.forwards.aside
        self.rounds = ScheduledRounds(setup, self.plan.policy, batching, keep, ahead, aside)
        if self.forwards.graphs:
            self.rounds.prepare(nobody(), counts_up_to(min(runner.max_running_requests, MAX_RUNNING)))

    def arrived(self, req: "Req") -> SglangLive:
        """A request has come in; InputError where it cannot be served, and is to end without an answer."""
        live, trace = attach(req), self.plan.trace
        if req.to_finish is None:
            check(req)
            if trace is not None:
                play(req, live, trace)
        self.rounds.arrived(live)
        return live

    def forward_batch_generation(
        self, batch: "ScheduleBatch", on_publish: Callable[[Tensor], None] | None = None, *_: object, **__: object
    ) -> GenerationBatchResult:
        """One step of a batch of SGLang's: a prefill, or a step of decoding."""
        prefill = batch.forward_mode.is_extend() or batch.is_extend_in_batch
        result = self._prefill(batch) if prefill else self._decode(batch)
        result.next_draft_input = Carried()
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        return result

    def _prefill(self, batch: "ScheduleBatch") -> GenerationBatchResult:
        rounds = self.rounds
        started, lives = rounds.now, self._lives(batch)
        rounds.start(lives)
        # without sampling, which is ours
        result = self._target_worker.forward_batch_generation(batch, is_verify=True)
        logits = result.logits_output.next_token_logits
        ended = [row for row, req in enumerate(batch.reqs) if req.inflight_middle_chunks <= 0]
        tokens = torch.zeros(len(lives), dtype=torch.int64)
        found = self.forwards.of_prefill(logits[ended], [lives[row] for row in ended]) if ended else blank(0)
        changes = rounds.prefilled([lives[row] for row in ended], found, _work_of(batch), started)
        for row, change in zip(ended, changes, strict=True):
            if change.error is not None:
                _fail(batch.reqs[row], change.error)
            tokens[row] = change.tokens[0] if change.tokens else 0
        result.next_token_ids = tokens.to(batch.seq_lens.device)
        result.new_seq_lens = batch.seq_lens
        return result

    def _decode(self, batch: "ScheduleBatch") -> GenerationBatchResult:
        lives = [synced(req, live) for req, live in zip(batch.reqs, self._lives(batch), strict=True)]
        changes = {change.live.number: change for change in self.rounds.step(lives)}
        tokens = [self._tokens(req, changes.get(live.number)) for req, live in zip(batch.reqs, lives, strict=True)]
        ids, lens = stacked(tokens)
        return GenerationBatchResult(
            next_token_ids=ids.flatten(),
            accept_lens=lens,
            new_seq_lens=batch.seq_lens + lens.to(batch.seq_lens),
            speculative_num_draft_tokens=ids.shape[1],
            can_run_cuda_graph=self.forwards.graphs,
        )

    def _tokens(self, req: "Req", change: Change | None) -> Sequence[int]:
        """What a request emits. One that failed emits some token, and ends with that."""
        if change is None:
            return ()
        if change.error is not None:
            _fail(req, change.error)
            return (0,)
        return change.tokens

    def _lives(self, batch: "ScheduleBatch") -> list[SglangLive]:
        """The requests of a batch, each with its place in SGLang's tables."""
        lives = [live_of(req) or self.arrived(req) for req in batch.reqs]
        for live, pool in zip(lives, batch.req_pool_indices_cpu.tolist(), strict=True):
            live.pool = pool
        return lives

    def told(self, reqs: Sequence["Req"]) -> None:
        """SGLang has looked at what a step emitted: requests may have ended for reasons of its own."""
        for req in reqs:
            if req.finished() and (live := live_of(req)) is not None:
                self.rounds.ended(live, "cancelled")

    def update_weights_from_disk(self, recv_req: object) -> tuple[bool, str]:
        """Drafts are made with the target's weights, which are there by now."""
        return True, "drafts use the same weights"

    update_weights_from_ipc = update_weights_from_disk

    def clear_cache_pool(self) -> None:
        """SGLang flushes its cache, which it does when nobody is served: time to write the log, and start anew."""
        if self.plan.options.log is None:
            return
        if self.rounds.log.totals.steps and get_parallel().tp_rank == 0:
            write_run(Path(self.plan.options.log), self.rounds, self.plan, self.forwards, self._told())
        self.rounds.restart()

    def _told(self) -> Server:
        args = self.arguments
        command = f"sglang {sglang.__version__} --speculative-algorithm RECGUIDE"
        if args.speculative_adaptive_config:
            command = f"{command} --speculative-adaptive-config {shlex.quote(args.speculative_adaptive_config)}"
        chunk = args.chunked_prefill_size
        return Server(command, chunk if chunk and chunk > 0 else args.max_prefill_tokens)


def nobody() -> SglangLive:
    """Who forwards are rehearsed for: its row of ``req_to_token`` is nobody's yet, and names the slot for waste."""
    return SglangLive(0, [0, 0], Wish(MANY), frozenset(), MANY, tokens=[0])


def shape_of(runner: "ModelRunner", arguments: "ServerArgs") -> ModelConfig:
    """What we have to know of a model of SGLang's."""
    model, known = runner.model, runner.model_config
    eos, given = known.hf_eos_token_id, arguments.served_model_name
    return ModelConfig(
        # where none is given, SGLang takes the path for it
        name=given if given and given != arguments.model_path else Path(arguments.model_path).name,
        hidden_size=known.hidden_size,
        num_layers=known.num_hidden_layers,
        num_heads=known.num_attention_heads,
        num_kv_heads=known.num_key_value_heads,
        head_dim=known.head_dim,
        intermediate_size=known.hf_text_config.intermediate_size,
        vocab_size=known.vocab_size,
        rope_theta=0.0,
        rms_norm_eps=0.0,
        tie_word_embeddings=False,
        max_context=known.context_len,
        mask_id=model.mask_id,
        eos_ids=tuple(sorted(eos)) if eos else (),
        draft_shift=model.draft_shift,
    )


def stacked(tokens: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Tokens of requests as int64 ``[requests, longest]``, and how many each has, int32, on the host."""
    lens = np.array([len(each) for each in tokens], np.int32)
    ids = np.zeros((len(tokens), max(1, int(lens.max(initial=0)))), np.int64)
    for row, each in zip(ids, tokens, strict=True):
        row[: len(each)] = each
    return torch.from_numpy(ids), torch.from_numpy(lens)


def _work_of(batch: "ScheduleBatch") -> Work:
    """A prefill as the simulator counts it."""
    context = sum(batch.prefix_lens or ())
    return prefill_work(int(batch.extend_num_tokens or 0), len(batch.reqs), context)


def _fail(req: "Req", error: str) -> None:
    req.to_finish = FINISH_ABORT(error, FAILED, "InternalServerError")
