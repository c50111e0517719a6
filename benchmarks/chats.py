"""Chat sets beside Hugging Face's route: preparing conversations, and what the rows that come of them hold.

    python benchmarks/chats.py SOURCE [CONVERSATIONS] [RUNS]

SOURCE is parquet with a column `text`, whose texts are cut into the turns of conversations with lengths like
UltraChat's: a log-normal distribution with a mean of about 1,000 tokens. Both routes get the same jsonl, the same
tokenizer.json and the same template, which marks {% generation %} as TRL's does for Qwen 2.5. Each is a process of its
own with two workers, and its time has imports and workers in it:

    tokenmill     prepare --chat tokenizer_config.json
    datasets      load_dataset, map(apply_chat_template(return_assistant_tokens_mask=True), num_proc=2), save_to_disk
    packed        datasets, and then TRL's pack_dataset, which SFTTrainer runs at the start

It then compares masks and ids document by document, and the padding of rows of 2,048 and 8,192 tokens: of tokenmill, of
TRL's "bfd", and of nanochat's chat_sft.py, which keeps 100 conversations in a buffer.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from itertools import cycle
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tokenmill import PrepareConfig, TokenSet, prepare
from tokenmill.look.packing_stats import tally
from tokenmill.text.listing import list_sources

WORKERS, VOCABULARY, BUFFER, FILES = 2, 32_768, 100, 8
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def texts(source: str):
    for path in (file.path for file in list_sources([source]).files):
        for batch in pq.ParquetFile(path).iter_batches(256, columns=["text"]):
            yield from batch.column(0).to_pylist()


def write_conversations(source: str, folder: Path, count: int) -> None:
    """Turns are stretches of the texts, each used once: an engine remembers what it has seen."""
    rng, stream = np.random.default_rng(0), iter(texts(source))
    text, at = next(stream), 0

    def turn(characters: int) -> str:
        nonlocal text, at
        while at + characters > len(text):
            text, at = next(stream), 0
        at += characters
        return text[at - characters : at] or "Hi"

    folder.mkdir()
    for number in range(FILES):
        with open(folder / f"{number}.jsonl", "w") as file:
            for _ in range(count // FILES):
                pairs, messages = int(rng.integers(1, 5)), []
                size = np.clip(rng.lognormal(6.7, 0.6), 40, 20_000) * 4 / pairs  # about four characters a token
                for _ in range(pairs):
                    messages.append({"role": "user", "content": turn(int(0.2 * size) + 1)})
                    messages.append({"role": "assistant", "content": turn(min(12_000, int(0.8 * size) + 1))})
                file.write(json.dumps({"messages": messages}) + "\n")


def write_tokenizer(source: str, folder: Path) -> None:
    """A byte-level BPE, and Qwen 2.5's template with TRL's marks."""
    import tokenizers
    import trl

    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    some = (text for text, _ in zip(texts(source), range(2000), strict=False))
    model.train_from_iterator(some, trainer)
    model.save(str(folder / "tokenizer.json"))
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5_training.jinja"
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "bos_token": None,
        "chat_template": template.read_text(),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


# ---------------------------------------------------------------------------- the routes, each run in a new process


def by_tokenmill(folder: str) -> None:
    config = {"chat": f"{folder}/tokenizer_config.json", "tokens_root": f"{folder}/tokenmill", "workers": WORKERS}
    prepare(PrepareConfig(source=f"{folder}/chats", bos_token=SPECIAL[0], **config))


def by_datasets(folder: str, packed: bool = False) -> None:
    from datasets import load_dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def tokenize(row):
        found = tokenizer.apply_chat_template(row["messages"], return_dict=True, return_assistant_tokens_mask=True)
        return {"input_ids": found["input_ids"], "assistant_masks": found["assistant_masks"]}

    rows = load_dataset("json", data_files=f"{folder}/chats/*.jsonl", split="train", cache_dir=f"{folder}/cache")
    rows = rows.map(tokenize, num_proc=WORKERS, remove_columns=rows.column_names)
    if packed:
        from trl.data_utils import pack_dataset

        rows = pack_dataset(rows, 2049, "bfd", {"num_proc": WORKERS})
    rows.save_to_disk(f"{folder}/{'packed' if packed else 'datasets'}")


ROUTES = {"tokenmill": by_tokenmill, "datasets": by_datasets, "packed": lambda folder: by_datasets(folder, True)}


def timed(route: str, folder: Path) -> tuple[float, float]:
    """(seconds, MB of the largest process of the route)."""
    for name in ("cache", route):
        shutil.rmtree(folder / name, ignore_errors=True)
    began, largest, over = time.perf_counter(), 0, threading.Event()
    command = [sys.executable, __file__, "--route", route, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def watch() -> None:
        nonlocal largest
        while not over.wait(0.1):
            try:
                family = psutil.Process(process.pid)
                sizes = [one.memory_info().rss for one in (family, *family.children(recursive=True))]
            except psutil.NoSuchProcess:
                continue
            largest = max(largest, *sizes)

    watching = threading.Thread(target=watch)
    watching.start()
    status = process.wait()
    over.set()
    watching.join()
    if status:
        raise RuntimeError(f"{route} ended with {status}; run it by itself: {' '.join(command)}")
    return time.perf_counter() - began, largest / 1e6


# ---------------------------------------------------------------------------- what came of it


def differing(folder: Path) -> tuple[int, int]:
    """Conversations whose ids, or masks, are not those of Hugging Face; the BOS that tokenmill adds is left out."""
    from datasets import load_from_disk

    (found,) = (folder / "tokenmill").iterdir()
    token_set, theirs = TokenSet(found), load_from_disk(str(folder / "datasets"))
    expected = {tuple(row["input_ids"]): row["assistant_masks"] for row in theirs}
    ids, masks = 0, 0
    for entry in token_set.entries:
        shard = token_set.open(entry)
        tokens, bits = shard.tokens[:], np.unpackbits(shard.column("mask"), bitorder="little")
        for first, last in zip(shard.offsets[:-1].tolist(), shard.offsets[1:].tolist(), strict=True):
            key = tuple(tokens[first + 1 : last].tolist())
            ids += key not in expected
            masks += key in expected and expected[key] != bits[first + 1 : last].tolist()
    return ids, masks


def padding(lengths: np.ndarray, seq_len: int) -> dict[str, float]:
    """The share of rows' tokens that is padding, of conversations that fit into a row."""
    import pyarrow as pa
    from trl.data_utils import _pack_bfd

    fitting = lengths[lengths <= seq_len + 1]
    rows = 0
    for first in range(0, len(fitting), 1000):  # as a map of batches does
        some = pa.table({"input_ids": pa.array([[0] * n for n in fitting[first : first + 1000].tolist()])})
        rows += len(_pack_bfd(some, seq_len + 1, "truncate"))
    return {
        "tokenmill": tally("drop", [lengths], seq_len + 1).filler,
        'TRL "bfd"': 1 - fitting.sum() / (rows * (seq_len + 1)),
        "nanochat's buffer": nanochat_padding(fitting.tolist(), seq_len + 1),
    }


