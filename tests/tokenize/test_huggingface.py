"""Any tokenizer.json gives its own library's ids, by every engine, never truncated or padded."""

import copy
import json
import random
import unicodedata
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import warm
from hypothesis import example, given, settings
from hypothesis import strategies as st
from json_kinds import KINDS, NEWER_MARKS, by_gigatoken, letters, require_same
from making import ROOT, make_text, run_prepare, some_slow

from tokenmill.extras import MissingExtra
from tokenmill.tokenize.choose_encoder import choose_encoder
from tokenmill.tokenize.encoder import Encoder
from tokenmill.tokenize.huggingface import HIDDEN, OLD, HuggingFace
from tokenmill.tokenize.load import load_any, load_foreign
from tokenmill.tokenize.patterns import numbers
from tokenmill.tokenize.proof_texts import random_texts
from tokenmill.tokenize.tokenizer import Tokenizer

OTHERS = [kind for kind in KINDS if kind != "nfc"]  # which "cut" has too


@pytest.fixture(
    scope="module", params=some_slow(OTHERS, quick=["digits", "llama2", "unigram", "cut"])
)
def both(request, tmp_path_factory):
    """A tokenizer.json, the library's own tokenizer of it, and ours."""
    path = tmp_path_factory.mktemp(request.param, numbered=False) / "tokenizer.json"
    KINDS[request.param]().save(str(path))
    theirs = tokenizers.Tokenizer.from_file(str(path))
    theirs.no_truncation()
    theirs.no_padding()
    ours = load_foreign(path, "<s>")
    assert isinstance(ours, HuggingFace)
    return path, theirs, ours


PARTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    [
        " ",
        "  ",
        "\n",
        "\u2581",
        "1984",
        "12345",
        "é",
        "e\u0301",
        "水車",
        "😀",
        "'s",
        "mil",
        "grinder",
        "ﬁ",
        "\x00",
    ]
)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(PARTS, max_size=20).map("".join), max_size=4))
@example([HIDDEN, f"one{HIDDEN} two"])
def test_every_engine_gives_the_library_s_ids(both, texts):
    _, theirs, ours = both
    texts = [
        text for text in texts if not any(token in text for token in ours.special_tokens)
    ]  # which theirs obeys
    column = pa.array(texts, pa.large_string())
    for encoder in encoders_of(ours):
        tokens, lengths, _ = encoder.encode(column)
        actual = (
            [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])] if texts else []
        )
        readable = [text.replace(HIDDEN, "\ufffd") for text in texts]
        expected = [theirs.encode(text, add_special_tokens=False).ids for text in readable]
        assert actual == [[ours.bos_id, *ids] for ids in expected]


def test_random_sequences_have_the_library_s_ids(both):
    _, theirs, ours = both
    encoder = encoders_of(ours)[1]
    is_refused = ours.name in ("splits", "unigram", "word_piece")
    assert encoder.engine == ("tokenizers" if is_refused else "gigatoken")
    require_same(theirs, encoder, NEWER_MARKS + random_texts(1500, seed=1))


_encoders: dict[str, list[Encoder]] = {}


def encoders_of(ours):
    if ours.fingerprint not in _encoders:
        _encoders[ours.fingerprint] = [Encoder(ours), choose_encoder("auto", ours)[0]]
    return _encoders[ours.fingerprint]


def test_text_that_spells_a_special_token_is_text(both):
    _, _, ours = both
    for token in ("<s>", "</s>"):
        ids = ours.encode(f"a {token} b{token}c").tolist()
        assert not {ours.special_tokens["<s>"], ours.special_tokens["</s>"]} & set(ids)
    if ours.name not in (
        "word_piece",
        "unigram",
    ):  # these know no way to write the others' characters
        assert ours.special_tokens["<unk>"] not in ours.encode("a <unk> b<unk>c").tolist()


def test_it_is_kept_whole_and_decodes_as_the_library_does(both, tmp_path):
    _, theirs, ours = both
    ours.save(tmp_path / "saved.json")
    loaded = Tokenizer.load(tmp_path / "saved.json")
    assert isinstance(loaded, HuggingFace)
    assert (loaded.fingerprint, loaded.facts()) == (ours.fingerprint, ours.facts())
    for text in make_text(5, seed=2):
        ids = loaded.encode(text)
        assert ids.tolist() == ours.encode(text).tolist()
        assert loaded.decode(ids) == theirs.decode(ids.tolist(), skip_special_tokens=False)
    assert loaded.vocab_size == 1 + max(theirs.get_vocab(with_added_tokens=True).values())
    with pytest.raises(ValueError, match="stands for nothing"):
        loaded.decode([loaded.vocab_size])


