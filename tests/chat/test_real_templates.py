"""The chat templates of real models, as TRL ships them, beside transformers' rendering and masks.

TRL has two templates of many models: the model's own, and one with {% generation %} marks for
training. Our mask of the first is compared with the marks of the second, where both write the same
text.
"""

import datetime
import importlib.util
import random
import re
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest
from conversing import TEXTS, random_messages

from tokenmill.chat.conversations import CannotMask, read_conversation
from tokenmill.chat.templates import JinjaTemplate
from tokenmill.chat.turns import TurnFinder

FOUND = importlib.util.find_spec("trl")  # found, and not imported: other tests fork
FOLDER = Path(FOUND.origin).parent / "chat_templates" if FOUND else Path("nowhere")
TEMPLATES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
VARIABLES = {"bos_token": "<BOS>", "eos_token": "<EOS>", "pad_token": "<PAD>"}
SPELLED = re.compile(
    r"<\|[^|<>'\"{}]+\|>|<｜[^｜]+｜>|</?s>|<\|?/?(?:start|end)_of_(?:turn|utterance)\|?>"
    r"|<end_of_utterance>|<bos>|<eos>|<turn\|>|<\|turn>|\[/?INST\]|<SPECIAL_\d+>"
)
REFUSED = {"glm4moe": "a turn ends where the next one begins, with no token of its own"}
pytestmark = pytest.mark.slow


def special_of(source: str) -> list[str]:
    return sorted({*SPELLED.findall(source), *VARIABLES.values()})


WITH_PARTS = (
    "llava_next",
    "idefics3",
    "smolvlm",
)  # whose templates take content as a list of parts
DATED = datetime.datetime(2024, 7, 26)


@pytest.fixture(autouse=True)
def same_date(monkeypatch):
    """transformers writes today's date, tokenmill always the same."""
    chat_templates = pytest.importorskip("transformers.utils.chat_template_utils")

    class Dated(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return DATED

    monkeypatch.setattr(chat_templates, "datetime", Dated)


def conversations(count: int, name: str, seed: int = 0):
    rng = random.Random(seed)
    for _ in range(count):
        messages = random_messages(rng)
        for message in messages:
            if message["role"] == "assistant" and rng.random() < 0.2:
                message["reasoning_content"] = rng.choice(TEXTS)
            if name.startswith(WITH_PARTS):
                message["content"] = [{"type": "text", "text": message["content"]}]
        yield {"messages": messages}


def theirs(source: str, row: dict) -> tuple[str, list[tuple[int, int]]]:
    """transformers' text, and the characters of its generation blocks."""
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, spans = render_jinja_template(
        [row["messages"]],
        chat_template=source,
        return_assistant_tokens_mask="generation" in source,
        **VARIABLES,
    )
    return texts[0], spans[0] if spans else []


def ours(finder: TurnFinder, row: dict) -> tuple[str, list[bool]]:
    text, turns, _ = finder.find(read_conversation(row))
    return text, [any(a <= i < b for a, b in turns) for i in range(len(text))]


def unexplained(template, row: dict, text: str, mask: list[bool], wanted: list[bool]) -> str:
    """What one mask has and the other has not, but for two things that are ours on purpose.

    A turn begins after the whole generation prompt, as the model is given it; and it ends with the
    token that ends it, without the line break, or end of text, that a template writes then.
    """
    messages = row["messages"]
    before = messages[:-1]  # the last is the assistant's
    prompt = template.render(before, None, True)[0][len(template.render(before)[0]) :]
    assert not [
        i
        for i, (is_ours, is_theirs) in enumerate(zip(mask, wanted, strict=True))
        if is_ours and not is_theirs
    ]
    left = []
    at = 0
    for is_more, letters in groupby(range(len(text)), lambda i: wanted[i] and not mask[i]):
        part = text[at : (at := at + len(list(letters)))]
        if (
            is_more
            and part.strip().replace("<EOS>", "")
            and not prompt.endswith(part)
            and part not in prompt
        ):
            left.append(part)
    return "".join(left)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_mask_is_the_marked_template_s_letter_by_letter(name):
    """And the text is transformers'. Or the conversation is refused; most are not."""
    source = (FOLDER / f"{name}.jinja").read_text()
    marked = FOLDER / f"{name.removesuffix('_training')}_training.jinja"
    template = JinjaTemplate(source, VARIABLES)
    finder = TurnFinder(template, special_of(source), "all")
    counts = Counter()
    for row in conversations(30, name, seed=1):
        try:
            expected, spans = theirs(source, row)
        except Exception:
            with pytest.raises(CannotMask):
                template.render(read_conversation(row).messages)
            continue
        assert template.render(read_conversation(row).messages)[0] == expected
        counts["texts"] += 1
        try:
            text, mask = ours(finder, row)
        except CannotMask as error:
            counts[str(error)] += 1
            continue
        if marked.exists():
            expected, spans = theirs(marked.read_text(), row)
        if text != expected or not spans:
            counts["another text, or no marks"] += 1
            continue
        wanted = [any(a <= i < b for a, b in spans) for i in range(len(text))]
        assert not unexplained(template, row, text, mask, wanted)
        counts["same"] += 1
    assert counts["texts"] > 5
    print(name, dict(counts))
    assert counts["same"] or counts["another text, or no marks"] or name in REFUSED