def nanochat_padding(lengths: list[int], row_len: int) -> float:
    """The longest of 100 conversations that fits, again and again; when none fits, the row is padded."""
    stream, buffer, padded, rows, taken = cycle(lengths), [], 0, 0, 0
    while taken < len(lengths):
        free = row_len
        while True:
            while len(buffer) < BUFFER:
                buffer.append(next(stream))
            best = max((length for length in buffer if length <= free), default=None)
            if best is None:
                break
            buffer.remove(best)
            free, taken = free - best, taken + 1
        padded, rows = padded + free, rows + 1
    return padded / (rows * row_len)


def main(source: str, conversations: int, runs: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokenizer(source, folder)
        write_conversations(source, folder / "chats", conversations)
        size = sum(path.stat().st_size for path in (folder / "chats").iterdir())
        print(f"{conversations:,} conversations, {size / 1e6:,.0f} MB of jsonl, medians of {runs} runs\n", flush=True)
        found = {route: [] for route in ROUTES}
        for _ in range(runs):
            for route in ROUTES:  # in turns
                found[route].append(timed(route, folder))
        print("| | seconds | tokenmill is faster by | MB of its largest process |\n| --- | --- | --- | --- |")
        ours = [seconds for seconds, _ in found["tokenmill"]]
        for route, measured in found.items():
            seconds = [one for one, _ in measured]
            ratio = median(b / a for a, b in zip(ours, seconds, strict=True))
            print(f"| {route} | {median(seconds):.1f} | {ratio:.1f} x | {max(mb for _, mb in measured):,.0f} |")
        ids, masks = differing(folder)
        print(f"\n{ids:,} conversations with other ids, {masks:,} with other masks\n")
        token_set = TokenSet(next((folder / "tokenmill").iterdir()))
        lengths = np.concatenate([token_set.open(entry).lengths for entry in token_set.split("train")])
        print(f"padding, {len(lengths):,} conversations of {lengths.mean():,.0f} tokens on average\n")
        shares = {seq_len: padding(lengths, seq_len) for seq_len in (2048, 8192)}
        print(f"| rows of | {' | '.join(shares[2048])} |\n| --- | --- | --- | --- |")
        for seq_len, by_route in shares.items():
            print(f"| {seq_len:,} | {' | '.join(f'{share:.2%}' for share in by_route.values())} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--route"]:
        ROUTES[sys.argv[2]](sys.argv[3])
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("source")
        parser.add_argument("conversations", type=int, nargs="?", default=30_000)
        parser.add_argument("runs", type=int, nargs="?", default=3)
        main(**vars(parser.parse_args()))
