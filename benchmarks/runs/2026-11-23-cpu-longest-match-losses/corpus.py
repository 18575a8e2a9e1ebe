"""Writes 4,000 documents of eight sentences; each of 4,000 people is told about in eight of them on average, in the same words."""
import json
import random

draw = random.Random(7)
syllables = [a + b for a in "bdfgklmnprstv" for b in "aeiou"]
word = lambda count: "".join(draw.choice(syllables) for _ in range(count)).capitalize()
towns = [word(3) for _ in range(200)]
people = [f"{word(2)} {word(3)} of {draw.choice(towns)} lives at number {draw.randrange(10**6):06}." for _ in range(4000)]
with open("people.jsonl", "w") as out:
    for _ in range(4000):
        out.write(json.dumps({"text": " ".join(draw.choice(people) for _ in range(8))}) + "\n")