def test_token_bytes_add_up_to_the_text_of_byte_level_and_sentencepiece_tokenizers(both):
    _, _, ours = both
    lengths = ours.token_bytes()
    assert lengths[ours.bos_id] == 0
    text = "the mill grinds 水 grain"
    total = int(lengths[ours.encode(text)].sum())
    if ours.name in ("digits", "splits", "added", "cut"):
        assert total == len(text.encode())
    if ours.name == "llama2":
        assert total == len(text.encode()) + 1, "a space is put before it"


def test_the_fingerprint_changes_with_what_can_change_an_id_and_with_nothing_else(tmp_path):
    theirs = letters()
    theirs.enable_truncation(5)
    theirs.enable_padding(length=30)
    theirs.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 258), ("<s>", 257))
    parts = json.loads(theirs.to_str())

    def fingerprint(**change):
        other_path = tmp_path / "other.json"
        other_path.write_text(json.dumps(parts | change))
        return load_foreign(other_path, "<s>").fingerprint

    assert fingerprint(truncation=None, padding=None, post_processor=None) == fingerprint()
    assert fingerprint(normalizer={"type": "Lowercase"}) != fingerprint()


ADDED = {  # of one tokenizer each
    "digits": [
        {"content": "code", "single_word": True, "normalized": False},
        {"content": "<l>", "lstrip": True, "normalized": False},
        {"content": "<r>", "rstrip": True, "normalized": False},
        {"content": "mill", "normalized": False},
        {"content": "e\u0301", "normalized": False},
        {"content": "ü水", "rstrip": True, "normalized": False},
        {"content": "é", "normalized": True},
    ],
    "nfc": [
        {"content": "é", "normalized": True},
        {"content": "o\u0308", "normalized": False},
        {"content": "ü水", "rstrip": True, "normalized": False},
    ],
    "llama2": [
        {"content": "code", "single_word": True, "normalized": False},
        {"content": "é", "normalized": True},
    ],
}


@pytest.mark.parametrize("kind", ADDED)
def test_documents_with_added_tokens_that_only_the_library_matches_are_left_to_it(tmp_path, kind):
    theirs = KINDS[kind]()
    theirs.add_tokens([tokenizers.AddedToken(**token) for token in ADDED[kind]])
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = load_foreign(tmp_path / "tokenizer.json", "<s>")
    rng = random.Random(0)
    pieces = ["code", "<l>", "<r>", "mill", "Code", "de", "a", "12", "\u0663", ".", " ", "\n"]
    pieces += ["e\u0301", "é", "o\u0308", "ö", "ü", "u\u0308", "水"]
    texts = ["".join(rng.choices(pieces, k=rng.randint(1, 8))) for _ in range(3000)]
    documents = pa.array([*texts, "none 1999"], pa.large_string())
    tokens, _, referred = by_gigatoken(ours, numbers()).encode(documents)
    assert tokens.tolist() == Encoder(ours).encode(documents)[0].tolist()
    assert referred < len(documents)


def test_the_model_says_what_begins_a_document(tmp_path):
    """In a file beside it or in the post-processor, before other models' names are tried."""
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    theirs.add_special_tokens(["<|endoftext|>", "<bos>", "<eos>", "<cls>"])
    path = tmp_path / "tokenizer.json"
    theirs.save(str(path))
    assert load_any(str(path)).bos_token == "<|endoftext|>"
    theirs.post_processor = tokenizers.processors.TemplateProcessing(
        "<cls> $A", None, [("<cls>", 4)]
    )
    theirs.save(str(path))
    assert load_any(str(path)).bos_token == "<cls>"
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": {"content": "<eos>"}})
    )
    assert load_any(str(path)).bos_token == "<eos>"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>"}))
    assert load_any(f"{tmp_path}/").bos_token == "<bos>"
    assert load_any(str(path), "<cls>").bos_token == "<cls>"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<none>"}))
    with pytest.raises(ValueError, match=r"found no '<none>', but 4 special tokens, .*--bos-token"):
        load_any(str(path))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": ["<bos>"]}))
    with pytest.raises(
        ValueError,
        match=r"tokenizer_config\.json: expected a token as bos_token, found \['<bos>'\]",
    ):
        load_any(str(path))
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / name).unlink()
    theirs.post_processor = tokenizers.processors.RobertaProcessing(("<eos>", 3), ("<bos>", 2))
    theirs.save(str(path))
    assert load_any(str(path)).bos_token == "<bos>"


