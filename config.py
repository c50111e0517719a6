"""What a clone's user sets: the presets of `python prepare_data.py NAME`.

`PrepareConfig` has every setting (tokenmill/prepare/config.py), `RowLoader` those of training
(tokenmill/batches/loader.py). Change a preset here, or add your own:

    PRESETS["mine"] = PrepareConfig(source="my/parquet/files", tokenizer="train:32768")
"""

from tokenmill import PRESETS as TOKENMILLS
from tokenmill import PrepareConfig

PRESETS: dict[str, PrepareConfig] = {**TOKENMILLS}
