"""A template whose marks leave the stop token out of the loss is refused at the start."""

import pytest

from tokenmill.prepare.choose_tokenizer import find_tokenizer
from tokenmill.prepare.config import PrepareConfig

TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' %}ANSWER{%- else %}{{ m.content }}<|im_end|>{%- endif %}"
    "{{ '\n' }}{%- endfor %}"
)
ENDED = "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
UNENDED = {
    "around the content": (
        "{% generation %}{{ m.content }}{% endgeneration %}<|im_end|>",
        "im_end",
    ),
    "with white space": (
        "{% generation %}{{ m.content + '\n' }}{% endgeneration %}{{ '<|im_end|>' }}",
        "im_end",
    ),
    "but for the last turn": (
        "{% generation %}{{ m.content }}{% if not loop.last %}<|im_end|>{% endif %}"
        "{% endgeneration %}{% if loop.last %}<|im_end|>{% endif %}",
        "im_end",
    ),
    "a list of parts": (
        "{% generation %}{{ m.content[0].text }}{% endgeneration %}<|im_end|>",
        "im_end",
    ),
    "without any end": ("{% generation %}{{ m.content }}{% endgeneration %}", "im_start"),
}
IN_LOSS = {
    "with its end": ENDED,
    "in two blocks": "{% generation %}{{ m.content }}{% endgeneration %}"
    "{% generation %}<|im_end|>{% endgeneration %}",
    "without marks": "{{ m.content }}<|im_end|>",
}


def config_of(tmp_path, answer, tokenizer_json, **more):
    path = tmp_path / "marked.jinja"
    template = TEMPLATE.replace("ANSWER", answer)
    if "content[0]" in answer:
        template = template.replace("{{ m.content }}", "{{ m.content[0].text }}")
    path.write_text(template)
    added = "<|im_start|>,<|im_end|>"
    return PrepareConfig(source="x", chat=path, tokenizer=tokenizer_json, add_tokens=added, **more)


@pytest.mark.parametrize("kind", UNENDED)
def test_marks_that_leave_out_the_end_are_refused_unless_that_is_meant(
    kind, tmp_path, tokenizer_json
):
    answer, end = UNENDED[kind]
    config = config_of(tmp_path, answer, tokenizer_json)
    said = rf"marked.jinja: .* leave <\|{end}\|> out of the loss, .*--unended-turns"
    with pytest.raises(ValueError, match=said):
        find_tokenizer(config, [], None, print)
    sentences: list[str] = []
    meant = config_of(tmp_path, answer, tokenizer_json, unended_turns=True)
    assert find_tokenizer(meant, [], None, sentences.append)
    assert sentences[-1].startswith("warning: ")
    assert f"leave <|{end}|> out of the loss" in sentences[-1]


@pytest.mark.parametrize("kind", IN_LOSS)
def test_an_end_in_the_loss_is_taken_without_a_word(kind, tmp_path, tokenizer_json):
    sentences: list[str] = []
    assert find_tokenizer(
        config_of(tmp_path, IN_LOSS[kind], tokenizer_json), [], None, sentences.append
    )
    assert not any(sentence.startswith("warning") for sentence in sentences)