A, B = ({"Sequence": {"id": letter, "type_id": 0}} for letter in "AB")
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "BOS", "type_id": 0}}, A],
    "pair": [A, B],
}
TEMPLATE["special_tokens"] = {"BOS": {"id": "BOS", "ids": [2], "tokens": ["<bos>"]}}
BERT = {"type": "BertProcessing", "sep": ["<eos>", 3], "cls": ["<ordinary>", 5]}


@pytest.mark.parametrize(("step", "bos"), [(BERT, "<ordinary>"), (TEMPLATE, "<bos>")])
def test_a_post_processor_puts_it_first(tmp_path, step, bos):
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    theirs.add_special_tokens(["<|endoftext|>", "<bos>", "<eos>", "<cls>"])
    theirs.add_tokens(["<ordinary>"])
    path = tmp_path / "tokenizer.json"
    theirs.save(str(path))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": ""}')
    parts = json.loads(path.read_text())
    roberta = {"type": "BertProcessing", "sep": ["<eos>", 3], "cls": ["<cls>", 4]}
    for post_processor in (step, {"type": "Sequence", "processors": [roberta, step]}):
        path.write_text(json.dumps(parts | {"post_processor": post_processor}))
        assert load_any(str(path)).bos_token == bos
    parts["added_tokens"] = [token for token in parts["added_tokens"] if token["content"] != bos]
    path.write_text(json.dumps(parts | {"post_processor": step}))
    with pytest.raises(ValueError, match=f"found no '{bos}', but .*--bos-token"):
        load_any(str(path))


SPLIT = {"type": "Split", "invert": False}
DOUBTFUL = {
    "a literal": {
        "pre_tokenizer": [SPLIT | {"pattern": {"String": "the"}, "behavior": "Isolated"}]
    },
    "a delimiter": {"pre_tokenizer": [{"type": "CharDelimiterSplit", "delimiter": "|"}]},
    "what is removed": {
        "pre_tokenizer": [SPLIT | {"pattern": {"Regex": "the"}, "behavior": "Removed"}]
    },
    "merges twice": {"merges": 1},
}


def test_what_the_proof_would_not_see_is_left_to_the_library(tmp_path):
    """An engine may treat one word otherwise, which no random text has."""
    KINDS["digits"]().save(str(tmp_path / "tokenizer.json"))
    ours = load_any(str(tmp_path / "tokenizer.json"), "<s>")
    for what, doubtful in DOUBTFUL.items():
        parts = copy.deepcopy(ours.parts)
        parts["pre_tokenizer"]["pretokenizers"][1:1] = doubtful.get("pre_tokenizer", [])
        parts["model"]["merges"] += parts["model"]["merges"][: doubtful.get("merges", 0)]
        encoder, why = choose_encoder("auto", replace(ours, parts=parts))
        assert encoder.engine == "tokenizers", what
        assert "gigatoken is not proven with " in why, what


def test_added_tokens_that_overlap_are_matched_in_the_library_s_order(tmp_path):
    theirs = KINDS["digits"]()
    theirs.add_tokens([tokenizers.AddedToken("ople who", normalized=False)])
    theirs.add_tokens([tokenizers.AddedToken("e people", normalized=True)])
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = load_any(str(tmp_path / "tokenizer.json"), "<s>")
    encoder = by_gigatoken(ours)
    documents = pa.array(
        ["We are the people who live", "the people", "people who", "none"], pa.large_string()
    )
    assert encoder.encode(documents)[0].tolist() == Encoder(ours).encode(documents)[0].tolist()


