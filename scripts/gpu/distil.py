"""Distil one corpus on one GPU.

usage: distil.py MODEL OUT.npz SECONDS LONGEST_PROMPT LONGEST_RESPONSE TOGETHER SHORTEST_PROMPT INVENT [PROMPTS...]
"""

import sys
from pathlib import Path

import torch

from recguide.engine.adapt_run import Source, distil_source
from recguide.engine.corpora import save_corpus

model, out, *numbers = sys.argv[1:9]
seconds, max_prompt, max_response, batch, shortest, invent = map(int, numbers)
source = Source([Path(p) for p in sys.argv[9:]], invent, seconds, max_prompt, max_response, batch, shortest)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
save_corpus(Path(out), distil_source(model, device, source, lambda text: print(text, flush=True)))
