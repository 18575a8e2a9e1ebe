"""Writes `families/*.json`, the goldens that `families.rs` compares with.

    python -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python models/tests/goldens/families.py
    venv/bin/python models/tests/goldens/families.py --publish D   # folders with weights, for `--example resave`
    venv/bin/python models/tests/goldens/families.py --check E     # `transformers` loads what we saved from them

Each file has the config.json of a tiny model, the names and shapes of its tensors, and what the reference library
computes. Weights follow from the names (`numbers`), so no file holds them. Of each gradient, a file keeps the norm and
the product with one direction.
"""

import argparse
import json
import pathlib
import tempfile

import numpy as np
import torch
import transformers as t

HERE = pathlib.Path(__file__).parent / "families"
TIME, PROMPT, CONTINUATION = 16, 5, 8
SIZES = dict(vocab_size=31, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=40, attn_implementation="eager", bos_token_id=0, eos_token_id=0, pad_token_id=None)
GROUPED = SIZES | dict(num_key_value_heads=2)
LLAMA3 = dict(rope_type="llama3", rope_theta=5000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)


def models():
    yield "llama-3.2", t.LlamaConfig(**GROUPED, tie_word_embeddings=True, rope_parameters=LLAMA3)
    yield "llama-linear", t.LlamaConfig(**GROUPED, attention_bias=True, mlp_bias=True,
                                        rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=3.0))
    yield "mistral", t.MistralConfig(**GROUPED, head_dim=8, sliding_window=None)
    yield "mistral-window", t.MistralConfig(**GROUPED, head_dim=8, sliding_window=5)
    yield "qwen2.5", t.Qwen2Config(**GROUPED, tie_word_embeddings=True)
    yield "qwen3", t.Qwen3Config(**GROUPED, head_dim=12)
    yield "smollm3", t.SmolLM3Config(**GROUPED, no_rope_layer_interval=2, tie_word_embeddings=True)
    yield "olmo2", t.Olmo2Config(**GROUPED)
    yield "pythia", t.GPTNeoXConfig(**SIZES, rotary_pct=0.25)
    yield "neox-sequential", t.GPTNeoXConfig(**SIZES, rotary_pct=0.5, use_parallel_residual=False, attention_bias=False)
    yield "gemma2", t.Gemma2Config(**GROUPED, head_dim=12, query_pre_attn_scalar=10, sliding_window=5,
                                   attn_logit_softcapping=2.0, final_logit_softcapping=3.0)
    yield "gemma3", t.Gemma3TextConfig(**(GROUPED | dict(num_hidden_layers=3)), head_dim=12, query_pre_attn_scalar=10,
                                       sliding_window=5,
                                       layer_types=["sliding_attention", "sliding_attention", "full_attention"])


def uniform(name, count):
    """Numbers in [-1, 1) that follow from a name: FNV-1a, then SplitMix64."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) / 2**23 - 1.0


def numbers(name, shape, less_one):
    drawn = uniform(name, int(np.prod(shape)))
    if len(shape) == 2:
        drawn = drawn * 0.4
    elif name.endswith("bias"):
        drawn = drawn * 0.2
    else:
        drawn = drawn * 0.3 + (0.0 if less_one else 1.0)
    return torch.from_numpy(drawn.astype(np.float32).reshape(shape))


def rounded(tensor):
    return [float(f"{value:.7g}") for value in tensor.flatten().tolist()]


def filled(name, config):
    model = t.AutoModelForCausalLM.from_config(config).float().eval()
    less_one = name.startswith("gemma")
    # Files of GPT-NeoX keep an older name of the head.
    head = "embed_out" if config.model_type == "gpt_neox" else "lm_head"
    parameters = {key.replace("lm_head", head): value for key, value in model.named_parameters()}
    for key, value in parameters.items():
        value.data.copy_(numbers(key, list(value.shape), less_one))
    return model, parameters


def check(name, folder):
    model, report = t.AutoModelForCausalLM.from_pretrained(folder / name, output_loading_info=True,
                                                           attn_implementation="eager")
    golden = json.loads((HERE / f"{name}.json").read_text())
    with torch.no_grad():
        logits = model.float().eval()(torch.tensor(golden["tokens"][:-1])[None]).logits
    apart = (logits.flatten() - torch.tensor(golden["logits"])).abs().max().item()
    print(name, model.config.model_type, f"{apart:.1e}", report["missing_keys"], report["unexpected_keys"])


def write(name, config):
    model, parameters = filled(name, config)
    tokens = torch.from_numpy(((uniform("tokens", TIME + 1) + 1.0) / 2.0 * config.vocab_size).astype(np.int64))[None]

    logits = model(tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    gradients = {}
    for key, value in parameters.items():
        direction = torch.from_numpy(uniform("direction." + key, value.numel())).reshape(value.shape)
        gradients[key] = rounded(torch.stack([value.grad.double().norm(), (value.grad.double() * direction).sum()]))

    greedy = tokens[:, :PROMPT]
    with torch.no_grad():
        for _ in range(CONTINUATION):
            greedy = torch.cat([greedy, model(greedy, use_cache=False).logits[:, -1:].argmax(-1)], 1)

    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        described = json.loads((pathlib.Path(folder) / "config.json").read_text())
    golden = {
        "config": described,
        "tensors": {key: list(value.shape) for key, value in parameters.items()},
        "tokens": tokens[0].tolist(),
        "logits": rounded(logits.detach()),
        "loss": float(f"{loss.item():.7g}"),
        "gradients": gradients,
        "greedy": greedy[0].tolist(),
    }
    (HERE / f"{name}.json").write_text(json.dumps(golden) + "\n")
    print(name, "logits", logits.std().item(), "loss", loss.item())


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--publish", type=pathlib.Path, metavar="D")
    arguments.add_argument("--check", type=pathlib.Path, metavar="E")
    asked = arguments.parse_args()
    HERE.mkdir(exist_ok=True)
    for each in models():
        if asked.publish:
            filled(*each)[0].save_pretrained(asked.publish / each[0])
        elif asked.check:
            check(each[0], asked.check)
        else:
            write(*each)
