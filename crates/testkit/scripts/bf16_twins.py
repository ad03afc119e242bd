"""Writes the weights of a GGUF file as BF16 twice: as GGUF and as a Hugging Face directory.

    pip install torch==2.15.0 transformers==5.24.0 gguf==0.19.0 accelerate
    python bf16_twins.py MODEL.gguf OUT

OUT/model.gguf is written by gguf-py, OUT/hugging-face by transformers: two independent ways from the
same bits, dequantised by the same library. Both must then give the same tokens, and the same bits:

    tidekv run OUT/model.gguf ...
    tidekv run OUT/hugging-face ...
"""

import pathlib
import sys

import gguf
import numpy
import torch
from gguf.quants import dequantize
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def rounded(tensor):
    """The weights of a tensor, dequantised and rounded to BF16."""
    weights = dequantize(tensor.data, tensor.tensor_type)
    return torch.from_numpy(numpy.array(weights, dtype=numpy.float32)).to(torch.bfloat16)


def copy_metadata(reader, writer):
    """All keys but those that gguf-py writes by itself."""
    own = {"general.architecture", "general.file_type"}
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in own:
            continue
        kind = field.types[0]
        of_list = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=of_list)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def write_gguf(reader, path):
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    copy_metadata(reader, writer)
    for tensor in reader.tensors:
        weights = rounded(tensor)
        if weights.dim() == 1:
            # Vectors are F32 in GGUF files; these hold the BF16 values.
            writer.add_tensor(tensor.name, weights.float().numpy())
        else:
            bits = weights.view(torch.uint16).numpy().view(numpy.uint8)
            bf16 = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(tensor.name, bits, raw_dtype=bf16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    source, out = pathlib.Path(sys.argv[1]).absolute(), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    write_gguf(gguf.GGUFReader(source), out / "model.gguf")
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    dense = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.bfloat16, quantization_config=dense
    )
    directory = out / "hugging-face"
    directory.mkdir(exist_ok=True)
    # `save_pretrained` refuses models that were quantised once, as the configuration says.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.save_pretrained(directory)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {name: weight for name, weight in model.state_dict().items() if name not in tied}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(**where).save_pretrained(directory)


main()
