"""Writes the goldens that `parity.rs` compares with, and checks the weights we save.

    python -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python models/tests/goldens/generate.py            # writes gpt2/ and llama/
    cargo run -p models --example resave -- models/tests/goldens/gpt2 D/gpt2      # and the same for llama
    venv/bin/python models/tests/goldens/generate.py --check D  # `transformers` loads what we saved

Both models are random and tiny, but large enough in their weights that every part of the network shows in the logits.
"""

import argparse
import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).parent
BATCH, TIME, STEPS, CONTINUATION = 3, 17, 10, 20
LEARNING_RATE, BETAS, EPSILON, DECAY = 1e-3, (0.9, 0.95), 1e-8, 0.1


def models():
    shared = dict(vocab_size=67, attn_implementation="eager")
    yield "gpt2", GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_head=3, n_embd=24, n_positions=40, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                   bos_token_id=0, eos_token_id=0, **shared)
    )
    yield "llama", LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=32,
                    intermediate_size=56, max_position_embeddings=40, rms_norm_eps=1e-5, tie_word_embeddings=False,
                    rope_parameters={"rope_type": "default", "rope_theta": 5000.0}, bos_token_id=0, eos_token_id=0, **shared)
    )


def enlarge(model):
    """Initial weights of 0.02 would leave attention uniform and hide mistakes in it."""
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.add_(noise * (0.15 if parameter.dim() == 2 else 0.2))


def loss_of(model, tokens):
    logits = model(tokens[:, :-1]).logits
    return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def write(name, model):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    model.eval()
    enlarge(model)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    tokens = torch.randint(0, model.config.vocab_size, (BATCH, TIME + 1), generator=torch.Generator().manual_seed(3))

    logits, loss = loss_of(model, tokens)
    loss.backward()
    golden = {"tokens": tokens.to(torch.int32), "logits": logits.detach(), "loss": loss.detach().reshape(1)}
    golden |= {f"grad.{key}": value.grad.clone() for key, value in model.named_parameters()}

    prompt = tokens[:1, :5]
    with torch.no_grad():
        for _ in range(CONTINUATION):
            prompt = torch.cat([prompt, model(prompt).logits[:, -1:].argmax(-1)], 1)
    golden["greedy"] = prompt.to(torch.int32)

    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [dict(params=decayed, weight_decay=DECAY), dict(params=others, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        _, loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    golden["losses"] = torch.tensor(losses)
    save_file({key: value.contiguous() for key, value in golden.items()}, folder / "golden.safetensors")


def check(exported):
    """The logits of what we saved, as `transformers` computes them, against the goldens."""
    result = {"torch": torch.__version__, "transformers": transformers.__version__}
    for name, kind in [("gpt2", GPT2LMHeadModel), ("llama", LlamaForCausalLM)]:
        model, report = kind.from_pretrained(exported / name, output_loading_info=True)
        model.eval()
        golden = load_file(HERE / name / "golden.safetensors")
        with torch.no_grad():
            logits = model(golden["tokens"][:, :-1].long()).logits
        result[name] = {
            "max_abs_difference": (logits - golden["logits"]).abs().max().item(),
            "missing": sorted(report["missing_keys"]),
            "unexpected": sorted(report["unexpected_keys"]),
        }
    text = json.dumps(result, indent=2)
    (HERE / "transformers-loads-ours.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", type=pathlib.Path, metavar="D")
    exported = arguments.parse_args().check
    torch.manual_seed(0)
    if exported:
        check(exported)
    else:
        for name, model in models():
            write(name, model)
