"""What `--speculative-algorithm RECGUIDE` is told, and what it refuses.

`--speculative-adaptive-config` has the policy: its name, a policy file, or a JSON object (as such or in a file) with
the options below. How wide a forward gets follows from the policy.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recguide.engine.policyof import LOOK_AT_COSTS, costs_of, policy_of, rounds_named
from recguide.engine.wayof import scratch_tokens
from recguide.sim.adaptive import KIND as ADAPTIVE
from recguide.sim.adaptive import Adaptive, read_policy
from recguide.sim.batching import batching_named
from recguide.sim.catalogue import POLICIES, REGIME_OPTIONS, make_policy
from recguide.sim.costs import CostModel, constant_costs
from recguide.sim.curves import Curve
from recguide.sim.joint import Joint
from recguide.sim.joint_file import KIND as JOINT
from recguide.sim.joint_file import read_joint
from recguide.sim.methods import Policy
from recguide.sim.options import parse_options
from recguide.sim.tidar import Tidar
from recguide.sim.tiers import KIND as TIERS
from recguide.traces.dense import DenseTrace
from recguide.traces.documents import read_json
from recguide.traces.errors import InputError
from recguide.traces.files import read_traces

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

NAME = "RECGUIDE"
"""Of the algorithm."""
DEFAULT_POLICY = "fixed:16"
BLOCK_SIZES = (4, 8, 16, 32)
FITTED = ("adaptive", "adaptive-s", "allocation", "regime", "joint")
PRICED = ("allocation", "joint")
"""Those of them that need a profile to decide, as does regime with one of them above its switch."""
MEASURES_TIME = ("bandit",)
"""Policies whose choices depend on measured seconds, which differ from GPU to GPU."""


def is_ours(algorithm: object) -> bool:
    """Whether this is RECGUIDE: SGLang's object for an algorithm, or a name."""
    return bool(getattr(algorithm, "name", algorithm) == NAME)


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """The options of the plugin."""

    policy: str = DEFAULT_POLICY
    """As for `recguide serve --policy`."""
    block_sizes: tuple[int, ...] | None = None
    """That rounds may have, ascending; small ones end a context. None: ``BLOCK_SIZES``, or those of the trace."""
    batching: str = "bucket"
    """How requests with different block sizes share a step: as for `recguide serve --batching`."""
    profile: str | None = None
    """A cost profile, for policies that look at one."""
    forced_trace: str | None = None
    """A dense trace that says what is accepted: for measurements with weights that one does not have."""
    log: str | None = None
    """A folder for what was served, which is written whenever the cache is flushed."""
    cuda_graphs: bool = True
    """Whether forwards are captured on a GPU."""
    ahead: bool | None = None
    """Whether a step is launched before SGLang has dealt with the one before; None: on a GPU."""
    merge_drafts: bool = False
    """Whether forwards that only draft run on weights with the draft adapter merged, a second copy of them."""


KINDS: Mapping[str, Callable[[Any], bool]] = {
    "policy": lambda value: isinstance(value, str),
    "block_sizes": lambda value: (
        isinstance(value, list)
        and bool(value)
        and all(type(size) is int and 2 <= size <= 32 for size in value)
        and value == sorted(set(value))
    ),
    "batching": lambda value: isinstance(value, str),
    "profile": lambda value: isinstance(value, str),
    "forced_trace": lambda value: isinstance(value, str),
    "log": lambda value: isinstance(value, str),
    "cuda_graphs": lambda value: isinstance(value, bool),
    "ahead": lambda value: isinstance(value, bool),
    "merge_drafts": lambda value: isinstance(value, bool),
}
ALLOWED = {
    "policy": "the name of a policy",
    "block_sizes": "a list of ascending whole numbers from 2 to 32",
    "batching": "a name",
    "profile": "the name of a profile, or its path",
    "forced_trace": "the path of a dense trace",
    "log": "the path of a folder",
    "cuda_graphs": "true or false",
    "ahead": "true or false",
    "merge_drafts": "true or false",
}


