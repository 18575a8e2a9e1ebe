"""Continues a conversation in the reference library, greedily, from a folder that `train export` made.

    python -m venv venv && venv/bin/pip install torch transformers
    REFERENCE_PYTHON=venv/bin/python cargo test -p train --test it reference::

Prints the prompt's ids, those of the question as plain text, the answer's ids and its text as one JSON object.
"""

import json
import sys

import torch
import transformers

folder, question, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
conversation = [{"role": "user", "content": question}]
text = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
with torch.no_grad():
    # What ends the answer comes from the exported generation_config.json.
    said = model.generate(prompt, do_sample=False, max_new_tokens=most)[0, prompt.shape[1]:]
ends = model.generation_config.eos_token_id
ends = ends if isinstance(ends, list) else [ends]
ids = said.tolist()
ended = bool(ids) and ids[-1] in ends
ids = ids[:-1] if ended else ids
plain = tokenizer(question).input_ids
print(json.dumps({"prompt": prompt[0].tolist(), "plain": plain, "answer": ids, "ended": ended, "text": tokenizer.decode(ids)}))
