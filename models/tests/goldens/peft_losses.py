"""Writes `peft/*.json`, the goldens that `peft.rs` compares with: losses of PEFT's own adapters while they learn.

    python -m venv venv && venv/bin/pip install torch transformers peft
    venv/bin/python models/tests/goldens/peft_losses.py

Base, adapters and tokens follow from names, as in `families.py`.
"""

import json
import pathlib
import tempfile

import numpy as np
import peft
import torch
import transformers as t

from families import GROUPED, SIZES, TIME, filled, uniform

HERE = pathlib.Path(__file__).parent / "peft"
STEPS, TEXTS = 50, 5
LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
GPT2 = t.GPT2Config(vocab_size=31, n_embd=32, n_layer=2, n_head=4, n_positions=40, attn_implementation="eager",
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)


def cases():
    llama = t.LlamaConfig(**GROUPED, tie_word_embeddings=True)
    yield "llama", llama, peft.LoraConfig(r=4, lora_alpha=12, target_modules=LLAMA), STEPS
    yield "rslora", llama, peft.LoraConfig(r=4, lora_alpha=3, use_rslora=True, target_modules=["q_proj", "up_proj"]), STEPS
    # Query, key and value share a module there, and not here: they begin alike and learn apart.
    yield "gpt2", GPT2, peft.LoraConfig(r=3, lora_alpha=6, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True), 1
    neox = t.GPTNeoXConfig(**SIZES, rotary_pct=0.25)
    yield "pythia", neox, peft.LoraConfig(r=3, lora_alpha=6, target_modules=["query_key_value", "dense"]), 1


def text(step):
    drawn = (uniform(f"tokens.{step % TEXTS}", TIME + 1) + 1.0) / 2.0 * 31
    return torch.from_numpy(drawn.astype(np.int64))[None]


def write(name, config, lora, steps):
    base, parameters = filled(name, config)
    shapes = {key: list(value.shape) for key, value in parameters.items()}
    model = peft.get_peft_model(base, lora)
    adapters = {key.replace(".default.", "."): value for key, value in model.named_parameters() if value.requires_grad}
    for key, value in adapters.items():
        value.data.copy_(torch.from_numpy((uniform(key, value.numel()) * 0.2).astype(np.float32)).reshape(value.shape))
    optimizer = torch.optim.AdamW(adapters.values(), lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        described = json.loads((pathlib.Path(folder) / "adapter_config.json").read_text())
        config.save_pretrained(folder)
        base = json.loads((pathlib.Path(folder) / "config.json").read_text())

    losses = []
    for step in range(steps):
        tokens = text(step)
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(f"{loss.item():.7g}"))

    golden = {
        "config": base,
        "tensors": shapes,
        "adapter_config": described | {"base_model_name_or_path": "base"},
        "adapters": {key: list(value.shape) for key, value in adapters.items()},
        "losses": losses,
    }
    (HERE / f"{name}.json").write_text(json.dumps(golden) + "\n")
    print(name, losses[0], losses[-1])


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for case in cases():
        write(*case)
