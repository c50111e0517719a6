"""Conversations as ids and a mask: a token is of the span in which its first character lies."""

import json
import random

import numpy as np
import pyarrow as pa
import pytest
from conversing import CHATML, REWRITING, TEXTS, random_messages, slow_encode
from json_kinds import KINDS
from making import make_text, some_slow

from tokenmill.chat.chat_encoder import ChatEncoder
from tokenmill.chat.find_rule import with_rule
from tokenmill.chat.renderer import Renderer
from tokenmill.chat.templates import JinjaTemplate
from tokenmill.tokenize.chat_rule import ChatRule
from tokenmill.tokenize.encoder import Encoder
from tokenmill.tokenize.huggingface import HuggingFace
from tokenmill.tokenize.tokenizer import Tokenizer


def rows_of(*rows) -> object:
    return pa.array([json.dumps(row, ensure_ascii=False) for row in rows], pa.large_string())


def encoded(tokenizer: Tokenizer, rows: list[dict]) -> list[tuple[list[int], list[bool]]]:
    batch = ChatEncoder(Encoder(tokenizer)).encode(rows_of(*rows))
    assert batch.kept.all()
    ends = np.cumsum(batch.lengths).tolist()
    spans = []
    for end, length, targets in zip(
        ends, batch.lengths.tolist(), batch.targets.tolist(), strict=True
    ):
        spans.append(
            (batch.tokens[end - length : end].tolist(), batch.mask[end - length : end].tolist())
        )
        assert sum(spans[-1][1]) == targets
    return spans


@pytest.mark.parametrize("template", [CHATML, REWRITING])
def test_ids_and_mask_are_those_of_a_slow_reference(tokenizer, template):
    rule = ChatRule("own", template, "all", ("<|im_start|>", "<|im_end|>"), adds=True)
    chatting = with_rule(tokenizer, rule)
    rng = random.Random(0)
    rows = [{"messages": random_messages(rng)} for _ in range(200)]
    assert encoded(chatting, rows) == [slow_encode(chatting, row) for row in rows]


def reference_of_nanochat(
    tokenizer: Tokenizer, messages: list[dict]
) -> tuple[list[int], list[int]]:
    """nanochat's rendering, token by token, as its documentation of the format says."""
    special = tokenizer.special_tokens
    if messages[0]["role"] == "system":
        first = messages[1] | {"content": messages[0]["content"] + "\n\n" + messages[1]["content"]}
        messages = [first, *messages[2:]]
    tokens = [(special["<|bos|>"], 0)]
    around = {
        "python": ("python_start", "python_end", 1),
        "python_output": ("output_start", "output_end", 0),
    }
    for message in messages:
        bears = int(message["role"] == "assistant")
        tokens.append((special[f"<|{message['role']}_start|>"], 0))
        parts = message["content"]
        for part in [{"type": "text", "text": parts}] if isinstance(parts, str) else parts:
            begin, end, learned = around.get(part["type"], ("", "", bears))
            tokens += [(special[f"<|{begin}|>"], learned)] if begin else []
            tokens += [(id, learned) for id in tokenizer.encode(part["text"]).tolist()]
            tokens += [(special[f"<|{end}|>"], learned)] if end else []
        tokens.append((special[f"<|{message['role']}_end|>"], bears))
    ids, mask = zip(*tokens, strict=True)
    return list(ids), list(mask)


def with_tools(rng: random.Random, messages: list[dict]) -> list[dict]:
    kinds = ("text", "python", "python_output")
    return [
        m
        | {
            "content": [
                {"type": rng.choice(kinds), "text": rng.choice(TEXTS)}
                for _ in range(rng.randint(1, 5))
            ]
        }
        if m["role"] == "assistant" and rng.random() < 0.5
        else m
        for m in messages
    ]


def test_nanochat_s_rendering_token_for_token(tokenizer):
    chatting = with_rule(tokenizer, ChatRule.named("nanochat", "all"))
    rng = random.Random(0)
    rows = [{"messages": with_tools(rng, random_messages(rng))} for _ in range(500)]
    rows = [row for row in rows if any(reference_of_nanochat(tokenizer, row["messages"])[1])]
    for (ids, mask), row in zip(encoded(chatting, rows), rows, strict=True):
        assert (ids, [int(bears) for bears in mask]) == reference_of_nanochat(
            tokenizer, row["messages"]
        )


