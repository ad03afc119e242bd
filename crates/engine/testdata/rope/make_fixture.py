"""Writes rope.json beside itself: rotary frequencies and tables of real configurations.

    pip install torch==2.15.0 transformers==5.24.0 mpmath
    python make_fixture.py

Two independent sources. `reference_*` is what the transformers library computes, in float32, with
its own `ROPE_INIT_FUNCTIONS`. Everything else is computed here from the published formulas with 50
digits (mpmath) and rounded at the end; the script fails where the two differ by more than float32
arithmetic explains.
"""

import copy
import json
import pathlib

import mpmath
import torch
from transformers import CONFIG_MAPPING
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

mpmath.mp.dps = 50
POSITIONS = [0, 8191, 131071, 1_000_000]

PHI_SHORT = (
    [1.0, 1.0199999809265137] + [1.0299999713897705] * 2 + [1.0499999523162842] * 5
    + [1.0699999332427979, 1.0999999046325684, 1.1099998950958252]
    + [1.1599998474121094] * 2 + [1.1699998378753662, 1.2899998426437378, 1.339999794960022]
    + [1.679999828338623, 1.7899998426437378, 1.8199998140335083, 1.8499997854232788]
    + [1.8799997568130493, 1.9099997282028198, 1.9399996995925903, 1.9899996519088745]
    + [2.0199997425079346] * 6 + [2.0299997329711914] * 9
    + [2.0799996852874756, 2.0899996757507324, 2.189999580383301, 2.2199995517730713]
    + [2.5899994373321533, 2.729999542236328, 2.749999523162842, 2.8399994373321533]
)
PHI_LONG = [
    1.0800000429153442, 1.1100000143051147, 1.1399999856948853, 1.340000033378601,
    1.5899999141693115, 1.600000023841858, 1.6200000047683716, 2.620000123977661,
    3.2300000190734863, 3.2300000190734863, 4.789999961853027, 7.400000095367432,
    7.700000286102295, 9.09000015258789, 12.199999809265137, 17.670000076293945,
    24.46000099182129, 28.57000160217285, 30.420001983642578, 30.840002059936523,
    32.590003967285156, 32.93000411987305, 42.320003509521484, 44.96000289916992,
    50.340003967285156, 50.45000457763672, 57.55000305175781, 57.93000411987305,
    58.21000289916992, 60.1400032043457, 62.61000442504883, 62.62000274658203,
    62.71000289916992, 63.1400032043457, 63.1400032043457, 63.77000427246094,
    63.93000411987305, 63.96000289916992, 63.970001220703125, 64.02999877929688,
    64.06999969482422, 64.08000183105469, 64.12000274658203, 64.41000366210938,
    64.4800033569336, 64.51000213623047, 64.52999877929688, 64.83999633789062,
]

