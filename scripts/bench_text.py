#!/usr/bin/env python3
"""Writes the texts of the tokenizer benchmark: the King James Bible, and 100 MB made of it.

Usage: scripts/bench_text.py FOLDER

The Bible (4.4 MB, public domain) comes from Debian's bible-kjv, one verse a line with its reference.
The long text is as many copies as make 100 MB; each has its verses in another order, fixed by a seed,
and one of 20 of its words spelled with two letters exchanged, so that new words keep coming.
"""
import pathlib
import random
import re
import subprocess
import sys

SIZE = 100_000_000


def misspelled(verses, generator):
    def change(match):
        word = match.group()
        if generator.random() >= 0.05:
            return word
        i = generator.randrange(len(word) - 1)
        return word[:i] + word[i + 1] + word[i] + word[i + 2:]

    return re.sub(r"[a-z]{4,}", change, "".join(verses))


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    bible = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, check=True,
                           capture_output=True, text=True, encoding="ascii").stdout
    verses = bible.splitlines(keepends=True)
    generator = random.Random(20260714)
    copies, size = [bible], len(bible)
    while size < SIZE:
        generator.shuffle(verses)
        copies.append(misspelled(verses, generator))
        size += len(copies[-1])
    # The last one to be written is the sign that all are there.
    (folder / "100.txt").write_text("".join(copies)[:SIZE], encoding="ascii")
    (folder / "4.txt").write_text(bible, encoding="ascii")


main()