@pytest.mark.parametrize(
    "kind", some_slow(["digits", "llama2", "unigram", "word_piece"], quick=["llama2", "word_piece"])
)
def test_every_kind_of_tokenizer_gives_the_ids_of_its_library(kind):
    """Where no content spells a special token, the reference is the library's encoding of all."""
    parts = json.loads(KINDS[kind]().to_str())
    special = {token["content"]: token["id"] for token in parts["added_tokens"] if token["special"]}
    bos = next(token for token in ("<s>", "[CLS]", *special) if token in special)
    rule = ChatRule("own", CHATML, "all", ("<|im_start|>", "<|im_end|>"), adds=True)
    chatting = with_rule(HuggingFace.of_json(kind, parts, special, bos), rule)
    rng = random.Random(0)
    contents = [
        text for text in (*TEXTS, *make_text(5, 0, 20)) if "<|" not in text and "s>" not in text
    ]
    rows = [
        {
            "messages": [
                {"role": role, "content": rng.choice(contents)}
                for role in ("user", "assistant") * 2
            ]
        }
        for _ in range(30)
    ]
    library = chatting.decoding
    template = JinjaTemplate(CHATML, {})
    for (ids, mask), row in zip(encoded(chatting, rows), rows, strict=True):
        text = template.render(row["messages"])[0]
        assert ids[1:] == library.encode(text, add_special_tokens=False).ids
        assert not mask[0]
        assert any(mask)


def test_tokenized_conversations_are_taken_as_they_are(tokenizer):
    chatting = with_rule(tokenizer, ChatRule.named("nanochat", "all"))
    bos = tokenizer.bos_id
    rows = [
        {"input_ids": [bos, 5, 6, 7], "assistant_masks": [0, 0, 1, 1]},
        {"input_ids": [5, 6, 7], "loss_mask": [1, 0, 1]},
        {"input_ids": [5, 6, 7], "labels": [-100, 6, -100]},
    ]
    assert encoded(chatting, rows) == [
        ([bos, 5, 6, 7], [False, False, True, True]),
        ([bos, 5, 6, 7], [False, True, False, True]),
        ([bos, 5, 6, 7], [False, False, True, False]),
    ]
    shifted = {"input_ids": [5, 6, 7], "labels": [6, 7, -100]}
    batch = ChatEncoder(Encoder(chatting)).encode(rows_of(shifted))
    assert batch.broken == [
        (0, "expected labels that are input_ids or negative: they are not to be shifted")
    ]


def test_what_is_left_out_is_counted_with_its_reason(tokenizer):
    chatting = with_rule(tokenizer, ChatRule.named("nanochat", "all"))
    good = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    unlearned = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "weight": 0},
        ]
    }
    batch = ChatEncoder(Encoder(chatting)).encode(
        pa.array(
            [
                json.dumps(good),
                "{",
                json.dumps(unlearned),
                json.dumps({"messages": []}),
                json.dumps(good),
            ],
            pa.large_string(),
        )
    )
    assert batch.kept.tolist() == [True, False, False, False, True]
    assert batch.refused == [(2, "no token of it is in the loss")]
    assert [number for number, _ in batch.broken] == [1, 3]


def test_a_template_that_writes_bos_within_a_conversation_is_refused(tokenizer):
    twice = CHATML.replace("<|im_start|>", "<|bos|><|im_start|>")
    rule = ChatRule("own", twice, "all", ("<|im_start|>", "<|im_end|>"), adds=True)
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    batch = ChatEncoder(Encoder(with_rule(tokenizer, rule))).encode(rows_of(row))
    ((_, reason),) = batch.refused
    assert "<|bos|> is within a conversation" in reason


def test_the_template_and_the_loss_rule_are_in_the_fingerprint(tokenizer, tmp_path):
    rules = [
        ChatRule.named("nanochat", "all"),
        ChatRule.named("nanochat", "last"),
        ChatRule.named("chatml", "all"),
    ]
    made = [tokenizer, *(with_rule(tokenizer, rule) for rule in rules)]
    assert len({chatting.fingerprint for chatting in made}) == 4
    for chatting in made:
        chatting.save(tmp_path / "tokenizer.json")
        assert Tokenizer.load(tmp_path / "tokenizer.json") == chatting
    assert made[3].vocab_size == tokenizer.vocab_size + 2
    assert {chatting.chat.text_fingerprint for chatting in made[1:]} == {tokenizer.fingerprint}


def test_a_tokenizer_without_the_special_tokens_is_refused(tokenizer):
    lacking = Tokenizer("plain", tokenizer.pattern, tokenizer.ranks, {"<|bos|>": 399}, "<|bos|>")
    with pytest.raises(
        ValueError,
        match=r"needs special tokens that tokenizer plain does not have: <\|user_start\|>",
    ):
        Renderer(with_rule(lacking, ChatRule.named("nanochat", "all")))


ROWS = {
    "sharegpt": {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    "pair": {"prompt": "a", "completion": "b"},
    "no system": {
        "system": "",
        "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
    },
    "pair of messages": {
        "prompt": [{"role": "user", "content": "a"}],
        "completion": [{"role": "assistant", "content": "b"}],
    },
}


@pytest.mark.parametrize("kind", ROWS)
def test_every_form_of_a_conversation_is_the_same_conversation(tokenizer, kind):
    chatting = with_rule(tokenizer, ChatRule.named("nanochat", "all"))
    usual = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    assert encoded(chatting, [ROWS[kind]]) == encoded(chatting, [usual])
