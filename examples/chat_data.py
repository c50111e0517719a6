"""Writes conversations to fine-tune a small model on, without a network: `make chat`

    python examples/chat_data.py --folder data/chats

Arithmetic with calls of Python, and spelling, in nanochat's form: an assistant's content is a text or a list of parts.
Some conversations have several turns, and some a system message. The same seed writes the same files.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

WORDS = (
    "apple",
    "river",
    "stone",
    "garden",
    "window",
    "market",
    "copper",
    "summer",
    "yellow",
    "planet",
    "bridge",
)
GREETINGS = (
    "You are a calculator that explains itself.",
    "Answer in one sentence.",
    "You help children with homework.",
)
Message = dict[str, Any]


@dataclass(frozen=True)
class ChatDataConfig:
    """Writes train.jsonl and val.jsonl, one conversation a line."""

    folder: Path = Path("data/chats")  # where they are written
    conversations: int = 6000  # to train on
    val_conversations: int = 300  # to validate on
    seed: int = 1  # of the random numbers


def arithmetic(rng: random.Random) -> list[Message]:
    """A question, and an answer that calls Python."""
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    sign, word = rng.choice([("+", "plus"), ("-", "minus"), ("*", "times")])
    question = rng.choice(
        [f"What is {a} {word} {b}?", f"Please compute {a} {sign} {b}.", f"{a} {sign} {b} = ?"]
    )
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    parts = [
        {"type": "text", "text": "Let me compute that. "},
        {"type": "python", "text": f"{a}{sign}{b}"},
        {"type": "python_output", "text": str(result)},
        {"type": "text", "text": f"{a} {word} {b} is {result}."},
    ]
    return [{"role": "user", "content": question}, {"role": "assistant", "content": parts}]


def spelling(rng: random.Random) -> list[Message]:
    """A question for the letters of a word."""
    word = rng.choice(WORDS)
    question = rng.choice(
        [f"Spell the word {word}.", f"How do you spell {word}?", f"Which letters are in {word}?"]
    )
    answer = f"{word} is spelled {'-'.join(word)}, with {len(word)} letters."
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def conversation(rng: random.Random) -> list[Message]:
    """One to three questions with answers, after a system message in one of five."""
    system = [{"role": "system", "content": rng.choice(GREETINGS)}] if rng.random() < 0.2 else []
    turns = [rng.choice([arithmetic, spelling])(rng) for _ in range(rng.randint(1, 3))]
    return system + [message for turn in turns for message in turn]


def write(path: Path, count: int, rng: random.Random) -> None:
    """Writes a file of conversations whole, or not at all."""
    lines = [json.dumps({"messages": conversation(rng)}) + "\n" for _ in range(count)]
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.write_text("".join(lines))
    unfinished.replace(path)


def main(config: ChatDataConfig) -> None:
    config.folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(config.seed)
    for name, count in (("train", config.conversations), ("val", config.val_conversations)):
        write(config.folder / f"{name}.jsonl", count, rng)
        print(f"{config.folder / name}.jsonl: {count:,} conversations")


if __name__ == "__main__":
    main(tyro.cli(ChatDataConfig))
