"""What `tokenmill prepare PRESET` prepares; config.py of a clone adds its user's own."""

from dataclasses import replace

from tokenmill.prepare.config import PrepareConfig

FINEWEB = PrepareConfig(
    source="karpathy/fineweb-edu-100b-shuffle", num_shards=46, val_file="shard_00045.parquet"
)
PRESETS = {
    "fineweb-edu": FINEWEB,
    "climbmix": replace(
        FINEWEB, source="karpathy/climbmix-400b-shuffle", num_shards=170, val_file="last"
    ),
    "demo": PrepareConfig(source="stdlib", tokenizer="train:8192"),
}
