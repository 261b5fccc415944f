"""Why figures miss the paper's: what follows from published figures alone, and what does not."""

from collections.abc import Mapping, Sequence

REASONS: Mapping[str, Sequence[str]] = {
    "table1": (
        "The fit is to 64 requests of each benchmark: with fewer, the sample is another one.",
        "A text here is easy or hard in stretches, with two kinds of stretches; what that cannot do is left.",
    ),
    "fig2": (
        "The paper prints no shares but 'over half' and 'nearly 30%': the target is the state in which its Table 1 "
        "is in balance. The fit is to 64 requests of each benchmark.",
    ),
    "repository": (
        "The fit is to 64 requests of each benchmark: with fewer, the sample is another one.",
        "A text here is easy or hard in stretches, with two kinds of stretches; what that cannot do is left.",
        "Worth of larger blocks: the repository's nine benchmarks have MMLU among them, whose drafts are the "
        "shortest of all, and its walk visits each request as often as any other.",
    ),
    "table2": (
        "TiDAR drafts without the adapter here, which is for linear drafts (docs/reproduce.md): its hazards are as "
        "much higher as two GSM8K answers of 8B took rounds more without it, 37 for 30, for both models and every "
        "benchmark. What is left of 8B's tau is mostly GPQA's and IFEval's, whose few long hard stretches are ours.",
        "RecGuide's tau of single benchmarks: Table 3 has branch outcomes by category alone, and they differ more "
        "than tau of LinearSS says: 14B has 10.81 and then 12.56 on MBPP, but 11.99 and then 18.19 on HumanEval.",
        "LinearSS and TiDAR: the published forward times do not depend on context, so that ours differ between "
        "benchmarks by tau alone. The paper's fall with the length of the texts (AIME: 2.42 at a tau of 10.5, GSM8K: "
        "3.03 at 9.9), by up to a third, as if the host's work grew with the answer.",
        "RecGuide: the paper's speedup over its tau is the same for all benchmarks, within 5% (0.28 to 0.30 of 8B, "
        "0.30 to 0.32 of 14B), as DFlash's is, while LinearSS's goes from 0.23 to 0.33. So it does not run on "
        "LinearSS's host, whose time it has here, but on one that no figure tells apart. With DFlash's (about 1 ms a "
        "round, where LinearSS has 6.5 ms) it would be faster than published: the paper lies between both readings.",
        "DFlash is simulated only, from its published tau: a verify, a draft of 5 layers, and a host's time that its "
        "overall speedup was used for.",
    ),
    "table3": (
        "The fit is to 64 requests of each benchmark: with fewer, the sample is another one.",
        "Where continuations are reused less often than they are ready (14B, code), first tokens were made to miss "
        "at random. No hit is what is left, so that misses of coverage add up there.",
    ),
    "table4": (
        "The paper's rho_C is not published, and was searched on its authors' own rounds. Ours is what the "
        "repository's objective, the mean of requests' tokens over time, finds on synthetic rounds at the published "
        "forward times.",
        "Shares depend on how well entropy tells easy text from hard, and how much requests differ: the synthetic "
        "ones are assumed, and differ less than QA & IF's, which shrinks first in the paper.",
        "Where one block size costs hardly more than another one, either is as good: at C = 8 (14B) B = 32 is 8% "
        "dearer than B = 16, and ours takes it nearly always. Other prices achieve nearly the same there, so that "
        "shares need not move evenly with the load.",
    ),
    "table5": (
        "The paper's gain of 51.8% (8B) is more than its own tau says: 14.02 / 9.93 is 41%, if every forward took "
        "the same time. A first correction alone gains 34% in the paper: with 22% of rounds saving one of two "
        "forwards at most 12% is possible from saved forwards. LinearSS runs on another host than what follows it in "
        "this table (see Table 2): the first step holds that change. With DFlash's host ours would gain more than "
        "the paper's.",
        "What the third row gains over the first is 13% and 16% in the paper, and more here; branches that repeat the "
        "draft's tokens, as the authors' do, come nearer.",
        "A second correction is worth about what its row costs here (the paper: +1.5% and +1.2%): its sign depends "
        "on forward times that are inferred.",
    ),
    "table6": (
        "The reading that is counted: unequal blocks in one batch all get the largest one's size, and C is what an "
        "executed batch has, so that buckets are full. With C requests in flight in all, as this page had it first, "
        "buckets cannot gain at the published forward times: a batch split in three takes about twice as long "
        "(8B, C = 32: 11.2, 14.5 and 20.9 ms for B = 8, 16, 32, but 8.6 to 10.7 ms for 8 requests).",
        "Against that reading: full buckets have three times as many requests in flight. Fixed blocks that have as "
        "many, in batches of them all, are faster than they are, and gain over fixed blocks of C about what the "
        "paper's buckets gain (Fixed Block, as many in flight).",
        "Full buckets gain what Equation 3 is worth on these rounds at these forward times, less than half of the "
        "paper's gain. Full buckets that know every next round gain about as much as the paper's, which only have "
        "history. A leaner host behind the last step, as RecGuide has in Table 2, would explain it too; the paper does "
        "not say so.",
        "The previous round's block and outcome gain less than one point in the paper. Here they let larger blocks "
        "in, which as the largest of a batch are everyone's.",
    ),
    "fig5": (
        "As in Table 6: full buckets of the same block sizes, three times as many requests in flight. Where block "
        "sizes are worth nearly the same, the order is one of a few tenths of a percent.",
    ),
    "fig3": (
        "The fit is to 64 requests of each benchmark: with fewer, the sample is another one.",
        "What a margin leaves is shared out between the first candidate and the others by an assumption that is the "
        "same for passed and for rejected tokens.",
    ),
}
