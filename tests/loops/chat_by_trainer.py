"""Chat sets in Hugging Face's Trainer and TRL's SFTTrainer: python chat_by_trainer.py GLUE RANKS
FOLDER.
"""

import sys
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
from by_trainer import GLUE, make_model, resumes_exactly, sft_needs
from record import say
from transformers import TrainingArguments
from trl import SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from tokenmill import RowLoader, TokenSet, document_ids
from tokenmill.store.set_names import find_token_set


def conversations(ignore_index=-100):
    """Every conversation of the training split: its first tokens -> (ids, labels), which are not
    shifted.
    """
    token_set = TokenSet(find_token_set("data/tokens"))
    known = {}
    for entry in token_set.split("train"):
        shard = token_set.open(entry)
        bits = np.unpackbits(shard.column("mask"), bitorder="little")[: entry.tokens]
        for first, last in pairwise(shard.offsets.tolist()):
            ids = shard.tokens[first:last]
            labels = np.where(bits[first:last], ids.astype(int), ignore_index).tolist()
            ids = ids.tolist()
            assert known.setdefault(tuple(ids[:5]), (ids, labels)) == (ids, labels)
    return known


def whole_ones(inputs, known, bos_id):
    """The (ids, labels) of the conversations in the inputs of a batch, row by row."""
    for row, of_token in zip(inputs.tolist(), document_ids(inputs, bos_id).tolist(), strict=True):
        for document in dict.fromkeys(of_token):
            tokens = [token for token, of in zip(row, of_token, strict=True) if of == document]
            if tuple(tokens[:5]) in known:  # else it is padding
                yield known[tuple(tokens[:5])]


def loss_is_that_of_trl_s_batch():
    """The loss of rows is the loss on the batch that TRL makes of the same conversations, one a
    row.
    """
    loader = RowLoader(split="train", batch_size=3, seq_len=64, long_documents="drop")
    batch = next(loader)
    of_batch = whole_ones(batch[0], conversations(), loader.bos_id)
    examples = [{"input_ids": ids, "labels": labels} for ids, labels in of_batch]
    theirs = DataCollatorForLanguageModeling(pad_token_id=0)(examples)
    model = make_model().eval()
    ours = GLUE["collate"](batch)
    counts = [
        int((labels != -100).sum()) for labels in (ours["shift_labels"], theirs["labels"][:, 1:])
    ]
    assert counts == [loader.targets] * 2, (counts, loader.targets)
    return torch.allclose(model(**ours).loss, model(**theirs).loss, rtol=1e-5)


if __name__ == "__main__":
    resumes_exactly("Trainer", GLUE["PackedTrainer"], TrainingArguments)
    resumes_exactly(
        "SFTTrainer", GLUE["PackedSFTTrainer"], SFTConfig, sft_needs, gradient_accumulation_steps=2
    )
    if sys.argv[2] == "1":
        say(f"loss: {loss_is_that_of_trl_s_batch()}")
    if dist.is_initialized():
        dist.destroy_process_group()
