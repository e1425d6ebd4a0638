#!/usr/bin/env python3
"""Writes tests/model/tokenizer_vectors.json: fuzzed texts with the ids that tiktoken gives, on the built-in model's ranks.

Usage, in a virtual environment with tools/tokenizer-requirements.txt installed, after tools/unpack-demo-model models/demo:

    python tools/make_tokenizer_vectors.py
"""
import json
import pathlib
import random

import tiktoken
from tiktoken.load import load_tiktoken_bpe

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "demo"

# What the split rules tell apart, each with a few members; fuzzing mixes them in short runs.
ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", " ", "  \t", "\n", "\r\n", "\u00a0\u2003\u3000\u0085",
    ".,;:!?-_()[]{}<>/\\|@#$%^&*+=~`\"'", "'", "'s't're've'm'll'd", "'S'T'RE'Ve'M'lL'D'\u017f",
    "äöüßéèñçøœ", "ÄÖÜÉÈÑÇØŒ", "ǅǈǋǲᾈᾘ", "ʰʲʷⁿₐᵃ", "ªºƻǀאבגدرسกขค", "́̂̃̈҉⃝", "你好世界漢字語々〆〇〡〢⺀⼀豈", "ひらがなカタカナ한국어",
    "αβγδ", "ΑΒΓΔ", "абвг", "АБВГ", "①②½¾Ⅷ٣४", "😀👩‍💻🇪🇺", "\u200b\u200d\ufeff", "€£¥§¶", "\x00\x01\x7f", "𝐀𝐚𝟎𠀀𪚥𞤀𞤢",
]
SENTENCES = [
    "Hello, world!", "I'm sure they've said it'll work, haven't they?", "def main():\n    return {'a': 1, 'b': [2, 3]}\n",
    "The :func:`sorted` function returns a new list", "你好，世界！This is 混合 text. 123你456", "CamelCaseWords andHTTPServer2Go",
    "   leading and trailing   ", "tabs\tand\t\tnewlines\n\n\nend", "SELECT * FROM t WHERE x >= 10;\r\n-- comment\r\n",
    "naïve café Ångström ŁÓDŹ", "1234567890 3.14159 1e-10 0xFF", "a" * 100, "    " * 40 + "x", "?!" * 70, "word " * 60, "", " ", "\n", "'", "''s",
]


def fuzz(rng):
    kind = rng.random()
    if kind < 0.15:  # any code points
        return "".join(chr(rng.choice([c for c in (rng.randrange(0x110000), rng.randrange(0x3000), rng.randrange(0x250))
                                       if not 0xD800 <= c < 0xE000] or [65])) for _ in range(rng.randrange(1, 24)))
    if kind < 0.3:  # a sentence with a change or two
        text = list(rng.choice(SENTENCES))
        for _ in range(rng.randrange(0, 4)):
            text.insert(rng.randrange(len(text) + 1), rng.choice(rng.choice(ALPHABETS)))
        return "".join(text)
    few = rng.sample(ALPHABETS, rng.randrange(1, 6))
    return "".join("".join(rng.choice(letters) for _ in range(rng.randrange(1, 5)))
                   for letters in (rng.choice(few) for _ in range(rng.randrange(1, 12))))


def main():
    pattern = json.loads((MODEL / "golden.json").read_text())["pattern"]
    encoding = tiktoken.Encoding("kimi", pat_str=pattern, special_tokens={},
                                 mergeable_ranks=load_tiktoken_bpe(str(MODEL / "tiktoken.model")))
    rng = random.Random(20261130)
    texts = list(dict.fromkeys(SENTENCES + [fuzz(rng) for _ in range(4000)]))
    vectors = [[text, encoding.encode_ordinary(text)] for text in texts]
    lines = ",\n".join(json.dumps(vector, separators=(",", ":")) for vector in vectors)
    target = ROOT / "tests" / "model" / "tokenizer_vectors.json"
    target.write_text(f'{{"tiktoken":"{tiktoken.__version__}","vectors":[\n{lines}\n]}}\n')
    print(f"{target}: {len(vectors)} texts")


if __name__ == "__main__":
    main()