LLAMA_2 = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 32, "num_hidden_layers": 32, "intermediate_size": 11008,
    "vocab_size": 32000, "max_position_embeddings": 4096, "rope_theta": 10000.0,
}
CONFIGS = {
    "llama-2-7b": LLAMA_2,
    "longchat-7b-16k": LLAMA_2 | {
        "max_position_embeddings": 16384, "rope_scaling": {"factor": 8.0, "type": "linear"},
    },
    "llama-2-7b dynamic": LLAMA_2 | {"rope_scaling": {"factor": 2.0, "type": "dynamic"}},
    "llama-3.1-8b": LLAMA_2 | {
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "max_position_embeddings": 131072, "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
    },
    "qwen2.5-7b yarn": {
        "model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28,
        "num_key_value_heads": 4, "num_hidden_layers": 28, "intermediate_size": 18944,
        "vocab_size": 152064, "max_position_embeddings": 32768, "rope_theta": 1000000.0,
        "rope_scaling": {
            "factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn",
        },
    },
    "smollm2-135m yarn": {
        "model_type": "llama", "hidden_size": 576, "num_attention_heads": 9,
        "num_key_value_heads": 3, "num_hidden_layers": 30, "intermediate_size": 1536,
        "vocab_size": 49152, "max_position_embeddings": 8192, "rope_theta": 100000,
        "rope_scaling": {
            "factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "yarn",
        },
    },
    "yarn with mscale": LLAMA_2 | {
        "rope_scaling": {
            "factor": 40.0, "original_max_position_embeddings": 4096, "type": "yarn",
            "beta_fast": 16, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.707,
        },
    },
    "phi-3.5-mini": {
        "model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 32,
        "num_key_value_heads": 32, "num_hidden_layers": 32, "intermediate_size": 8192,
        "vocab_size": 32064, "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096, "rope_theta": 10000.0, "sliding_window": 262144,
        "rope_scaling": {"type": "longrope", "short_factor": PHI_SHORT, "long_factor": PHI_LONG},
    },
    "gemma-3-4b": {
        "model_type": "gemma3_text", "hidden_size": 2560, "num_attention_heads": 8,
        "num_key_value_heads": 4, "num_hidden_layers": 34, "intermediate_size": 10240,
        "vocab_size": 262208, "head_dim": 256, "max_position_embeddings": 131072,
        "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
}
# Configuration, prompt length, which of its rotations.
CASES = [
    ("llama-2-7b", 4096, 0),
    ("longchat-7b-16k", 16384, 0),
    ("llama-2-7b dynamic", 4096, 0),
    ("llama-2-7b dynamic", 6000, 0),
    ("llama-2-7b dynamic", 131072, 0),
    ("llama-3.1-8b", 131072, 0),
    ("qwen2.5-7b yarn", 131072, 0),
    ("smollm2-135m yarn", 65536, 0),
    ("yarn with mscale", 65536, 0),
    ("phi-3.5-mini", 4096, 0),
    ("phi-3.5-mini", 4097, 0),
    ("gemma-3-4b", 131072, 0),
    ("gemma-3-4b", 131072, 1),
]


def real(number):
    """The exact value of a double."""
    return mpmath.mpf(number)


def formula(config, n_tokens, rotation):
    """Inverse frequencies and the factor of cosine and sine, from the published formulas."""
    dims = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    base = real(config["rope_local_base_freq"] if rotation else config["rope_theta"])
    scaling = {} if rotation else config.get("rope_scaling", {})
    kind = scaling.get("rope_type") or scaling.get("type", "default")
    context = config["max_position_embeddings"]
    trained = real(
        scaling.get("original_max_position_embeddings")
        or config.get("original_max_position_embeddings")
        or context
    )
    factor = real(scaling.get("factor") or context / trained)
    if kind == "dynamic" and n_tokens > trained:
        # NTK-aware: the base that moves the slowest pair by the stretch.
        stretch = factor * n_tokens / trained - (factor - 1)
        base *= stretch ** (real(dims) / (dims - 2))
    plain = [base ** (-real(2 * pair) / dims) for pair in range(dims // 2)]
    if kind in ("default", "dynamic"):
        return plain, real(1)
    if kind == "linear":
        return [frequency / factor for frequency in plain], real(1)
    if kind == "llama3":
        low, high = real(scaling["low_freq_factor"]), real(scaling["high_freq_factor"])

        def stretched(frequency):
            turns = trained * frequency / (2 * mpmath.pi)
            if turns > high:
                return frequency
            if turns < low:
                return frequency / factor
            keep = (turns - low) / (high - low)
            return (1 - keep) * frequency / factor + keep * frequency

        return [stretched(frequency) for frequency in plain], real(1)
    if kind == "yarn":

        def pair_of(turns):
            return dims * mpmath.log(trained / (turns * 2 * mpmath.pi)) / (2 * mpmath.log(base))

        low = max(mpmath.floor(pair_of(scaling.get("beta_fast", 32))), 0)
        high = min(mpmath.ceil(pair_of(scaling.get("beta_slow", 1))), dims - 1)

        def blended(pair, frequency):
            slow = min(max((pair - low) / (high - low), 0), 1)
            return slow * frequency / factor + (1 - slow) * frequency

        def magnitude(weight):
            return real(weight) / 10 * mpmath.log(factor) + 1

        factor_of_both = magnitude(scaling.get("mscale", 1)) / (
            magnitude(scaling["mscale_all_dim"]) if "mscale_all_dim" in scaling else 1
        )
        return [blended(*pair) for pair in enumerate(plain)], factor_of_both
    assert kind == "longrope", kind
    divisors = scaling["long_factor" if n_tokens > trained else "short_factor"]
    assert len(divisors) == dims // 2
    magnitude = mpmath.sqrt(1 + mpmath.log(factor) / mpmath.log(trained))
    return [frequency / real(by) for frequency, by in zip(plain, divisors)], magnitude


def library(config, n_tokens, rotation):
    """The same from transformers, float32."""
    # The library writes into what it is given.
    settings = copy.deepcopy(config)
    settings.pop("model_type")
    made = CONFIG_MAPPING[config["model_type"]](**settings)
    parameters, layer_type = made.rope_parameters, None
    if "full_attention" in parameters:
        layer_type = ["full_attention", "sliding_attention"][rotation]
        parameters = parameters[layer_type]
    kind = parameters["rope_type"]
    if kind != "default":
        return ROPE_INIT_FUNCTIONS[kind](made, "cpu", seq_len=n_tokens, layer_type=layer_type)
    family = Gemma3RotaryEmbedding if layer_type else LlamaRotaryEmbedding
    of_layer = {"layer_type": layer_type} if layer_type else {}
    return family.compute_default_rope_parameters(made, **of_layer)


def library_table(inverse, magnitude, position):
    """The arithmetic of the library's `*RotaryEmbedding.forward`: angle, cosine and sine in float32."""
    angles = inverse.float() * torch.tensor(float(position))
    return angles.cos() * magnitude, angles.sin() * magnitude


def case(name, n_tokens, rotation):
    inverse, magnitude = formula(CONFIGS[name], n_tokens, rotation)
    theirs, their_magnitude = library(CONFIGS[name], n_tokens, rotation)
    assert len(theirs) == len(inverse)
    for ours, other in zip(inverse, theirs.tolist()):
        # A float32 power whose exponent is itself rounded: ln(base) x 2^-24 and some roundings.
        assert abs(ours - other) <= ours * 24 * real(2) ** -24, (name, float(ours), other)
    assert abs(magnitude - their_magnitude) < 1e-12, (name, float(magnitude), their_magnitude)
    tables = []
    for position in POSITIONS:
        cos = [magnitude * mpmath.cos(position * frequency) for frequency in inverse]
        sin = [magnitude * mpmath.sin(position * frequency) for frequency in inverse]
        their_cos, their_sin = library_table(theirs, their_magnitude, position)
        pairs = list(zip(cos + sin, their_cos.tolist() + their_sin.tolist()))
        tables.append({
            "position": position,
            "cos": [float(mpmath.nstr(value, 15)) for value in cos],
            "sin": [float(mpmath.nstr(value, 15)) for value in sin],
            "reference_error": float(max(abs(ours - other) for ours, other in pairs)),
        })
    return {
        "config": name, "n_tokens": n_tokens, "rotation": rotation,
        "inverse": [float(frequency) for frequency in inverse],
        "magnitude": float(magnitude),
        "reference_inverse": [float(f"{frequency:.9g}") for frequency in theirs.tolist()],
        "tables": tables,
    }


def rope_freqs():
    """Divisors as GGUF files of Llama 3.1 carry them, float32: the frequency over the stretched one."""
    config = CONFIGS["llama-3.1-8b"]
    plain, _ = formula(config | {"rope_scaling": {}}, 1, 0)
    stretched, _ = formula(config, 1, 0)
    divisors = torch.tensor([float(a / b) for a, b in zip(plain, stretched)], dtype=torch.float32)
    return [float(f"{divisor:.9g}") for divisor in divisors.tolist()]


def main():
    fixture = {
        "configs": CONFIGS,
        "rope_freqs": rope_freqs(),
        "cases": [case(*which) for which in CASES],
    }
    # One list of numbers a line.
    text = json.dumps(fixture, indent=1)
    lines, numbers = [], None
    for line in text.splitlines():
        if numbers is not None:
            numbers.append(line.strip())
            if line.strip().startswith("]"):
                lines.append(" ".join(numbers))
                numbers = None
        elif line.endswith("["):
            numbers = [line] if '"cases"' not in line and '"tables"' not in line else None
            if numbers is None:
                lines.append(line)
        else:
            lines.append(line)
    path = pathlib.Path(__file__).with_name("rope.json")
    path.write_text("\n".join(lines) + "\n")
    assert json.loads(path.read_text()) == fixture
    for made in fixture["cases"]:
        errors = [table["reference_error"] for table in made["tables"]]
        print(made["config"], made["n_tokens"], made["rotation"], ["%.2g" % e for e in errors])


main()