def read_options(told: str | None) -> PluginOptions:
    """The options in `--speculative-adaptive-config`; InputError names what is wrong, and what is allowed."""
    if told is None:
        return PluginOptions()
    if told.lstrip().startswith("{"):
        return _options("--speculative-adaptive-config", _parsed(told))
    path = Path(told)
    if path.suffix != ".json" or told.partition(":")[0] in POLICIES:
        return PluginOptions(policy=told)
    if not path.is_file():
        raise InputError(f"--speculative-adaptive-config: {told}: no such file")
    document = read_json(path)
    if not isinstance(document, dict):
        raise InputError(f"{told}: found a {type(document).__name__}, allowed: a policy file, or an object of options")
    if "recguide_policy" in document:
        return PluginOptions(policy=_policy_in(path, document))
    return _options(told, document)


def _parsed(told: str) -> Mapping[str, Any]:
    try:
        document: Mapping[str, Any] = json.loads(told)
    except json.JSONDecodeError as error:
        raise InputError(f"--speculative-adaptive-config: not JSON: {error}") from None
    return document


def _policy_in(path: Path, document: Mapping[str, Any]) -> str:
    """The policy that a policy file holds."""
    kind = document.get("kind")
    if kind not in (ADAPTIVE, JOINT, TIERS):
        raise InputError(f"{path}: kind: found {kind!r}, allowed: {ADAPTIVE!r}, {JOINT!r} or {TIERS!r}")
    return f"{kind}:{path}"


def _options(where: str, document: Mapping[str, Any]) -> PluginOptions:
    for name, value in document.items():
        if name not in KINDS:
            raise InputError(f"{where}: {name}: unknown; allowed: {', '.join(KINDS)}")
        if not KINDS[name](value):
            raise InputError(f"{where}: {name}: found {value!r}, allowed: {ALLOWED[name]}")
    known = dict(document)
    if "block_sizes" in known:
        known["block_sizes"] = tuple(known["block_sizes"])
    options = PluginOptions(**known)
    batching_named(options.batching)
    return options


class Plan(NamedTuple):
    """What the options come to."""

    options: PluginOptions
    policy: Policy
    block_sizes: tuple[int, ...]
    trace: DenseTrace | None
    """That acceptance is forced from."""
    width: int
    """The most tokens that a forward brings for one request."""


def plan_of(args: "ServerArgs") -> Plan:
    """What SGLang's arguments come to; InputError for a policy that cannot be served, or not with this model."""
    options = read_options(args.speculative_adaptive_config)
    trace = None if options.forced_trace is None else read_traces([options.forced_trace])
    sizes = options.block_sizes or (BLOCK_SIZES if trace is None else trace.provenance.block_sizes)
    unrecorded = set() if trace is None else set(sizes) - set(trace.provenance.block_sizes)
    if trace is not None and unrecorded:
        recorded = ", ".join(map(str, trace.provenance.block_sizes))
        raise InputError(f"block_sizes: found {sorted(unrecorded)}, allowed: {recorded}, as {options.forced_trace} has")
    path = Path(args.model_path)
    names = [args.served_model_name or path.name, args.model_path, path.name]
    names += [trace.provenance.model] if trace is not None else []
    policy = _policy(options, sizes, names, args.tp_size)
    return Plan(options, policy, sizes, trace, scratch_tokens(policy, sizes))


