"""Chat sets in Hugging Face's Trainer and TRL's SFTTrainer: python chat_by_trainer.py GLUE RANKS FOLDER."""

import sys

import torch
import torch.distributed as dist
from by_trainer import GLUE, make_model, resumes_exactly, sft_needs
from conversations import conversations, whole_ones
from record import say
from transformers import TrainingArguments
from trl import SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from tokenmill import RowLoader


def loss_is_that_of_trl_s_batch():
    """The loss of rows is the loss on the batch that TRL makes of the same conversations, one a row."""
    loader = RowLoader(split="train", batch_size=3, seq_len=64, long_documents="drop")
    batch = next(loader)
    whole = whole_ones(batch[0], conversations(), loader.bos_id)
    examples = [{"input_ids": ids, "labels": labels} for ids, labels in whole]
    theirs = DataCollatorForLanguageModeling(pad_token_id=0)(examples)
    model = make_model().eval()
    ours = GLUE["collate"](batch)
    counts = [int((labels != -100).sum()) for labels in (ours["shift_labels"], theirs["labels"][:, 1:])]
    assert counts == [loader.targets] * 2, (counts, loader.targets)
    return torch.allclose(model(**ours).loss, model(**theirs).loss, rtol=1e-5)


if __name__ == "__main__":
    resumes_exactly("Trainer", GLUE["PackedTrainer"], TrainingArguments)
    resumes_exactly("SFTTrainer", GLUE["PackedSFTTrainer"], SFTConfig, sft_needs, gradient_accumulation_steps=2)
    if sys.argv[2] == "1":
        say(f"loss: {loss_is_that_of_trl_s_batch()}")
    if dist.is_initialized():
        dist.destroy_process_group()
