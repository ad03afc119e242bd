"""Times one prefill of PyTorch (bf16, CPU) with kvpress' SnapKV; prints a JSON object.

    python torch_prefill.py MODEL.gguf TOKENS THREADS BUDGET

The weights are the GGUF file's, dequantised to bf16 by transformers. Prompts are seeded random
tokens; loading is not timed.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import kvpress
import torch
import transformers


def main() -> None:
    model_path, tokens, threads, budget = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(model_path.parent),
        gguf_file=model_path.name,
        dtype=torch.bfloat16,
        attn_implementation="sdpa",
    ).eval()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (1, tokens), generator=generator)
    press = kvpress.SnapKVPress(compression_ratio=max(0.0, 1.0 - budget / tokens))
    with torch.inference_mode(), press(model):
        start = time.perf_counter()
        # As prefill does it: logits of the last token only.
        model(ids, use_cache=True, logits_to_keep=1)
        seconds = time.perf_counter() - start
    versions = {name: version(name) for name in ("torch", "transformers", "kvpress")}
    print(json.dumps({"prefill_s": seconds, "versions": versions}))


if __name__ == "__main__":
    main()