def _policy(options: PluginOptions, sizes: tuple[int, ...], names: Sequence[str], gpus: int) -> Policy:
    """The policy for a model that has these names."""
    name, (head, _, argument) = options.policy, options.policy.partition(":")
    if gpus > 1 and head in MEASURES_TIME:
        raise InputError(f"policy {name!r}: learns from measured times, allowed: one GPU, for they differ between GPUs")
    regime = parse_options(argument, REGIME_OPTIONS) if head == "regime" else {}
    priced = head in PRICED or regime.get("above") in PRICED
    if head in FITTED and (not priced or options.profile is not None):
        fit = _fit_in(name, argument if head != "regime" else regime.get("file", ""))
        model = fit.model if fit.model in names else names[0]
        costs = _costs_of_fit(name, fit) if options.profile is None else costs_of(options.profile) or constant_costs()
        policy = make_policy(name, rounds_named(sizes, model), costs)
        if isinstance(policy, Joint) and policy.clairvoyant:
            raise InputError(f"policy {name!r}: knows the future, and cannot be served")
        return policy
    if head in LOOK_AT_COSTS and options.profile is None:
        raise InputError(f"policy {name!r}: needs a profile of this GPU and model, the option 'profile'")
    policy = policy_of(name, sizes, names[0], costs_of(options.profile))
    if isinstance(policy, Tidar):
        raise InputError(f"policy {name!r}: drafts within the prefill, which is SGLang's own, and is not served here")
    return policy


def _fit_in(name: str, path: str) -> Adaptive:
    if not path:
        raise InputError(f"policy {name!r}: needs a policy file; `recguide fit` makes one")
    return read_joint(Path(path)).fitted if name.startswith("joint") else read_policy(Path(path))


def _costs_of_fit(name: str, fit: Adaptive) -> CostModel:
    """Costs that say where a fit is from, and nothing else: tables that are fitted need no costs."""
    profile = fit.provenance.get("profile", {})

    def none(kind: str, requests: int, query_tokens: int) -> Curve:
        raise InputError("the file has no switch point for this block size: give switch=N, or the option 'profile'")

    return CostModel(none, name="of the fit", model=profile.get("model"), gpu=profile.get("gpu"))


OURS = ("algorithm", "adaptive_config", "draft_model_path")
"""What is read of SGLang's options for speculation."""
DERIVED = ("num_draft_tokens", "num_steps", "eagle_topk", "draft_model_revision", "draft_model_quantization",
           "moe_runner_backend", "moe_a2a_backend")  # fmt: skip
"""What follows from the policy, or is set by SGLang itself before anybody is asked."""
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "pp_size": (1,),
    "dp_size": (1,),
    "enable_dp_attention": (False,),
    "enable_mixed_chunk": (False,),
    "enable_two_batch_overlap": (False,),
    "enable_pdmux": (False,),
    "enable_lora": (None, False),
    "disaggregation_mode": ("null",),
    "dllm_algorithm": (None,),
    "enable_hisparse": (False,),
    "prefill_attention_backend": (None,),
    "decode_attention_backend": (None,),
}
"""What of SGLang's other options has to have these values."""


def check_arguments(args: "ServerArgs", defaults: Mapping[str, object]) -> Plan:
    """InputError for arguments that contradict the policy or mean nothing; gives what they come to.

    ``defaults`` is what SGLang's arguments are where nobody gives them.
    """
    for name, default in defaults.items():
        short = name.removeprefix("speculative_")
        if short != name and short not in OURS + DERIVED and getattr(args, name) != default:
            _refuse(name, getattr(args, name), "nothing, it is not looked at")
    for name, allowed in UNSUPPORTED.items():
        if hasattr(args, name) and getattr(args, name) not in allowed:
            _refuse(name, getattr(args, name), " or ".join(map(repr, allowed)))
    plan = plan_of(args)
    for name, value in derived(plan).items():
        if (found := getattr(args, name)) not in (None, value):
            _refuse(name, found, f"{value}, which follows from policy {plan.options.policy}, or nothing")
    return plan


def derived(plan: Plan) -> dict[str, int]:
    """Arguments of SGLang's that follow: slots are set aside for the widest forward, and there is no tree."""
    return {
        "speculative_num_draft_tokens": plan.width,
        "speculative_num_steps": 1,
        "speculative_eagle_topk": 1,
    }


def _refuse(name: str, found: object, allowed: str) -> None:
    raise InputError(f"--{name.replace('_', '-')}: found {found!r}, allowed with RECGUIDE: {allowed}")
