"""What training imports in a clone: `from data import get_batch`. All of it lives in tokenmill/."""

from tokenmill import Mixture, PackedRows, RowLoader, get_batch, load_state_dict, state_dict

__all__ = ["Mixture", "PackedRows", "RowLoader", "get_batch", "load_state_dict", "state_dict"]
