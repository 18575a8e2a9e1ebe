"""Writes the files listed here with Python's `tokenizers`, version 0.23.2. Run it in this folder.

trained.json   the vocabulary that BPE training on corpus.txt, one document per line, has to give
metaspace.json a vocabulary with a normalizer, prefix spaces and byte fallback, as Llama 2 has
nfc.json       trained.json's vocabulary behind NFC, as Qwen has
encodings.json ids of the probes under each of them
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = ["<|bos|>", "<|user_start|>", "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>"]
VOCAB_SIZE = 450
PROBES = [
    "",
    " ",
    "   \n\n  \t x",
    "The water rises, the river widens.",
    "It'S NOT we'll THEY'VE 'tis",
    "1 12 123 1234 3.75 ²½Ⅷ ١٢٣",
    "e\u0301 é \u212b ﬁ",
    "Größere Brücke, là-bas; Река 川は村 강은 النهر",
    "🌊🚢👩‍👩‍👧 \u0000\u0007\u200b\ufeff",
    "def f(x):\r\n    return x\r\n\r\n",
    "<|bos|> is only text here",
    "a\u3000\u3000b\u00a0\u2028c",
]


def lines():
    text = Path("corpus.txt").read_text(encoding="utf-8")
    return text.splitlines(keepends=True)


def byte_level(regex):
    split = pre_tokenizers.Split(Regex(regex), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def trained():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level(PATTERN)
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIALS),
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return tokenizer


def metaspace():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_as_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>", "<s>", "</s>", *bytes_as_tokens],
        limit_alphabet=60,
        max_token_length=12,
        show_progress=False,
    )
    words = [word for line in lines() for word in line.split(" ")]
    tokenizer.train_from_iterator(words, trainer)
    # Byte tokens are tokens of text: only the three in front of them are control tokens.
    definition = json.loads(tokenizer.to_str())
    definition["added_tokens"] = definition["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(definition))


def nfc(base):
    definition = json.loads(base.to_str())
    definition["normalizer"] = {"type": "NFC"}
    return Tokenizer.from_str(json.dumps(definition))


def encodings(tokenizer):
    tokenizer.encode_special_tokens = True
    encoded = [tokenizer.encode(probe, add_special_tokens=False).ids for probe in PROBES]
    return [{"text": probe, "ids": ids, "decoded": tokenizer.decode(ids)} for probe, ids in zip(PROBES, encoded)]


def main():
    made = {"trained": trained(), "metaspace": metaspace()}
    made["nfc"] = nfc(made["trained"])
    for name, tokenizer in made.items():
        tokenizer.save(f"{name}.json", pretty=False)
    probes = {name: encodings(tokenizer) for name, tokenizer in made.items()}
    Path("encodings.json").write_text(json.dumps(probes, indent=1, ensure_ascii=True) + "\n")


main()
