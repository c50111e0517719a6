"""Every engine gives tiktoken's ids, and one that does not is found out."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import make_text, run_prepare, tree
from tables import SHIPPED, as_ranges, differing_code_points

from tokenmill.tokenize import encoder as encoders
from tokenmill.tokenize import gigatoken, referred
from tokenmill.tokenize.choose_encoder import choose_encoder
from tokenmill.tokenize.encoder import Encoder
from tokenmill.tokenize.patterns import CL100K_PATTERN, GPT2_PATTERN

PATTERNS = list(gigatoken.PRETOKENIZERS)
IDS = ["gpt2", "cl100k", "llama3", "qwen2", "nanochat", "o200k"]
EXCEPTIONAL = "\u180e\u088f\ua7ce\U000323b0"  # classed differently by gigatoken
ODD = st.sampled_from(
    [
        " ",
        "\n",
        "\r\n",
        "'s",
        "'S",
        "ſ",
        "'ſ",
        "1",
        "é",
        "水",
        "😀",
        "\u00a0",
        *EXCEPTIONAL,
        "<|bos|>",
    ]
)


def documents(texts):
    return pa.array(texts, pa.large_string())


@pytest.fixture(scope="module", params=PATTERNS, ids=IDS)
def encoder(request, tokenizer):
    return Encoder(replace(tokenizer, pattern=request.param), "gigatoken")


def expected(encoder, texts):
    bos = encoder.tokenizer.bos_id
    return [[bos, *encoder.tokenizer.encode(text).tolist()] for text in texts]


def encoded(encoder, column):
    tokens, lengths, _ = encoder.encode(column)
    assert (tokens.dtype, len(lengths)) == (np.uint16, len(column))
    return (
        [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]
        if len(lengths)
        else []
    )


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.lists(ODD | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)).map("".join),
        max_size=6,
    )
)
def test_documents_are_bos_and_then_tiktoken_s_ids(encoder, texts):
    assert encoded(encoder, documents(texts)) == expected(encoder, texts)


def test_an_engine_that_has_taken_too_much_memory_is_made_anew_and_gives_the_same(
    encoder, monkeypatch
):
    monkeypatch.setattr(encoders, "CACHE_BYTES", -(1 << 40))
    made = encoder._fast
    texts = make_text(5, seed=2)
    assert encoded(encoder, documents(texts)) == expected(encoder, texts)
    assert encoder._fast is not made


NUMBERS = st.sampled_from(
    ["1", "12", "999", "2²", "٣", "½", "\x01", " ", "a", "\n", "  ", "x\n ", "1.5", "①"]
)


@settings(deadline=None, max_examples=80)
@given(st.lists(st.lists(NUMBERS, max_size=12).map("".join), max_size=6))
def test_digits_are_cut_as_the_pattern_says_in_runs_of_any_length_and_kind(encoder, texts):
    assert encoded(encoder, documents(texts)) == expected(encoder, texts)


def test_documents_with_a_code_point_of_the_table_go_to_tiktoken(encoder):
    first = referred.DIFFERING[0][0]
    assert encoder.encode(documents(["plain", f"x{chr(first)}", "水 é", chr(first)]))[2] == 2


# the planes that have characters, and the first of the private ones; `make tables` takes all
PLANES = [*range(0x40000), *range(0xE0000, 0xE1000), *range(0xF0000, 0xF1000)]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS[::2] + PATTERNS[-1:], ids=IDS[::2] + IDS[-1:])
def test_the_shipped_table_is_what_the_engines_differ_in(pattern):
    """o200k's pattern, by cases and marks, shows all of them; of others, samples are tried."""
    if pattern == PATTERNS[-1]:
        assert differing_code_points(pattern, sorted({*SHIPPED, *PLANES[::8]})) == SHIPPED
    else:
        assert {*differing_code_points(pattern, PLANES[::24])} <= {*SHIPPED}
    assert as_ranges(SHIPPED) == referred.DIFFERING


