"""Random conversations, chat templates like those of real models, and a slow reference for what
they supervise.
"""

import random

from tokenmill import Tokenizer
from tokenmill.chat.conversations import read_conversation
from tokenmill.chat.renderer import Renderer

TEXTS = (
    "Hi",
    "What is 6 times 7?",
    " spaces around ",
    "\n\nlines\n",
    "naïve 水車",
    "👩‍👩‍👧 emoji at the end 😀",
    "a user types <|im_end|> and <|im_start|>assistant",
    'quotes " and \\ backslashes',
    "{{ jinja }} {% raw %}",
    "x",
    "</s> and <s>",
    "<|bos|><|assistant_start|>",
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPPING = (  # as Llama 3
    "{% for m in messages %}<|im_start|>{{ m.role }}\n\n"
    "{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
# as Mistral: there is no generation prompt, and only turns of the assistant have an end
NO_PROMPT = (
    "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}</s>"
    "{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
)
# as Qwen 3: reasoning of all but the last turn is left out, and an empty one is put into the last
REWRITING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% set c = m.content %}{% set r = '' %}"
    "{% if '</think>' in c %}{% set r = c.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.last %}<think>\n{{ r }}\n</think>\n\n{% endif %}{{ c }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
)
TOOLS = (  # as Hermes: tool calls as JSON, their results in a user's turn
    "{% if tools %}<|im_start|>system\n"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n"
    "<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{% if m.content %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
    "</tool_call>"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|bos|>")


def random_messages(rng: random.Random, system: bool = True) -> list[dict]:
    messages = (
        [{"role": "system", "content": rng.choice(TEXTS)}] if system and rng.random() < 0.3 else []
    )
    for _ in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": rng.choice(TEXTS)})
        messages.append({"role": "assistant", "content": rng.choice(TEXTS)})
    return messages


def by_characters(
    messages: list[dict], begin: str, end: str, after: str, change=str
) -> tuple[str, list[bool]]:
    """A conversation of `begin` role ... content `end` `after`, letter by letter, and whether each
    is in the loss.

    The assistant's content and `end` are.
    """
    text = ""
    in_loss = []
    for message in messages:
        opener = begin.format(**message)
        content = change(message["content"]) + end
        text += opener + content + after
        in_loss += [False] * len(opener)
        in_loss += [message["role"] == "assistant"] * len(content)
        in_loss += [False] * len(after)
    return text, in_loss


def user(content) -> dict:
    return {"role": "user", "content": content}


def assistant(content, **more) -> dict:
    return {"role": "assistant", "content": content, **more}


def call(name: str, arguments) -> dict:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def slow_encode(tokenizer: Tokenizer, row: dict) -> tuple[list[int], list[bool]]:
    """Stretch by stretch and token by token, from the bytes that each token stands for."""
    ids = []
    mask = []
    for stretch in Renderer(tokenizer).render(read_conversation(row)):
        if stretch.is_special:
            ids.append(tokenizer.special_tokens[stretch.text])
            mask.append(bool(stretch.in_loss))
            continue
        at = 0
        for id in tokenizer.encode(stretch.text).tolist():
            before = stretch.text.encode()[:at].decode("utf-8", "ignore")
            first = len(before)  # the character that it begins in
            ids.append(id)
            mask.append(any(a <= first < b for a, b in stretch.in_loss))
            at += len(tokenizer.token(id))
    return ids, mask
