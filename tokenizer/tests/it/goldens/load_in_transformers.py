"""Loads saved files in `transformers` and writes an encoded conversation to chat.json.

Run in this folder with transformers 5.23.0. `trained.json` and `tokenizer_config.json` are those of the saved trained
tokenizer: the tests compare both.
"""

import json
import shutil
import tempfile
from pathlib import Path

import tokenizers
import transformers

MESSAGES = [
    {"role": "system", "content": "Below the"},
    {"role": "user", "content": "mill it widens?"},
    {"role": "assistant", "content": "The river widens. 🌊"},
    {"role": "user", "content": "In 1998?\n"},
]


def main():
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy("trained.json", Path(folder, "tokenizer.json"))
        shutil.copy("tokenizer_config.json", folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    print(f"tokenizers {tokenizers.__version__}, transformers {transformers.__version__}")
    print(f"{type(tokenizer).__name__} with {len(tokenizer)} ids, from {tokenizer.bos_token} to {tokenizer.eos_token}")
    made = {"messages": MESSAGES}
    for name, messages, generate in [("prompt", MESSAGES, True), ("finished", MESSAGES[:3], False)]:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate)
        made[name] = tokenizer.encode(text, add_special_tokens=False)
        print(f"{name}: {text!r}")
        print(f"  {made[name]}")
        assert tokenizer.decode(made[name]) == text
    Path("chat.json").write_text(json.dumps(made, indent=1) + "\n")


main()
