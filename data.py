"""What training imports in a clone: `from data import get_batch`. Everything lives in tokenmill/."""

from tokenmill import PackedRows, RowLoader, get_batch, load_state_dict, state_dict

__all__ = ["PackedRows", "RowLoader", "get_batch", "load_state_dict", "state_dict"]
