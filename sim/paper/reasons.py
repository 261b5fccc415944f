"""Why figures miss the paper's: what follows from published figures alone, and what does not."""

from collections.abc import Mapping, Sequence

REASONS: Mapping[str, Sequence[str]] = {
    "table1": (
        "The fit is to 64 requests of each benchmark: with fewer, the sample is another one.",
        "A text here is easy or hard in stretches, with two kinds of stretches; what that cannot do is left.",
    ),
    "fig2": (
        "The paper prints no shares but 'over half' and 'nearly 30%': the target is the state in which its Table 1 is "
        "in balance. The fit is to 64 requests of each benchmark.",
    ),
    "table2": (
        "TiDAR's tau: its published figure means 6.7 (8B) and 7.5 (14B) tokens a forward, where LinearSS accepts 9.9 "
        "and 10.1 a round. TiDAR's drafts must be much worse than LinearSS's even behind text that was accepted in "
        "full; nothing that is published of LinearSS says by how much, and no figure of TiDAR's was fitted to. Ours "
        "differ from LinearSS's only behind a first token that is in doubt.",
        "RecGuide's tau of single benchmarks: Table 3 has branch outcomes by category alone, and they differ more "
        "than tau of LinearSS says: 14B has 10.81 and then 12.56 on MBPP, but 11.99 and then 18.19 on HumanEval.",
        "Speedups of single benchmarks: the published forward times do not depend on context, so that ours differ "
        "between benchmarks by tau alone. The paper's fall with the length of the texts (AIME: 2.42 at a tau of 10.5, "
        "GSM8K: 3.03 at 9.9).",
        "RecGuide's speedup: the paper's is 1.51 (8B) times LinearSS's, its tau 1.41 times. Equal time for every "
        "forward would give 1.41, and branches make forwards dearer; the rest are changes to the runtime (section 5.3) "
        "of which no times are published. The band covers a host that takes half as long, and cheaper branches.",
        "DFlash is simulated only, from its published tau: a verify, a draft of 5 of 34 layers, and half of "
        "LinearSS's host time. Its published speedup means about 1 ms of host time a round, LinearSS's 6.4 ms: "
        "SGLang's own speculative path is leaner than the one that LinearSS runs in.",
    ),
    "table3": (
        "The fit is to 64 requests of each benchmark: with fewer, the sample is another one.",
        "Where continuations are reused less often than they are ready (14B, code), first tokens were made to miss at "
        "random. No hit is what is left, so that misses of coverage add up there.",
    ),
    "table4": (
        "The paper's rho_C is not published, and was searched on its authors' own rounds. Ours is the price that "
        "achieves the most tokens per second on synthetic rounds, at the published forward times.",
        "Shares depend on how well entropy tells easy text from hard. The synthetic entropies are assumed, at the "
        "published AUROC of about 0.83; that of QA & IF, which shrinks first in the paper, is the same as the others'.",
        "Where one block size costs hardly more than another one, either is as good: at C = 8 (14B) B = 32 is 8% "
        "dearer than B = 16, and ours takes it nearly always. Other prices achieve nearly the same there, so that "
        "shares need not move evenly with the load.",
        "Benchmarks are served together here, one at a time in the paper.",
    ),
    "table5": (
        "The paper's gain of 51.8% (8B) is more than its own tau says: 14.02 / 9.93 is 41%, if every forward took the "
        "same time. A first correction alone gains 34% in the paper: with 22% of rounds saving one of two forwards at "
        "most 12% is possible from saved forwards. The first step, from LinearSS to one correction, holds the change "
        "of runtime (section 5.3); later steps agree.",
    ),
    "table6": (
        "Padding: a step is as dear as its largest block, and with many requests there nearly always is one of 32. "
        "The paper gains 10% in spite of that; ours gains little.",
        "Buckets: at the published forward times a batch split in three takes nearly three times as long (8B, C = 32: "
        "11.2, 14.5 and 20.9 ms for B = 8, 16, 32, but 8.3 to 9.5 ms for 4 requests). One bucket a step then loses "
        "more than unequal blocks gain. The paper's gain needs batches that stay full when they are split: more "
        "requests in flight than C, or all sizes in one forward without padding, which ours gains from.",
    ),
    "fig5": (
        "As in Table 6: buckets of a few requests each cost nearly as much as full batches at the published forward "
        "times. Without padding or buckets the same block sizes are ahead of every fixed one.",
    ),
    "fig3": (
        "Shares of right second candidates are those at which Table 3's branches are reused, by category. The "
        "repository's 57.5% is of six benchmarks, and of all rejections: the paper's 61% of 8B is of those that had a "
        "branch, and nothing says by category how much lower the others are.",
        "The fit is to 64 requests of each benchmark: with fewer, the sample is another one.",
    ),
}
