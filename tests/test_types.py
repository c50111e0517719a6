"""Users see the types of the package's public face.

That the package itself is clean, `make lint` checks.
"""

import os
import subprocess
import sys

import pytest
from making import ROOT

pytestmark = pytest.mark.slow

USER = """
from typing import assert_type

import torch

from tokenmill import PackedRows, PrepareConfig, RowLoader, TokenSet, Tokenizer
from tokenmill import document_ids, get_batch, prepare

Pair = tuple[torch.Tensor, torch.Tensor]


class Trainer:
    def __init__(self, loader: RowLoader) -> None:
        self.loader = loader

    def step(self) -> Pair:
        return next(self.loader)


assert_type(next(RowLoader(batch_size=2, seq_len=8)), Pair)
assert_type(get_batch("train", 2, 8), Pair)
assert_type(document_ids(get_batch("train", 2, 8, "cuda")[0], 0), torch.Tensor)
with RowLoader(batch_size=2, seq_len=8, epochs=1) as loader:
    for inputs, targets in loader:
        assert_type(inputs, torch.Tensor)
    assert_type(len(loader), int)
    assert_type(loader.tokens_seen, int)
    assert_type(loader.waited, float)
    assert_type(loader.vocab_size, int)
for pair in PackedRows(seq_len=8):
    assert_type(pair, Pair)
assert_type(next(iter(PackedRows("a", batch_size=2, seq_len=8))), Pair)
prepare(PrepareConfig(source="a", tokens_root="b"))
Tokenizer.load("a").save("b")
assert_type(TokenSet("a").bos_id, int)
"""
CONFIG = """
[mypy]
[mypy-torch.*,IPython.*,matplotlib.*,prompt_toolkit.*,rich.*,jinja2.*]
follow_imports = skip
[mypy-torch]
follow_imports = silent
"""  # to read the real torch takes mypy a minute
BAD_TYPE = "has incompatible type"
WRONG = {
    'RowLoader(batch_size=2, seq_len=8, packing="x")': f'"packing" to "RowLoader" {BAD_TYPE}',
    "RowLoader(batch_size=2)": 'Missing named argument "seq_len"',
    'get_batch("test", 2, 8)': f'Argument 1 to "get_batch" {BAD_TYPE}',
    "from tokenmill import RowLodaer": 'Module "tokenmill" has no attribute "RowLodaer"',
    "PackedRows(sequence_length=8)": 'Unexpected keyword argument "sequence_length"',
    "inputs, targets, more = get_batch('train', 2, 8)": "Need more than 2 values to unpack",
}


def test_a_user_s_code_sees_the_types_and_what_is_wrong_is_told(tmp_path):
    lines = [f"    {code}" for code in WRONG]
    (tmp_path / "user.py").write_text("\n".join([USER, "def wrong() -> None:", *lines, ""]))
    (tmp_path / "mypy.ini").write_text(CONFIG)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.pyi").write_text("class Tensor: ...\n")
    env = dict(os.environ, MYPYPATH=str(ROOT))
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "user.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    output = done.stdout + done.stderr
    errors = [line for line in output.splitlines() if " error: " in line]
    assert done.returncode == 1
    assert len(errors) == len(WRONG), output
    for line, expected in zip(errors, WRONG.values(), strict=True):
        assert expected in line
