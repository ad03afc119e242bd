"""Computes families.json: what the transformers library says of the tiny models of every family.

For each NAME of llama qwen2 qwen3 gemma2 gemma3 phi3 smollm3 granite olmo2, first
    cargo run --release -p tidekv-testkit --example write_model -- tiny-NAME DIR/NAME
then
    python3 make.py DIR > families.json
"""

import json
import pathlib
import random
import sys

import torch
from transformers import AutoModelForCausalLM

LENGTHS = [1, 17, 64, 100]

directory = pathlib.Path(sys.argv[1])
random.seed(1)
ids = [random.randrange(288) for _ in range(max(LENGTHS))]
families = {}
for name in "llama qwen2 qwen3 gemma2 gemma3 phi3 smollm3 granite olmo2".split():
    model = AutoModelForCausalLM.from_pretrained(
        directory / name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    families[name] = []
    for length in LENGTHS:
        with torch.no_grad():
            logits = model(torch.tensor([ids[:length]])).logits[0, -1].double()
        top = torch.topk(torch.log_softmax(logits, -1), 8)
        families[name].append(
            {"n_tokens": length, "ids": top.indices.tolist(), "logprobs": top.values.tolist()}
        )
json.dump({"prompt_ids": ids, "families": families}, sys.stdout, indent=1)