def test_a_suffix_of_words_is_no_text():
    theirs = tokenizers.Tokenizer(
        tokenizers.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")
    )
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.BpeTrainer(
        special_tokens=["<s>", "<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    theirs.train_from_iterator(["the mill grinds the grain"] * 9, trainer)
    ours = HuggingFace.of_json("clip", json.loads(theirs.to_str()), {"<s>": 0, "<unk>": 1}, "<s>")
    text = "the grain the mill"
    assert int(ours.token_bytes()[ours.encode(text)].sum()) == len(text) + 1, (
        "a space after each word"
    )


def test_a_bos_that_is_not_special_is_part_of_the_fingerprint(tmp_path):
    """Text that spells it is ordinary text then, and its token otherwise."""
    theirs = letters()
    theirs.add_tokens([tokenizers.AddedToken("<X>", special=False)])
    theirs.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<X>"}))
    renamed = load_any(str(tmp_path / "tokenizer.json"))
    ours = load_any(str(tmp_path / "tokenizer.json"), "<s>")
    assert (renamed.bos_token, renamed.with_ends("<s>").bos_token) == ("<X>", "<s>")
    assert renamed.with_ends("<s>").encode("a<X>b").tolist() != ours.encode("a<X>b").tolist()
    assert renamed.with_ends("<s>").fingerprint != ours.fingerprint


def test_the_ids_of_a_saved_tokenizer_are_those_of_this_release_or_an_error(tmp_path):
    letters().save(str(tmp_path / "tokenizer.json"))
    ours = load_foreign(tmp_path / "tokenizer.json", "<s>")
    with pytest.raises(
        ValueError,
        match="this release of tokenizers gives other ids than that which it was saved by",
    ):
        replace(ours, code_points="0" * 64).encode("a")
    blocks = [range(256 * first, 256 * last) for first, last in OLD]
    old = list(map(chr, chain.from_iterable(blocks)))
    assert [unicodedata.category(c) for c in old] == [
        unicodedata.ucd_3_2_0.category(c) for c in old
    ]


def test_the_code_point_that_hides_special_tokens_is_none_of_a_text(both):
    _, _, ours = both
    hidden = f"\ufdd0\ufdd1{ours.bos_id}\ufdd0"
    assert (
        ours.encode(f"a{hidden}").tolist()
        == ours.encode(f"a{hidden}".replace("\ufdd0", "\ufffd")).tolist()
    )
    assert ours.bos_id not in ours.encode(hidden)


def test_tokenizers_1_is_one_sentence(both, monkeypatch):
    monkeypatch.setattr(
        tokenizers, "Tokenizer", object
    )  # which lacks from_str, as that of 1.0 does
    with pytest.raises(
        MissingExtra, match=r"expected tokenizers below 1, found .*; run pip install 'tokenizers<1'"
    ):
        load_foreign(both[0], "<s>")


def test_an_added_token_whose_id_the_library_does_not_give_is_refused(tmp_path):
    parts = json.loads(KINDS["added"]().to_str())
    parts["added_tokens"][-1]["id"] += 50
    (tmp_path / "tokenizer.json").write_text(json.dumps(parts))
    with pytest.raises(ValueError, match=r"its token '  ' has id \d+, the library gives it \d+"):
        load_foreign(tmp_path / "tokenizer.json", "<s>")


def test_a_dropout_is_refused(tmp_path):
    parts = json.loads(letters().to_str())
    parts["model"]["dropout"] = 0.1
    (tmp_path / "tokenizer.json").write_text(json.dumps(parts))
    with pytest.raises(
        ValueError, match="a dropout of 0.1, with which a text has other ids every time"
    ):
        load_foreign(tmp_path / "tokenizer.json", "<s>")


def test_preparing_and_showing_with_one(both, source, tmp_path, monkeypatch):
    path, _, ours = both
    if ours.name != "llama2":
        pytest.skip("a kind is enough for the commands")
    monkeypatch.setenv(
        "TOKENIZERS_PARALLELISM", "true"
    )  # threads that would not survive the fork of a worker
    flags = ("--source", source, "--val-file", "last", "--tokenizer", path, "--bos-token", "<s>")
    done = run_prepare(*flags, cwd=tmp_path)
    token_set = tmp_path / done.stdout.splitlines()[-1]
    assert warm.run("-m", "tokenmill", "verify", token_set, cwd=ROOT).returncode == 0
    shown = warm.run(
        "-m", "tokenmill", "show", token_set, "--document", 0, "--seq-len", 64, cwd=ROOT
    )
    text = pq.read_table(source / "shard_0.parquet")["text"][0].as_py()
    assert (shown.returncode, text.split()[0] in shown.stdout) == (0, True)