def test_the_patterns_are_tiktoken_s_own(monkeypatch):
    import tiktoken_ext.openai_public as public

    monkeypatch.setattr(public, "load_tiktoken_bpe", lambda *where, **more: {})
    assert public.r50k_pat_str == GPT2_PATTERN
    assert CL100K_PATTERN in Path(public.__file__).read_text()


def test_an_engine_that_differs_is_found_out_with_a_short_text(tokenizer):
    encoder = Encoder(replace(tokenizer, pattern=GPT2_PATTERN), "gigatoken")
    right = encoder._fast

    def wrong(column):  # it takes "mill" for "mall"
        return right(documents([text.replace("mill", "mall") for text in column.to_pylist()]))

    encoder._fast = wrong
    texts = documents(["good", "a long text about a windmill and more, and yet more words", "fine"])
    tokens, lengths, _ = encoder.encode(texts)
    encoder.prove(texts, tokens, lengths, [0, 2])
    with pytest.raises(
        ValueError,
        match=r"gigatoken and tiktoken encode a text differently near '[^']*mill[^']*': .*--engine",
    ):
        encoder.prove(texts, tokens, lengths, [1])


def choose_engine(*arguments):
    encoder, why = choose_encoder(*arguments)
    return encoder.engine, why


def test_auto_takes_the_fastest_engine_that_is_proven_with_the_pattern(tokenizer):
    assert choose_engine("auto", replace(tokenizer, pattern=GPT2_PATTERN)) == ("gigatoken", "")
    assert choose_engine("auto", tokenizer) == ("gigatoken", "")
    assert choose_engine("tiktoken", tokenizer) == ("tiktoken", "")
    engine, why = choose_engine("auto", replace(tokenizer, pattern=r"\w+|\W+"))
    assert engine == "tiktoken"
    assert why.count("is not proven with the split pattern of tokenizer bpe400") == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gigatoken", "gigatoken is proven with gigatoken 9.9, found 0.10.0"),
        ("no-such-package", "no-such-package is proven with no-such-package 9.9, found none"),
    ],
)
def test_a_package_that_is_missing_or_another_version_is_not_used(
    tokenizer, monkeypatch, name, reason
):
    monkeypatch.setattr(gigatoken, "NAME", name)
    monkeypatch.setitem(gigatoken.VERSIONS, name, "9.9")
    engine, why = choose_engine("auto", tokenizer)
    assert engine == "tiktoken"
    assert re.search(reason, why)
    with pytest.raises(
        ValueError, match=f"--engine gigatoken: {reason}; use --engine auto or tiktoken"
    ):
        choose_engine("gigatoken", tokenizer)


def test_special_tokens_at_id_0_and_holes_cost_no_engine(tokenizer):
    sparse = {
        token: rank + 9 if rank < 300 else rank + 20 for token, rank in tokenizer.ranks.items()
    }
    special = {name: id for id, name in enumerate(tokenizer.special_tokens)}
    texts = [*make_text(20, seed=3), EXCEPTIONAL]
    for pattern in PATTERNS:
        first = replace(tokenizer, ranks=sparse, special_tokens=special, pattern=pattern)
        encoder, why = choose_encoder("auto", first)
        assert (encoder.engine, why) == ("gigatoken", "")
        assert encoded(encoder, documents(texts)) == expected(encoder, texts)


def test_the_engine_changes_no_byte_of_the_token_set(source, tokenizer_json, tmp_path):
    trees = {}
    messages = {}
    for engine in ("tiktoken", "gigatoken"):
        cwd = tmp_path / engine
        cwd.mkdir()
        done = run_prepare(
            "--source",
            source,
            "--val-file",
            "last",
            "--tokenizer",
            tokenizer_json,
            "--engine",
            engine,
            cwd=cwd,
        )
        trees[engine] = tree(cwd / done.stdout.splitlines()[-1])
        messages[engine] = done.stderr
    assert trees["tiktoken"] == trees["gigatoken"]
    assert "tokenizing with tiktoken" in messages["tiktoken"]
    assert "tokenizing with gigatoken" in messages["gigatoken"]
