"""A text format from outside the package: documents separated by a line of %%. Worker processes import it by name."""

from tokenmill.text.formats import Rows, TextFormat
from tokenmill.text.lines import read_pieces
from tokenmill.text_arrays import unchecked_array

SEPARATOR = b"\n%%\n"
TOY = TextFormat("toy", (".toy",), "toy_format:read", compressed=(".toy",), document="card", first=1)


def read(file, k, n, options):
    for pieces in read_pieces(file, k, n, SEPARATOR, options.max_document_bytes):
        yield Rows([unchecked_array(pieces.texts)], {}, pieces.bytes, oversized=pieces.oversized)
