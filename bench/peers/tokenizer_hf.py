"""Training and encoding by Hugging Face's tokenizers, a byte-level BPE of 4096 ids over lines.

"tokenizers" is its usual setting: a pattern cuts the lines into words first, so only different words
are looked at and no token reaches over a word. "tokenizers, lines" leaves the lines whole, which is
closer to OA's task, whose tokens may even reach over lines.
"""
import os
import pathlib
import resource
import time

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
import tokenizers

import peer


def main():
    options = peer.options()
    os.environ["RAYON_NUM_THREADS"] = os.environ.get("OA_THREADS", "2")
    folder = pathlib.Path(os.environ["OA_BENCH_TEXTS"])
    # Whole lines take minutes for the long text.
    for name, who, words in [("4 MB", "tokenizers", True), ("4 MB", "tokenizers, lines", False),
                             ("100 MB", "tokenizers", True)]:
        if not any(options.filter in f"{task} {name}" for task in ("train", "encode")):
            continue
        text = (folder / f"{name.split()[0]}.txt").read_text(encoding="ascii")
        lines = text.splitlines(keepends=True)
        megabytes = len(text) * 1e-6

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words)
        trainer = trainers.BpeTrainer(vocab_size=4096, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        start = time.perf_counter()
        tokenizer.train_from_iterator(lines, trainer, length=len(lines))
        peer.report(f"train {name}", who, megabytes / (time.perf_counter() - start), "MB/s")

        # A thousand lines at once: each result is an object per line, which is not what is measured.
        seconds, ids = 0, 0
        for first in range(0, len(lines), 1000):
            batch = lines[first:first + 1000]
            start = time.perf_counter()
            encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            seconds += time.perf_counter() - start
            ids += sum(len(encoding) for encoding in encodings)
        peer.report(f"encode {name}", who, megabytes / seconds, "MB/s")
        if options.round == 0:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            peer.note(f"{who} {tokenizers.__version__}: {name}, {ids} ids, memory peak so far {peak} MB")


main()
