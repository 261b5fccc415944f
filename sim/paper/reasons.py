"""Why figures miss the paper's: what follows from published figures alone, and what does not."""

from collections.abc import Mapping, Sequence

from recguide.sim.paper.entries import Reason

ANY = ""
"""Found in every name."""
SAMPLE = "The fit is to 64 requests of each benchmark: with fewer, the sample is another one."
STRETCHES = "A text here is easy or hard in stretches, with two kinds of stretches; what that cannot do is left."

REASONS: Mapping[str, Sequence[Reason]] = {
    "table1": (Reason(ANY, SAMPLE), Reason(ANY, STRETCHES)),
    "fig2": (
        Reason(
            "^A in",
            "The paper prints no shares but 'over half' and 'nearly 30%': the target is the state in which its Table 1 "
            "is in balance. The fit is to 64 requests of each benchmark.",
        ),
    ),
    "fig3": (
        Reason(ANY, SAMPLE),
        Reason(
            "^mean confidence",
            "What a margin leaves is shared out between the first candidate and the others by an assumption that is "
            "the same for passed and for rejected tokens.",
        ),
    ),
    "repository": (
        Reason(ANY, SAMPLE),
        Reason(ANY, STRETCHES),
        Reason(
            "is worth it",
            "Worth of larger blocks: the repository's nine benchmarks have MMLU among them, whose drafts are the "
            "shortest of all, and its walk visits each request as often as any other.",
        ),
    ),
    "table2": (
        Reason("^LinearSS, tau", SAMPLE),
        Reason(
            "^TiDAR",
            "TiDAR drafts without the adapter here, which is for linear drafts (docs/reproduce.md): its hazards are as "
            "much higher as two GSM8K answers of 8B took rounds more without it, 37 for 30, for both models and every "
            "benchmark. What is left of 8B's tau is mostly GPQA's and IFEval's, whose few long hard stretches are "
            "ours.",
        ),
        Reason(
            "^RecGuide",
            "RecGuide's tau of single benchmarks: Table 3 has branch outcomes by category alone, and they differ more "
            "than tau of LinearSS says: 14B has 10.81 and then 12.56 on MBPP, but 11.99 and then 18.19 on HumanEval.",
        ),
        Reason(
            "^(LinearSS|TiDAR), speedup",
            "LinearSS and TiDAR: the published forward times do not depend on context, so that ours differ between "
            "benchmarks by tau alone. The paper's fall with the length of the texts (AIME: 2.42 at a tau of 10.5, "
            "GSM8K: 3.03 at 9.9), by up to a third, as if the host's work grew with the answer.",
        ),
        Reason(
            "^RecGuide, speedup",
            "RecGuide: the paper's speedup over its tau is the same for all benchmarks, within 5% (0.28 to 0.30 of 8B, "
            "0.30 to 0.32 of 14B), as DFlash's is, while LinearSS's goes from 0.23 to 0.33. So it does not run on "
            "LinearSS's host, whose time it has here, but on one that no figure tells apart. With DFlash's (about 1 ms "
            "a round, where LinearSS has 6.5 ms) it would be faster than published: the paper lies between both "
            "readings.",
        ),
        Reason(
            "^DFlash",
            "DFlash is simulated only, from its published tau: a verify, a draft of 5 layers, and a host's time that "
            "its overall speedup was used for.",
        ),
    ),
    "table3": (
        Reason(ANY, SAMPLE),
        Reason(
            "continuation|no hit",
            "Where continuations are reused less often than they are ready (14B, code), first tokens were made to miss "
            "at random. No hit is what is left, so that misses of coverage add up there.",
        ),
    ),
    "fig5": (
        Reason(
            "not behind",
            "As in Table 6: at the published forward times a bucket of a part of the requests takes nearly as long as "
            "one of all, so that buckets of C requests lose to one batch of everyone. At C = 2 nearly all choose B = "
            "32, and one bucket holds them all.",
        ),
        Reason(
            "not behind",
            "Full buckets, from three times as many requests in flight, are ahead of the fixed blocks of C nearly "
            "everywhere. But fixed blocks with as many in flight (the recipe with 3 C in flight) are ahead by more up "
            "to C = 64, and each request has a third of the throughput: the paper's is near that of fixed blocks of C.",
        ),
        Reason(
            "is near",
            "A request has the throughput of the block size that it mostly gets: where Equation 3 chooses another one "
            "than in the paper (Table 4), or several, it is another one's.",
        ),
        Reason(
            "^B = 8 is behind",
            "The host's time of a round, which shorter blocks take more often, is inferred.",
        ),
    ),
    "table4": (
        Reason(
            ANY,
            "The paper's rho_C is not published, and was searched on its authors' own rounds. Ours is what the "
            "repository's objective, the mean of requests' tokens over time, finds on synthetic rounds at the "
            "published forward times.",
        ),
        Reason(
            ANY,
            "Shares depend on how well entropy tells easy text from hard, and how much requests differ: the synthetic "
            "ones are assumed, and differ less than QA & IF's, which shrinks first in the paper.",
        ),
        Reason(
            "C = 8,|more often|less often",
            "Where one block size costs hardly more than another one, either is as good: at C = 8 (14B) B = 32 is 8% "
            "dearer than B = 16, and ours takes it nearly always. Other prices achieve nearly the same there, so that "
            "shares need not move evenly with the load.",
        ),
    ),
    "table5": (
        Reason(
            ANY,
            "The paper's gain of 51.8% (8B) is more than its own tau says: 14.02 / 9.93 is 41%, if every forward took "
            "the same time. A first correction alone gains 34% in the paper: with 22% of rounds saving one of two "
            "forwards at most 12% is possible from saved forwards. LinearSS runs on another host than what follows it "
            "in this table (see Table 2): the first step holds that change. With DFlash's host ours would gain more "
            "than the paper's.",
        ),
        Reason(
            "Continuation",
            "What the third row gains over the first is 13% and 16% in the paper, and more here; branches that repeat "
            "the draft's tokens, as the authors' do, come nearer.",
        ),
        Reason(
            "2nd Correction",
            "A second correction is worth about what its row costs here (the paper: +1.5% and +1.2%): its sign depends "
            "on forward times that are inferred.",
        ),
    ),
    "table6": (
        Reason(
            r"^(gain %, |tokens/s, |)\+ [sz]_t",
            "Unequal blocks in one batch all get the largest one's size, so that what s_t and z_t gain is what blocks "
            "that are larger than the recipe's do.",
        ),
        Reason(
            r"^\+ z_t",
            "The previous round's block and outcome gain less than one point in the paper. Here they let larger blocks "
            "in, which as the largest of a batch are everyone's.",
        ),
        Reason(
            "Bucketing",
            "At the published forward times buckets of C requests in all cannot gain: one of a third of the requests "
            "takes 71% (C = 32) to 74% (C = 8) of the time that all of them take at B = 16 (8B), so that three of "
            "them, one of each size, take 2.2 times as long as one batch of everyone; at C = 128 44%, and 1.4 times. "
            "The larger blocks of some are worth less than that.",
        ),
        Reason(
            "Bucketing",
            "If C is what an executed batch has, with three times as many requests in flight, buckets are full, and "
            "gain; that reading stands beside and is not counted. Fixed blocks with as many in flight, in batches of "
            "them all, are faster than full buckets, and gain over fixed blocks of C about what the paper's buckets "
            "gain (Fixed Block, as many in flight): the gain of that reading is one of more requests, not of buckets. "
            "And each request has a third of the throughput there, where the paper's (Figure 5) is near that of fixed "
            "blocks of C.",
        ),
        Reason(
            "Bucketing",
            "Neither reading explains the paper's gain by Equation 3: full buckets gain less than half of it, and only "
            "if they knew every next round they would gain about as much. A leaner host behind the last step, as "
            "RecGuide has in Table 2, would explain it; the paper does not say so.",
        ),
    ),
}
