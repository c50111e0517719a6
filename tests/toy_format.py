"""A text format from outside the package: documents separated by a line of %%. Worker processes import it by name."""

from tokenmill.text import separated
from tokenmill.text.formats import TextFormat

SEPARATOR = b"\n%%\n"
TOY = TextFormat("toy", (".toy",), module="toy_format", compressed=(".toy",), document="card", first=1)

identify = separated.identify


def plan(file, raw, options, shard_text_bytes, known_text_bytes):
    return separated.plan_separated(file, raw, SEPARATOR, shard_text_bytes, known_text_bytes)


def read(part):
    for pieces in separated.read_separated(part, SEPARATOR):
        yield separated.text_documents(pieces)
