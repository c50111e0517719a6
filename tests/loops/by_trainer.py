"""Hugging Face's Trainer, TRL's SFTTrainer: python by_trainer.py GLUE RANKS FOLDER, where a token
set is.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from datasets import Dataset
from record import Record, say, tell
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from trl import SFTConfig

from tokenmill import RowLoader

GLUE = {}
exec(Path(sys.argv[1]).read_text(), GLUE)
STEPS = 8
SAVE = 3


def make_model(kind="llama"):
    torch.manual_seed(0)
    if kind == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(vocab_size=1000, n_positions=64, n_embd=8, n_layer=1, n_head=1)
        )
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=1000, num_key_value_heads=1, max_position_embeddings=64, **sizes)
    )


def train(trainer_class, config_class, folder, resume=None, more=None, **settings):
    record = Record()

    class Recording(trainer_class):
        def training_step(self, model, inputs, *rest):
            record.add(inputs["input_ids"])
            return super().training_step(model, inputs, *rest)

    settings |= {
        "max_steps": STEPS,
        "save_steps": SAVE,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "per_device_train_batch_size": 2,
        "logging_steps": 1000,
        "bf16": False,
    }
    config = config_class(output_dir=folder, **settings)
    trainer = Recording(model=make_model(), args=config, **(more or {}))
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{resume}" if resume else None)
    return record


def resumes_exactly(name, trainer_class, config_class, make_more=dict, **settings):
    folder = f"{sys.argv[3]}/{name}"
    accumulated = settings.get("gradient_accumulation_steps", 1)
    unbroken = train(trainer_class, config_class, folder, more=make_more(), **settings)
    resumed = train(trainer_class, config_class, folder, SAVE, more=make_more(), **settings)
    tell(name, unbroken, resumed, SAVE * accumulated, 2)


def position_resumes_exactly():
    """With the glue's callback, and a loader that goes to the position before training goes on."""
    folder = f"{sys.argv[3]}/position"

    def run(resume=None):
        loader = RowLoader(split="train", batch_size=2, seq_len=64)
        if resume:
            loader.load_state_dict(
                json.loads(Path(folder, f"checkpoint-{resume}", "data.json").read_text())
            )

        class OfLoader(Trainer):
            def get_train_dataloader(self):
                return map(GLUE["collate"], loader)

        more = {"callbacks": [GLUE["SavePosition"](loader)]}
        return train(OfLoader, TrainingArguments, folder, resume, more, ignore_data_skip=True)

    tell("Trainer, its position saved", run(), run(SAVE), SAVE, 2)


def loss_is_that_of_the_targets(kind):
    """With the keys that the glue gives, the loss is cross entropy of the logits at inputs, and
    targets.
    """
    inputs, targets = next(RowLoader(split="train", batch_size=2, seq_len=64))
    model = make_model(kind).eval()
    loss = model(**GLUE["collate"]((inputs, targets))).loss
    logits = model(input_ids=inputs).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return torch.allclose(loss, expected)


def sft_needs():
    """What SFTTrainer asks for and does not use: the batches are the loader's."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")), eos_token="a"
    )
    return {"processing_class": words, "train_dataset": Dataset.from_dict({"input_ids": [[0, 0]]})}


if __name__ == "__main__":
    resumes_exactly("Trainer", GLUE["PackedTrainer"], TrainingArguments)
    resumes_exactly(
        "Trainer, accumulating",
        GLUE["PackedTrainer"],
        TrainingArguments,
        gradient_accumulation_steps=2,
    )
    position_resumes_exactly()
    resumes_exactly("SFTTrainer", GLUE["PackedSFTTrainer"], SFTConfig, sft_needs)
    if sys.argv[2] == "1":
        say(f"loss: {[loss_is_that_of_the_targets(kind) for kind in ('llama', 'gpt2')]}")
    # else its threads may end the process by a signal while Python leaves
    if dist.is_initialized():
        dist.destroy_process_group()
